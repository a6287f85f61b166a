#include "cache_rank/step/data_plane.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

using Selections = std::map<uint32_t, std::vector<std::vector<uint32_t>>>;

struct Case {
  std::string name;
  SelectionSpec spec;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}
std::vector<Case> Cases() {
  SelectionSpec temporal = SmallSpec(Predictor::kTemporal);
  temporal.temporal_variant = TemporalVariant::kClipped;
  SelectionSpec post_rope = SmallSpec(Predictor::kTemporal);
  post_rope.post_rope = true;
  SelectionSpec ahead2 = SmallSpec(Predictor::kDepth);
  ahead2.lookahead = 2;
  SelectionSpec mean = SmallSpec(Predictor::kExact);
  mean.group_aggregation = GroupAggregation::kMean;
  std::vector<Case> cases = {{"exact", SmallSpec(Predictor::kExact)},
                             {"exact_mean", mean},
                             {"last", SmallSpec(Predictor::kLast)},
                             {"temporal", temporal},
                             {"post_rope", post_rope},
                             {"depth", SmallSpec(Predictor::kDepth)},
                             {"depth2", ahead2}};
  for (const Predictor predictor : {Predictor::kExact, Predictor::kLast, Predictor::kTemporal, Predictor::kDepth}) {
    SelectionSpec spec = SmallSpec(predictor);
    spec.temporal_variant = TemporalVariant::kClipped;
    spec.list_per = ListPer::kQueryHead;
    cases.push_back({absl::StrCat("per_query_head_", static_cast<int>(predictor)), spec});
  }
  return cases;
}

// The preset of that name, in small.
SelectionSpec SmallLServe() {
  SelectionSpec spec = SmallSpec(Predictor::kExact);
  spec.scorer = Scorer::kHierarchical;
  spec.physical_page_tokens = 32;
  spec.list_per = ListPer::kQueryHead;
  spec.head_budgets = {48, 0, 48, 30, 0, 48};
  spec.reuse_interval = 4;
  return spec;
}

// And those whose lists differ, that do not select anew at every position, or send everything.
std::vector<Case> SharingCases() {
  std::vector<Case> cases;
  for (const Predictor predictor : {Predictor::kExact, Predictor::kLast, Predictor::kTemporal, Predictor::kDepth}) {
    SelectionSpec spec = SmallSpec(predictor);
    spec.reuse_interval = predictor == Predictor::kLast ? 3 : 4;
    cases.push_back({absl::StrCat("reuse_", static_cast<int>(predictor)), spec});
  }
  cases.push_back({"fixed", SmallSpec(Predictor::kFixed)});
  for (const Predictor predictor : {Predictor::kExact, Predictor::kTemporal, Predictor::kDepth, Predictor::kFixed}) {
    SelectionSpec spec = SmallSpec(predictor);
    spec.head_budgets = {20, 0, 48, 70, 0, 0};  // lists, layer by layer; two streaming heads in the last
    cases.push_back({absl::StrCat("by_head_", static_cast<int>(predictor)), spec});
    spec.reuse_interval = 4;
    cases.push_back({absl::StrCat("by_head_reuse_", static_cast<int>(predictor)), spec});
  }
  SelectionSpec full = SmallSpec(Predictor::kDepth);
  full.transfer = Transfer::kFull;
  cases.push_back({"full", full});
  cases.push_back({"lserve", SmallLServe()});
  full.list_per = ListPer::kQueryHead;
  cases.push_back({"full_per_query_head", full});
  for (const Predictor predictor : {Predictor::kLast, Predictor::kTemporal, Predictor::kFixed}) {
    SelectionSpec spec = SmallSpec(predictor);
    spec.list_per = ListPer::kQueryHead;
    spec.reuse_interval = predictor == Predictor::kLast ? 3 : 4;
    cases.push_back({absl::StrCat("per_query_head_reuse_", static_cast<int>(predictor)), spec});
  }
  return cases;
}

// Decodes `steps` positions of a sequence of its own on a fresh cluster: what every other way of serving must
// reproduce.
Selections Baseline(const SelectionSpec& spec, uint64_t seed, uint32_t prompt, int steps) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, seed, spec, prompt);
  for (int i = 0; i < steps; ++i) EXPECT_TRUE(rank->Decode({sequence}));
  EXPECT_EQ(rank->Errors(), "");
  EXPECT_FALSE(sequence->selections.empty());
  return sequence->selections;
}

class DataPlaneTest : public testing::TestWithParam<Case> {
 protected:
  const SelectionSpec spec_ = GetParam().spec;
};

class ServingTest : public DataPlaneTest {};

TEST_P(DataPlaneTest, SelectsWhatBruteForceSelectsAndReportsTheMassItCaptured) {
  TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
  options.data_plane.selector.mass_interval = 4;
  TestCluster cluster(options);
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 11, spec_, 180);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(rank->Decode({sequence})) << i << ": " << rank->Errors();
  ASSERT_EQ(rank->Errors(), "");
  ASSERT_EQ(sequence->selections.size(), 40u);
  const int kv_heads = cluster.shape.layout.num_kv_heads;
  const int per_head = sequence->lists_per_head(), heads = kv_heads * per_head;
  for (const auto& [position, lists] : sequence->selections) {
    for (size_t list = 0; list < lists.size(); ++list) {
      const int layer = static_cast<int>(list) / heads, head = static_cast<int>(list) % heads;
      ASSERT_EQ(cluster.CheckSelection(*sequence, position, layer, head, lists[list]), "")
          << "position " << position << " layer " << layer << " head " << head;
    }
    for (size_t list = 0; list < sequence->lists.size(); ++list) {
      const float mass = sequence->masses[position][list];
      const uint32_t measured = position - 1;
      if (measured < 180 || (measured >= 184 && measured % 4 != 0)) {
        EXPECT_TRUE(std::isnan(mass)) << "nothing was selected for the prompt's last position; 185 to 187 are skipped";
      } else {
        double expected = 0;  // the mean over the lists' heads
        for (int i = 0; i < per_head; ++i) {
          const size_t index = list * per_head + i;
          const int layer = static_cast<int>(index) / heads, head = static_cast<int>(index) % heads;
          expected += cluster.Mass(*sequence, position - 1, layer, head, sequence->selections[position - 1][index]);
        }
        EXPECT_NEAR(mass, expected / per_head, 2e-3);
      }
    }
  }
  EXPECT_GT(sequence->streamed_rows, 0u);
  uint64_t selected_rows = 0;  // of each kv head: one that several query heads select counts once
  for (const auto& [position, lists] : sequence->selections) {
    for (size_t list = 0; list < lists.size(); list += per_head) {
      std::set<uint32_t> rows;
      for (int i = 0; i < per_head; ++i) rows.insert(lists[list + i].begin(), lists[list + i].end());
      selected_rows += rows.size();
    }
  }
  EXPECT_GE(selected_rows, 40u * 48 * sequence->lists.size());
  EXPECT_EQ(selected_rows > 40u * 48 * sequence->lists.size(), per_head > 1) << "query heads differ in what they want";
  EXPECT_LT(sequence->streamed_rows, selected_rows / 2) << "only deltas travel";
  const CacheRankSnapshot metrics = cluster.metrics.Snapshot();
  EXPECT_EQ(metrics.streamed_rows, sequence->streamed_rows);
  EXPECT_EQ(metrics.selection_lookups, selected_rows);
  EXPECT_EQ(metrics.selection_hits, metrics.selection_lookups - sequence->streamed_rows - sequence->local_rows);
  EXPECT_EQ(metrics.captured_mass[1].count, 13u * kv_heads) << "180 to 184, 188, .. 216";
}

TEST_P(ServingTest, ContinuesFromTheDensePhaseWithItsPool) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 12, spec_, 40);
  uint32_t first_sparse = 40;
  while (sequence->Everything(2, first_sparse)) ++first_sparse;
  const size_t selection = 2 * sequence->lists_per_head();  // of layer 1, head 0
  while (sequence->next_position <= first_sparse) ASSERT_TRUE(rank->Decode({sequence})) << rank->Errors();
  // 48 of the first sparse position's candidates are chosen among those resident (from the pool) or new in it (from the
  // ring).
  if (spec_.transfer == Transfer::kDelta) {
    EXPECT_EQ(sequence->streamed_rows, 0u);
  }
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(rank->Decode({sequence})) << rank->Errors();
  EXPECT_EQ(rank->Errors(), "");
  for (const auto& [position, lists] : sequence->selections) {
    if (sequence->Everything(2, position)) continue;  // lists with smaller budgets have become sparse before
    ASSERT_EQ(cluster.CheckSelection(*sequence, position, 1, 0, lists[selection]), "") << position;
  }
}

TEST_P(ServingTest, SelectionDependsOnNothingButTheSequence) {
  const Selections expected = Baseline(spec_, 13, 150, 25);
  struct Variation {
    const char* name;
    float pool_factor;
    int neighbours;
    TestCluster::Options options;
  };
  std::vector<Variation> variations = {
      {"smallest pool", 1, 0, {.data_plane = TestCluster::SmallDataPlane()}},
      {"large pool", 6, 0, {.data_plane = TestCluster::SmallDataPlane()}},
      {"batched", 2, 3, {.data_plane = TestCluster::SmallDataPlane()}},
      {"two threads, slow", 2, 2, {.data_plane = TestCluster::SmallDataPlane(), .num_threads = 2, .lag = 7}},
      {"one row at a time, tiny frames", 1.34f, 2, {.data_plane = TestCluster::SmallDataPlane()}},
      {"no mass", 2, 1, {.data_plane = TestCluster::SmallDataPlane()}},
      {"all masses", 2, 1, {.data_plane = TestCluster::SmallDataPlane()}}};
  variations[4].options.data_plane.selector.batch_rows = 1;
  variations[4].options.data_plane.streamer.frame_bytes = 600;
  variations[5].options.data_plane.selector.measure_captured_mass = false;
  variations[6].options.data_plane.selector.mass_interval = 1;
  for (const Variation& variation : variations) {
    TestCluster cluster(variation.options);
    auto rank = cluster.NewRank();
    SelectionSpec spec = spec_;
    spec.pool_factor = variation.pool_factor;
    std::vector<FakeSequence*> rows{rank->Prefill(1, 13, spec, 150)};
    for (int i = 0; i < variation.neighbours; ++i) {
      rows.insert(rows.begin(), rank->Prefill(2 + i, 50 + i, spec, 40 + 70 * i));
    }
    for (int i = 0; i < 25; ++i) ASSERT_TRUE(rank->Decode(rows)) << variation.name << ": " << rank->Errors();
    EXPECT_EQ(rank->Errors(), "") << variation.name;
    EXPECT_EQ(rows.back()->selections, expected) << variation.name;
  }
}

TEST_P(ServingTest, ServesTheSameAfterItsInferenceRankDiedAnywhereInAStep) {
  const Selections expected = Baseline(spec_, 14, 150, 25);
  for (const auto& [steps, layers_of_last_step] :
       {std::pair(10, 0), std::pair(10, 1), std::pair(10, 2), std::pair(10, 3), std::pair(12, 1), std::pair(13, 2)}) {
    TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
    auto rank = cluster.NewRank();
    FakeSequence* before = rank->Prefill(1, 14, spec_, 150);
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(rank->Decode({before}));
    ASSERT_TRUE(rank->Decode({before}, layers_of_last_step));
    cluster.PumpCacheRank();
    cluster.data_plane->CloseLink(rank->link(), absl::UnavailableError("killed"));
    EXPECT_EQ(cluster.data_plane->store().detached(), 1u);

    auto successor = cluster.NewRank();
    FakeSequence* after = successor->Attach(*before);
    EXPECT_EQ(after->next_position, 150u + steps + (layers_of_last_step == 3));
    EXPECT_EQ(after->attach_epoch, 2u);
    std::set<uint32_t> working_set;
    for (uint32_t p = 0; p < after->next_position; ++p) {
      if (p < spec_.sink_tokens || p + 128 >= after->next_position) working_set.insert(p);
    }
    EXPECT_EQ(after->refilled, working_set);
    while (after->next_position < 175) ASSERT_TRUE(successor->Decode({after})) << successor->Errors();
    EXPECT_EQ(rank->Errors() + successor->Errors(), "");
    for (const auto& [position, lists] : after->selections) EXPECT_EQ(lists, expected.at(position)) << position;
  }
}

TEST_P(ServingTest, AForkContinuesAsItsSourceWould) {
  const Selections expected = Baseline(spec_, 15, 150, 20);
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* source = rank->Prefill(1, 15, spec_, 150);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(rank->Decode({source}));
  FakeSequence* fork = rank->Fork(*source, 2);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(rank->Decode({fork, source})) << rank->Errors();
  ASSERT_TRUE(cluster.data_plane->ReleaseSequence(1, source->attach_epoch).ok());
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(rank->Decode({fork}));
  EXPECT_EQ(rank->Errors(), "");
  for (const auto& [position, lists] : fork->selections) EXPECT_EQ(lists, expected.at(position)) << position;
  ASSERT_TRUE(cluster.data_plane->ReleaseSequence(2, 1).ok());
  EXPECT_EQ(cluster.data_plane->blocks().free(), cluster.data_plane->blocks().total());
}

INSTANTIATE_TEST_SUITE_P(Predictors, DataPlaneTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Predictors, ServingTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Sharing, ServingTest, testing::ValuesIn(SharingCases()),
                         [](const auto& info) { return info.param.name; });

TEST(DataPlane, TouchesTheSelectorAtEveryFourthPositionWhereFourShareASelection) {
  for (const Case& c : SharingCases()) {
    const uint32_t interval = c.spec.reuse_interval;
    TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
    auto rank = cluster.NewRank();
    FakeSequence* sequence = rank->Prefill(1, 23, c.spec, 150);
    std::set<std::pair<uint32_t, size_t>> expected;
    std::set<uint32_t> anchors;
    for (uint32_t p = 150; p < 180; ++p) {
      ASSERT_TRUE(rank->Decode({sequence})) << c.name << ": " << rank->Errors();
      if (p != 150 && (c.spec.predictor == Predictor::kFixed || p % interval != 0)) continue;
      anchors.insert(p);
      for (size_t list = 0; list < sequence->lists.size(); ++list) {
        if (!Streams(c.spec, list)) expected.insert({p, list});
      }
    }
    cluster.PumpCacheRank();
    EXPECT_EQ(sequence->deltas, expected) << c.name;
    // A prediction from the past is made as soon as its queries are there: that of 180 may be one of them. A layer
    // whose heads all stream is never scored.
    uint64_t selecting_layers = 0;
    for (size_t layer = 0; layer < 3; ++layer) {
      selecting_layers += AnyList(2 * layer, 2, [&](size_t list) { return !Streams(c.spec, list); });
    }
    const uint64_t selections = cluster.metrics.Snapshot().selections / selecting_layers;
    if (c.spec.predictor == Predictor::kFixed) {
      EXPECT_EQ(selections, 0u);
    } else {
      EXPECT_EQ(selections, anchors.size() + (PredictsFromPast(c.spec.predictor) && 180 % interval == 0)) << c.name;
    }
    const int per_head = sequence->lists_per_head(), heads = 2 * per_head;
    for (const auto& [position, lists] : sequence->selections) {
      for (size_t list = 0; list < lists.size(); ++list) {
        const int layer = static_cast<int>(list) / heads, head = static_cast<int>(list) % heads;
        if (Streams(c.spec, list / per_head)) {
          ASSERT_TRUE(lists[list].empty());
        } else {
          ASSERT_EQ(cluster.CheckSelection(*sequence, position, layer, head, lists[list]), "") << c.name << position;
        }
      }
    }
    EXPECT_EQ(rank->Errors(), "") << c.name;
  }
}

TEST(DataPlane, RestartsBetweenAnchorsOrAtTheAnchorWhoseSelectionIsGone) {
  for (const Case& c : SharingCases()) {
    const Selections expected = Baseline(c.spec, 24, 150, 25);
    for (const uint32_t max_restart : {161u, 160u, 159u, 158u, 157u}) {
      TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
      auto rank = cluster.NewRank();
      FakeSequence* before = rank->Prefill(1, 24, c.spec, 150);
      for (int i = 0; i < 12; ++i) ASSERT_TRUE(rank->Decode({before}));
      cluster.PumpCacheRank();
      auto successor = cluster.NewRank();
      FakeSequence* after = successor->Attach(*before, max_restart);
      // With the selections of the newest two anchors any of their positions can be the next. Predictions from the past
      // are one position ahead.
      const uint32_t interval = c.spec.reuse_interval;
      const uint32_t newest = 161 + PredictsFromPast(c.spec.predictor), anchor = max_restart - max_restart % interval;
      const bool kept = c.spec.predictor == Predictor::kFixed || anchor + interval >= newest - newest % interval;
      EXPECT_EQ(after->next_position, kept ? max_restart : anchor) << c.name << max_restart;
      while (after->next_position < 175) ASSERT_TRUE(successor->Decode({after})) << c.name << successor->Errors();
      EXPECT_EQ(successor->Errors(), "") << c.name;
      for (const auto& [position, lists] : after->selections) {
        EXPECT_EQ(lists, expected.at(position)) << c.name << " from " << max_restart << " at " << position;
      }
    }
  }
}

TEST(DataPlane, SendsEveryRowEveryTimeWithFullTransfer) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  SelectionSpec spec = SmallSpec(Predictor::kExact);
  spec.transfer = Transfer::kFull;
  FakeSequence* sequence = rank->Prefill(1, 25, spec, 150);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(rank->Decode({sequence}));
  EXPECT_EQ(sequence->streamed_rows, 10u * 48 * sequence->lists.size());
  EXPECT_EQ(sequence->local_rows, 0u);
  EXPECT_EQ(cluster.metrics.Snapshot().selection_hits, 0u);
  EXPECT_EQ(rank->Errors(), "");
  EXPECT_EQ(sequence->selections, Baseline(SmallSpec(Predictor::kExact), 25, 150, 10));
}

TEST(DataPlane, KeepsNoMiddleRowsOfStreamingHeads) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  SelectionSpec spec = SmallSpec(Predictor::kExact);
  spec.head_budgets = {48, 0, 48, 0, 0, 0};
  FakeSequence* sequence = rank->Prefill(1, 26, spec, 380);
  cluster.PumpCacheRank();
  const KvBlockPool& blocks = cluster.data_plane->blocks();
  // Two lists of 380 rows; four of a block with the sinks, and of 192 rows: the ring of 128 and two blocks of slack.
  EXPECT_LE(blocks.used(), 2u * 12 + 4 * (1 + 7));
  EXPECT_LE(blocks.used() + blocks.reserved(), 2u * 13 + 4 * (1 + 6 + 2)) << "not what 400 positions of 6 lists take";
  for (int i = 0; i < 15; ++i) ASSERT_TRUE(rank->Decode({sequence}));
  EXPECT_LE(blocks.used(), 2u * 13 + 4 * (1 + 7));
  FakeSequence* fork = rank->Fork(*sequence, 2);
  ASSERT_TRUE(rank->Decode({sequence, fork}));
  auto successor = cluster.NewRank();
  // Further back than the rows that are left of the streaming heads the prompt has to come again.
  EXPECT_EQ(successor->Attach(*fork, 381)->next_position, 381u);
  ASSERT_TRUE(cluster.data_plane->ReleaseSequence(1, 1).ok());
  ASSERT_TRUE(cluster.data_plane->ReleaseSequence(2, 2).ok());
  EXPECT_EQ(blocks.free(), blocks.total());
  EXPECT_EQ(rank->Errors() + successor->Errors(), "");
}

TEST(DataPlane, RefillsEverythingWhereEverythingIsAttended) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  const SelectionSpec dense = [] {
    SelectionSpec spec = SmallSpec(Predictor::kDense);
    spec.budget_tokens = kUnlimitedBudget;
    return spec;
  }();
  FakeSequence* before = rank->Prefill(1, 16, dense, 300);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(rank->Decode({before}));
  auto successor = cluster.NewRank();
  FakeSequence* after = successor->Attach(*before);
  EXPECT_EQ(after->next_position, 305u);
  EXPECT_EQ(after->refilled.size(), 305u);
  ASSERT_TRUE(successor->Decode({after}));
  EXPECT_EQ(successor->Errors(), "");
  // The rank that lost the sequence is told at once.
  rank->Progress();
  EXPECT_EQ(rank->fenced, (std::vector<std::pair<uint64_t, uint32_t>>{{1, 2}}));
}

TEST(DataPlane, RefusesSpecificationsAndChannelsThatItCannotServe) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  SelectionSpec spec = SmallSpec(Predictor::kDepth);
  const auto open = [&](uint32_t link, const SelectionSpec& wanted, uint32_t positions) {
    return cluster.data_plane
        ->OpenSequence(
            link, {.sequence_id = 9, .spec = wanted, .max_positions = positions, .prompt_tokens = 1, .sampling = {}})
        .status()
        .code();
  };
  EXPECT_EQ(open(77, spec, 100), absl::StatusCode::kNotFound);
  auto rank = cluster.NewRank();
  EXPECT_EQ(open(rank->link(), spec, 10'000'000), absl::StatusCode::kOutOfRange);
  spec.budget_tokens = 300'000;
  EXPECT_EQ(open(rank->link(), spec, 1'000'000), absl::StatusCode::kInvalidArgument);
  // A frame takes the indices of one list of this budget, not those of two with masks.
  spec.budget_tokens = 130'000;
  EXPECT_EQ(open(rank->link(), spec, 1'000'000), absl::StatusCode::kOutOfRange);
  spec.list_per = ListPer::kQueryHead;
  EXPECT_EQ(open(rank->link(), spec, 1'000'000), absl::StatusCode::kInvalidArgument);
  spec = SmallSpec(Predictor::kDepth);
  spec.list_per = ListPer::kQueryHead;
  spec.correction = Correction::kRemote;
  EXPECT_EQ(open(rank->link(), spec, 100), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(cluster.metrics.Snapshot().admissions_refused, 2u);
}

}  // namespace
}  // namespace winnow::test
