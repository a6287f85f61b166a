// Latent attention and a model's own indexer through the real decode step and a real cache rank, against a plain
// forward pass that expands keys and values of every head, and attends to what a sort of the indexer's sums says.
#include <gtest/gtest.h>

#include "common/selection/indexer_spec.h"
#include "common/selection/presets.h"
#include "tests/inference_rank/two_ranks.h"
#include "tests/support/reference_model.h"

namespace winnow::test {
namespace {

using Logits = std::vector<std::vector<float>>;

constexpr uint32_t kTopK = 48;  // of the tiny models

SelectionSpec Of(const char* preset, uint32_t budget = 2048) {
  SelectionSpec spec = FindPreset(preset).value();
  if (!IsDense(spec)) spec.budget_tokens = budget;
  return WithIndexer(spec, kTopK);
}

const TinyModel kV3{.family = ModelFamily::kDeepseekV3, .num_layers = 3, .storage = Dtype::kF32};
const TinyModel kV32{.family = ModelFamily::kDeepseekV32, .num_layers = 3, .storage = Dtype::kF32};
const TinyModel kGlm{.family = ModelFamily::kGlmMoeDsa, .num_layers = 3, .storage = Dtype::kF32};

Logits DecodeAll(TwoRanks& ranks, Sequence* sequence, uint32_t decodes) {
  Logits logits{ranks.prompt_logits()};
  for (uint32_t i = 0; i < decodes; ++i) logits.push_back(ranks.Decode({sequence})[0]);
  EXPECT_TRUE(sequence->failure.ok()) << sequence->failure;
  EXPECT_TRUE(ranks.malformed.empty()) << ranks.malformed[0];
  return logits;
}

Logits Decode(const TinyModel& model, const SelectionSpec& spec, uint32_t prompt, uint32_t decodes, int shards = 1) {
  TwoRanks ranks(model, std::chrono::seconds(20), shards);
  return DecodeAll(ranks, ranks.Prefill(1, 5, spec, prompt, decodes), decodes);
}

void ExpectReference(const TinyModel& model, const SelectionSpec& spec, uint32_t prompt, uint32_t decodes) {
  TwoRanks ranks(model);
  Sequence* sequence = ranks.Prefill(1, 5, spec, prompt, decodes);
  const Logits logits = DecodeAll(ranks, sequence, decodes);
  const TempDir directory;
  WriteTinyCheckpoint(model, directory.path());
  ReferenceModel reference(*Checkpoint::Open(directory.path()).value(), ranks.config());
  for (const uint32_t token : sequence->prompt) reference.Append(token);
  for (uint32_t i = 0; i <= decodes; ++i) {
    const std::vector<float> expected = reference.Logits();
    for (size_t j = 0; j < expected.size(); ++j) ASSERT_NEAR(logits[i][j], expected[j], 2e-3) << "step " << i;
    if (i < decodes) reference.Append(sequence->generated[i]);
  }
}

TEST(LatentDecode, AttendsAsHeadsWithKeysAndValuesOfTheirOwnDo) {
  ExpectReference(kV3, Of("dense"), 140, 12);
}

// From everything to what the indexer chooses while an answer grows, and from the first position of an answer on.
TEST(LatentDecode, TheCacheRankChoosesWhatTheIndexerOfTheModelDoes) {
  for (const TinyModel& model : {kV32, kGlm}) {
    SCOPED_TRACE(ModelFamilyName(model.family));
    ExpectReference(model, Of("native"), 30, 60);
    ExpectReference(model, Of("native"), 230, 20);
  }
}

TEST(LatentDecode, ABudgetThatCoversTheContextGivesTheBitsOfDense) {
  for (const TinyModel& model : {kV3, kV32}) {
    const Logits dense = Decode(model, Of("dense"), 200, 10);
    for (const char* preset : {"winnow", "exact-token", "depth", "quest", "psa"}) {
      EXPECT_EQ(Decode(model, Of(preset), 200, 10), dense) << preset;
    }
    EXPECT_NE(Decode(model, Of("exact-token", 16), 200, 10), dense);
  }
}

TEST(LatentDecode, LayersOnSeveralCacheRanksGiveTheSameBits) {
  for (const char* preset : {"native", "exact-token", "quest", "depth"}) {
    EXPECT_EQ(Decode(kV32, Of(preset, 32), 200, 20, 3), Decode(kV32, Of(preset, 32), 200, 20)) << preset;
  }
}

// One plan has rows of the model's indexer and of others, which send different queries.
TEST(LatentDecode, RowsOfSeveralSelectionsShareAStep) {
  const std::vector<SelectionSpec> specs = {Of("native"), Of("exact-token", 32), Of("dense"), Of("async-token", 32)};
  TwoRanks ranks(kV32);
  std::vector<Sequence*> sequences;
  std::vector<Logits> together;
  for (size_t i = 0; i < specs.size(); ++i) {
    sequences.push_back(ranks.Prefill(i + 1, 5, specs[i], 200, 12));
    together.push_back({ranks.prompt_logits()});
  }
  for (int step = 0; step < 12; ++step) {
    const Logits rows = ranks.Decode(sequences);
    for (size_t i = 0; i < specs.size(); ++i) together[i].push_back(rows[i]);
  }
  EXPECT_TRUE(ranks.malformed.empty()) << ranks.malformed[0];
  for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(together[i], Decode(kV32, specs[i], 200, 12)) << specs[i].preset;
}

// What the indexer chooses is resident for the greatest part from one position to the next, and the newest rows are.
TEST(LatentDecode, OnlyRowsThatAreNotResidentTravel) {
  TwoRanks ranks(kV32);
  Sequence* sequence = ranks.Prefill(1, 5, Of("native"), 230, 40);
  DecodeAll(ranks, sequence, 40);
  EXPECT_EQ(sequence->selection_lookups, 3u * 40 * kTopK);
  EXPECT_EQ(sequence->attended_rows, 3u * 40 * kTopK);
  EXPECT_GT(sequence->selection_hits, sequence->selection_lookups / 3);
}

}  // namespace
}  // namespace winnow::test
