// Layers with a sliding window through the real decode step and a real cache rank: they attend to their window whatever
// the specification, and ask for nothing.
#include "common/selection/window_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/inference_rank/two_ranks.h"
#include "tests/support/reference_model.h"

namespace winnow::test {
namespace {

using Logits = std::vector<std::vector<float>>;

constexpr uint32_t kPrompt = 260, kDecodes = 40;

SelectionSpec Dense() {
  SelectionSpec spec;
  spec.predictor = Predictor::kDense;
  spec.budget_tokens = kUnlimitedBudget;
  return spec;
}

SelectionSpec Exact(uint32_t budget) {
  SelectionSpec spec;
  spec.predictor = Predictor::kExact;
  spec.budget_tokens = budget;
  spec.recent_tokens = 32;
  return spec;
}

struct Outcome {
  std::vector<uint32_t> tokens;  // of prompt and answer
  Logits logits;                 // after the prompt and after each token of the answer
};

Outcome Decode(const TinyModel& model, const SelectionSpec& asked) {
  TwoRanks ranks(model);
  const SelectionSpec spec = WithWindowLayers(asked, ranks.config().windows, ranks.config().num_kv_heads);
  Sequence* sequence = ranks.Prefill(1, 5, spec, kPrompt, kDecodes);
  Outcome outcome;
  outcome.tokens = sequence->prompt;
  outcome.tokens.insert(outcome.tokens.end(), sequence->generated.begin(), sequence->generated.end());
  outcome.logits.push_back(ranks.prompt_logits());
  for (uint32_t i = 0; i < kDecodes; ++i) outcome.logits.push_back(ranks.Decode({sequence})[0]);
  EXPECT_TRUE(sequence->failure.ok()) << sequence->failure;
  EXPECT_TRUE(ranks.malformed.empty()) << ranks.malformed[0];
  return outcome;
}

const TinyModel kAllWindows{
    .family = ModelFamily::kMistral, .num_layers = 2, .extra_fields = {{"sliding_window", 50}}, .storage = Dtype::kF32};
// Layers in turn with a window and without, RoPE of their own, and heads that share nothing.
const TinyModel kGemma{.family = ModelFamily::kGemma3,
                       .num_layers = 4,
                       .num_query_heads = 4,
                       .num_kv_heads = 4,
                       .tie_word_embeddings = true,
                       .storage = Dtype::kF32};
const TinyModel kGptOss{.family = ModelFamily::kGptOss,
                        .num_layers = 4,
                        .num_query_heads = 4,
                        .num_kv_heads = 4,
                        .attention_bias = true,
                        .storage = Dtype::kF32};

TEST(WindowLayersTest, WindowsAloneAreWhatDenseAttendsTo) {
  const Logits dense = Decode(kAllWindows, Dense()).logits;
  EXPECT_EQ(Decode(kAllWindows, Exact(16)).logits, dense) << "there is nothing to select";
}

TEST(WindowLayersTest, ABudgetThatCoversTheContextGivesTheBitsOfDense) {
  for (const TinyModel& model : {kGemma, kGptOss}) {
    EXPECT_EQ(Decode(model, Exact(512)).logits, Decode(model, Dense()).logits) << ModelFamilyName(model.family);
  }
}

// Layers without a window attend to sinks, the best rows and the newest ones, the others to their windows.
TEST(WindowLayersTest, OtherLayersSelect) {
  for (const TinyModel& model : {kGemma, kGptOss}) {
    SCOPED_TRACE(ModelFamilyName(model.family));
    const Outcome outcome = Decode(model, Exact(16));
    const TempDir directory;
    WriteTinyCheckpoint(model, directory.path());
    const ModelConfig config = LoadModelConfig(directory.path()).value();
    ReferenceModel reference(*Checkpoint::Open(directory.path()).value(), config);
    const SelectionSpec spec = WithWindowLayers(Exact(16), config.windows, config.num_kv_heads);
    const auto attended = [&](int, int, std::span<const double> scores) {
      const auto position = static_cast<uint32_t>(scores.size() - 1);
      const uint32_t recent = RecentStart(position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
      std::vector<uint32_t> between(recent - spec.sink_tokens), all(scores.size());
      std::iota(all.begin(), all.end(), 0u);
      std::iota(between.begin(), between.end(), spec.sink_tokens);
      std::stable_sort(between.begin(), between.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
      between.resize(spec.budget_tokens);
      std::erase_if(all, [&](uint32_t p) {
        const bool chosen = std::find(between.begin(), between.end(), p) != between.end();
        return p >= spec.sink_tokens && p < recent && !chosen;
      });
      return all;
    };
    for (uint32_t p = 0; p < kPrompt + kDecodes; ++p) {
      reference.Append(outcome.tokens[p], p < kPrompt ? ReferenceModel::Attended() : attended);
      if (p + 1 < kPrompt) continue;
      const std::vector<float> expected = reference.Logits();
      const std::vector<float>& logits = outcome.logits[p + 1 - kPrompt];
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(logits[i], expected[i], 2e-3) << "position " << p << ", token " << i;
      }
    }
  }
}

}  // namespace
}  // namespace winnow::test
