// Prefill layer by layer is prefill: the rows that are sent, the logits of the prompt's end and what is decoded after
// it have the bits that chunks through all layers give.
#include <gtest/gtest.h>

#include <cstring>

#include "inference_rank/memory/prefill_mode.h"
#include "tests/inference_rank/two_ranks.h"

namespace winnow::test {
namespace {

SelectionSpec SpecOf(Predictor predictor) {
  SelectionSpec spec;
  spec.predictor = predictor;
  spec.budget_tokens = 32;
  spec.sink_tokens = 4;
  spec.recent_tokens = 16;
  spec.window = 4;
  return spec;
}

const TinyModel kModel{.num_layers = 3, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 16};

class LayeredPrefillTest : public testing::TestWithParam<Predictor> {};

TEST_P(LayeredPrefillTest, HasTheBitsOfPrefillThroughAllLayers) {
  TwoRanks ranks(kModel);
  uint64_t id = 1;
  for (const uint32_t prompt : {1u, 2u, 33u, 300u}) {
    constexpr uint32_t kDecodes = 5;
    Sequence* whole = ranks.Prefill(id++, prompt, SpecOf(GetParam()), prompt, kDecodes);
    const std::vector<float> logits = ranks.prompt_logits();
    std::vector<std::vector<float>> decoded;
    for (uint32_t i = 0; i < kDecodes; ++i) decoded.push_back(ranks.Decode({whole})[0]);
    for (const uint32_t chunk : {7u, 64u, 299u}) {
      Sequence* layered = ranks.PrefillByLayer(id++, prompt, SpecOf(GetParam()), prompt, kDecodes, chunk);
      EXPECT_EQ(ranks.prompt_logits(), logits) << prompt << " tokens in chunks of " << chunk;
      const KvLayout& layout = ranks.layout();
      for (uint32_t i = 0; i < kDecodes; ++i) EXPECT_EQ(ranks.Decode({layered})[0], decoded[i]) << "step " << i;
      for (int layer = 0; layer < layout.num_layers; ++layer) {
        for (int head = 0; head < layout.num_kv_heads; ++head) {
          for (uint32_t p = 0; p < prompt; ++p) {
            ASSERT_EQ(std::memcmp(ranks.StoredRow(*layered, layer, head, p), ranks.StoredRow(*whole, layer, head, p),
                                  layout.row_bytes()),
                      0)
                << "layer " << layer << " head " << head << " position " << p;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Predictors, LayeredPrefillTest,
                         testing::Values(Predictor::kDense, Predictor::kExact, Predictor::kTemporal,
                                         Predictor::kDepth));

TEST(PrefillSizing, ChoosesLayersWhereAPromptsKvWouldNeverFit) {
  const KvLayout layout{
      .num_layers = 8, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = Dtype::kBf16};
  const size_t token = 8 * 2 * 2 * 64 * 2;
  PrefillSizing sizing{.mode = PrefillMode::kAuto, .memory_bytes = 1000 * token, .hidden_size = 256};
  EXPECT_FALSE(sizing.ByLayer(layout, 1000));
  EXPECT_EQ(sizing.BytesNeeded(layout, 1000), 1000 * token);
  EXPECT_TRUE(sizing.ByLayer(layout, 1001));
  EXPECT_EQ(sizing.BytesNeeded(layout, 1001), 1001 * (token / 8 + 256 * 4));
  sizing.mode = PrefillMode::kLayered;
  EXPECT_TRUE(sizing.ByLayer(layout, 1));
  sizing.mode = PrefillMode::kChunked;
  EXPECT_FALSE(sizing.ByLayer(layout, 100'000));
}

}  // namespace
}  // namespace winnow::test
