#include "router/generation/answer_length.h"

#include <gtest/gtest.h>

#include "common/selection/presets.h"

namespace winnow {
namespace {

ServedModel Model(uint32_t context, uint32_t stored) {
  ServedModel model;
  model.max_context_tokens = context;
  model.max_stored_positions = stored;
  return model;
}
SelectionSpec Spec(const char* preset) {
  return FindPreset(preset).value();
}

TEST(AnswerLength, IsWhatIsLeftOfTheContext) {
  EXPECT_EQ(DefaultMaxTokens(40, Spec("winnow"), Model(100, 0)), 60u) << "nothing is known of the cache ranks";
  EXPECT_EQ(DefaultMaxTokens(40, Spec("winnow"), Model(100, 128)), 60u);
  EXPECT_EQ(DefaultMaxTokens(99, Spec("winnow"), Model(100, 128)), 1u);
}

TEST(AnswerLength, IsWhatCacheRanksHaveRoomForWhereThatIsLess) {
  EXPECT_EQ(DefaultMaxTokens(40, Spec("depth"), Model(1000, 96)), 56u);
  EXPECT_EQ(DefaultMaxTokens(95, Spec("dense"), Model(1000, 96)), 1u);
  EXPECT_EQ(DefaultMaxTokens(96, Spec("depth"), Model(1000, 96)), 904u) << "they say that there is no room";
}

// For each list 100 blocks: of n positions n / 32 of rows, and n / 16 bounds of pages in blocks of 32.
TEST(AnswerLength, LeavesRoomForIndexesOfPages) {
  const uint32_t most = DefaultMaxTokens(1, Spec("quest"), Model(100'000, 3200)) + 1;
  EXPECT_EQ(most % 32, 0u);
  EXPECT_LE(most / 32 + (most / 16 + 31) / 32, 100u);
  EXPECT_GE(most / 32, 85u);
  const uint32_t with_cuboids = DefaultMaxTokens(1, Spec("sparseserve"), Model(100'000, 3200)) + 1;
  EXPECT_LE(with_cuboids / 32 + 2 * ((with_cuboids / 32 + 31) / 32), 100u);
  EXPECT_GE(with_cuboids / 32, 90u);
}

}  // namespace
}  // namespace winnow
