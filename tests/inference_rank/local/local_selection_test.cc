// Rows that steps select are those of the specification, whatever is selected for other rows, here on a GPU made of
// host memory (tests/support/host_gpu).
#include "inference_rank/local/local_selection.h"

#include <gmock/gmock.h>

#include "common/selection/presets.h"
#include "tests/inference_rank/local/local_selection_fixture.h"

namespace winnow::test {
namespace {

// Rows of two predictors, with budgets of their own, beside a dense one.
TEST_P(LocalSelectionTest, RowsThatAreSelectedAreThoseOfTheSpecificationBesideOthers) {
  const std::vector<SelectionSpec> specs = {
      {.predictor = Predictor::kExact, .budget_tokens = 20, .recent_tokens = 32},
      {.predictor = Predictor::kExact, .budget_tokens = 33, .recent_tokens = 32},
      {.predictor = Predictor::kDepth, .budget_tokens = 40, .sink_tokens = 7, .recent_tokens = 64},
      spec_,
      {.predictor = Predictor::kExact, .budget_tokens = 500},  // covers everything
      {.predictor = Predictor::kExact, .dense_below_tokens = 120, .budget_tokens = 16, .recent_tokens = 32},
  };
  std::vector<int> measured;
  ExpectAsAlone(specs, {130, 97, 150, 140, 100, 90}, /*steps=*/45, measured);
  EXPECT_GE(measured[0], 4) << "some of the first positions behind the prompt, and every sixteenth";
  EXPECT_EQ(measured[3], 0);
  EXPECT_EQ(measured[4], 0);
}

TEST_P(LocalSelectionTest, TheFirstRowsAreSelectedWithoutAQuery) {
  std::vector<int> measured;
  ExpectAsAlone({{.predictor = Predictor::kFixed, .budget_tokens = 20, .recent_tokens = 32},
                 {.predictor = Predictor::kExact, .budget_tokens = 20, .recent_tokens = 32},
                 {.predictor = Predictor::kFixed, .budget_tokens = 33, .sink_tokens = 7, .recent_tokens = 64}},
                {130, 97, 90}, /*steps=*/45, measured);
}

// Each with queries of its own past, also those that it had while it attended to everything.
TEST_P(LocalSelectionTest, RowsThatLookBackSelectWithTheirOwnPastBesideOthers) {
  const std::vector<SelectionSpec> specs = {
      {.predictor = Predictor::kLast, .budget_tokens = 20, .recent_tokens = 32},
      {.predictor = Predictor::kTemporal, .budget_tokens = 24, .recent_tokens = 32},
      {.predictor = Predictor::kTemporal, .window = 4, .post_rope = true, .budget_tokens = 33, .recent_tokens = 32},
      {.predictor = Predictor::kExact, .budget_tokens = 20, .recent_tokens = 32},
      {.predictor = Predictor::kTemporal, .dense_below_tokens = 120, .budget_tokens = 16, .recent_tokens = 32},
      spec_,
  };
  std::vector<int> measured;
  ExpectAsAlone(specs, {130, 97, 150, 110, 100, 90}, /*steps=*/45, measured);
  EXPECT_GE(measured[0], 4);
  // Alone in a batch whose other rows do not look back, a row that is dense at first.
  ExpectAsAlone({specs[4], spec_}, {100, 90}, /*steps=*/45, measured);
  // A prompt shorter than the window.
  ExpectAsAlone({specs[1], specs[0]}, {5, 1}, /*steps=*/75, measured);
}

// Also where steps under way have gone farther than the sequence.
TEST_P(LocalSelectionTest, ASequenceTakesItsPastAlongToAnotherRow) {
  const SelectionSpec spec = {.predictor = Predictor::kTemporal, .budget_tokens = 24, .recent_tokens = 32};
  constexpr uint32_t kPrompt = 130;
  constexpr int kSteps = 40;
  const std::vector<uint32_t> expected = TokensAlone(3, kPrompt, spec, kSteps);
  Stream stream = NewStream(3, kPrompt, spec);
  const auto launch = [&](int row, uint32_t position) {
    StepRow planned{.row = row, .position = position, .draw = TokenDraw()};
    if (position == stream.position) planned.token_id = stream.newest();
    client().Plan({&planned, 1});
    ASSERT_TRUE(client().Launch().ok() && client().Draw({}).ok());
  };
  int row = 4;
  for (const int steps : {1, 13, kSteps - 14}) {
    Sit(row, stream, spec);
    for (int step = 0; step < steps; ++step) {
      launch(row, stream.position);
      ASSERT_TRUE(client().Complete().ok());
      stream.tokens.push_back(client().drawn_token(row));
      ++stream.position;
    }
    for (uint32_t ahead = 0; ahead < StepClient::kMaxStepsUnderWay; ++ahead) launch(row, stream.position + ahead);
    const std::vector<float> past = client().PastQueries(row, stream.position);
    ASSERT_EQ(past.size(), layout_.num_layers * 9 * query_floats());
    for (size_t i = 0; i < past.size() / query_floats(); ++i) {
      const auto query = past.begin() + static_cast<ptrdiff_t>(i * query_floats());
      stream.past_queries[i / 9][i % 9].assign(query, query + static_cast<ptrdiff_t>(query_floats()));
    }
    ASSERT_TRUE(client().Complete().ok() && client().Complete().ok());
    client().ClearRow(row--);
  }
  EXPECT_EQ(stream.tokens, expected);
}

TEST_P(LocalSelectionTest, WhatIsNotSelectedInPlaceIsSaid) {
  const auto refusal = [&](SelectionSpec spec) { return std::string(client().Serves(spec).message()); };
  EXPECT_EQ(refusal({.predictor = Predictor::kTemporal}), "");
  EXPECT_THAT(refusal({.predictor = Predictor::kTemporal, .window = 9}), testing::HasSubstr("look back"));
  const std::string of_8_bits = refusal({.predictor = Predictor::kExact, .key_copy = KeyCopy::kInt8});
  if (GetParam().kv_dtype == Dtype::kI8) {
    EXPECT_EQ(of_8_bits, "") << "they are those of the rows";
  } else {
    EXPECT_THAT(of_8_bits, testing::HasSubstr("8-bit keys"));
  }
  EXPECT_THAT(refusal({.predictor = Predictor::kExact, .scorer = Scorer::kTwoStage}), testing::HasSubstr("pages"));
  EXPECT_THAT(refusal({.predictor = Predictor::kExact, .min_captured_mass = 0.9f}), testing::HasSubstr("correction"));
  EXPECT_EQ(refusal({.predictor = Predictor::kExact}), "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalSelectionTest, kOneGpuOrTwo, NameOf);

TEST(LocalSelection, HoldsTheBudgetOfPsaWhichSelectsUnitsAlone) {
  device::PageUnitKernels units{};
  units.select_units = [](device::Stream, const device::UnitSelectParams&, const float*, int64_t) {};
  device::DeviceTable table;
  table.page_units = &units;
  const LocalSelection::Shape shape = {
      .layout = {.num_layers = 2, .num_query_heads = 8, .num_kv_heads = 2, .head_dim = 128, .dtype = Dtype::kBf16},
      .max_rows = 2,
      .hidden_size = 64,
      .max_context_tokens = 32768,
      .selection = FindPreset("psa").value()};
  EXPECT_EQ(LocalSelection::MaxBudget(shape), 8192u);
  EXPECT_TRUE(LocalSelection::Serves(table, shape, shape.selection).ok());
  EXPECT_THAT(std::string(LocalSelection::Serves(table, shape, {.predictor = Predictor::kExact}).message()),
              testing::HasSubstr("6144"));
}

// A rank that was started with pages of 16 tokens.
class PagesInPlaceTest : public LocalSelectionTest {
 protected:
  static SelectionSpec Pages(Scorer scorer, uint32_t budget) {
    SelectionSpec spec = {.predictor = Predictor::kExact, .budget_tokens = budget, .recent_tokens = 32};
    spec.scorer = scorer;
    spec.physical_page_tokens = 32;
    return spec;
  }
  SelectionSpec ServerSpec() const override { return Pages(Scorer::kPageMinmax, 40); }
};

TEST_P(PagesInPlaceTest, WholePagesAreSelectedBesideRowsOfOtherKinds) {
  std::vector<int> measured;
  ExpectAsAlone({{.predictor = Predictor::kExact, .budget_tokens = 20, .recent_tokens = 32},
                 Pages(Scorer::kPageMinmax, 40),
                 Pages(Scorer::kHierarchical, 64),
                 spec_},
                {130, 97, 150, 110}, /*steps=*/45, measured);
}

INSTANTIATE_TEST_SUITE_P(Ranks, PagesInPlaceTest, kBf16OnOneGpuOrTwo, NameOf);

// One that was started with lists for each query head, which are kept for some positions, and heads that stream.
class KeptListsInPlaceTest : public PagesInPlaceTest {
 protected:
  static SelectionSpec Kept(uint32_t budget, uint32_t interval, bool streams) {
    SelectionSpec spec = Pages(Scorer::kHierarchical, budget);
    spec.list_per = ListPer::kQueryHead;
    spec.reuse_interval = interval;
    for (int list = 0; list < 12 && streams; ++list) spec.head_budgets.push_back(list % 3 == 1 ? 0 : budget);
    return spec;
  }
  SelectionSpec ServerSpec() const override { return Kept(40, 4, /*streams=*/true); }
};

TEST_P(KeptListsInPlaceTest, EachQueryHeadHasItsOwnUntilTheNextAnchor) {
  std::vector<int> measured;
  ExpectAsAlone({Kept(40, 4, true), Kept(64, 4, false), spec_, Kept(48, 1, false), Kept(500, 4, true)},
                {130, 97, 150, 110, 90}, /*steps=*/45, measured);
}

// Also where a step comes between in which the row has no part.
TEST_P(KeptListsInPlaceTest, ARowThatSitsOutAStepKeepsItsSelection) {
  constexpr int kSteps = 12;
  const SelectionSpec spec = Kept(40, 4, true);
  const std::vector<uint32_t> expected = TokensAlone(1, 130, spec, kSteps);
  Stream stream = NewStream(1, 130, spec), other = NewStream(2, 90);
  Sit(0, stream, spec);
  Sit(1, other);
  for (int step = 0; step < 2 * kSteps; ++step) {
    std::vector<StepRow> rows = {{.row = 1, .token_id = 5, .position = other.position++, .draw = TokenDraw()}};
    const bool takes_part = step % 2 == 0;
    if (takes_part) {
      rows.push_back({.row = 0, .token_id = stream.newest(), .position = stream.position++, .draw = TokenDraw()});
    }
    client().Plan(rows);
    ASSERT_TRUE(client().Launch().ok() && client().Draw({}).ok() && client().Complete().ok());
    if (takes_part) stream.tokens.push_back(client().drawn_token(0));
  }
  EXPECT_EQ(stream.tokens, expected);
}

TEST_P(KeptListsInPlaceTest, ListsForKvHeadsAreNotSelectedBesideThem) {
  EXPECT_THAT(std::string(client().Serves(Pages(Scorer::kHierarchical, 64)).message()),
              testing::HasSubstr("query head"));
  SelectionSpec looks_back = Kept(40, 4, false);
  looks_back.predictor = Predictor::kLast;
  EXPECT_THAT(std::string(client().Serves(looks_back).message()), testing::HasSubstr("look back"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, KeptListsInPlaceTest, testing::Values(StepRank{}), NameOf);

}  // namespace
}  // namespace winnow::test
