#include "inference_rank/sequence/prompt_report.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kPrompt = 100;
constexpr int kLayers = 4;

TEST(PromptReport, IsDueAtOnceAndThenAFewTimesASecond) {
  PromptReport report;
  const PromptReport::Clock::time_point start = PromptReport::Clock::now();
  int reports = 0;
  for (int ms = 0; ms < 1000; ++ms) reports += report.IsDue(start + milliseconds(ms));
  EXPECT_EQ(reports, 4);
}

class ComputedTokens : public ::testing::Test {
 protected:
  static PrefillArena Arena(uint32_t hidden_size) {
    const KvLayout layout{.num_layers = kLayers, .num_kv_heads = 1, .head_dim = 8};
    return *PrefillArena::Create(layout, kPrompt, hidden_size);
  }
};

TEST_F(ComputedTokens, AreThoseBelowTheNextPosition) {
  EXPECT_EQ(ComputedPromptTokens(Arena(0), kLayers, 37, 32), 37u);
}

TEST_F(ComputedTokens, OfAChunkCutByLayerCountByTheirLayers) {
  PrefillArena arena = Arena(0);
  arena.chunk_first = 40;
  arena.chunk_end = 60;
  arena.layer = 1;
  arena.layer_position = 50;  // half of the chunk has gone through two layers, the rest through one
  EXPECT_EQ(ComputedPromptTokens(arena, kLayers, 40, 32), 40 + (20 + 10) / 4);
}

TEST_F(ComputedTokens, OfAPromptByLayerCountByTheirLayersBehindThoseThatWereCached) {
  PrefillArena arena = Arena(16);
  arena.layer_position = 20;
  EXPECT_EQ(ComputedPromptTokens(arena, kLayers, 20, 20), 20u);
  arena.layer = 3;
  arena.layer_position = kPrompt;
  EXPECT_EQ(ComputedPromptTokens(arena, kLayers, kPrompt, 20), kPrompt);
  arena.layer = 2;
  arena.layer_position = 0;  // the next layer, whose cached rows have not been asked for
  EXPECT_EQ(ComputedPromptTokens(arena, kLayers, 20, 20), 20 + 2 * 80 / 4);
}

}  // namespace
}  // namespace winnow
