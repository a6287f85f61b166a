#include <gtest/gtest.h>

#include <map>
#include <random>

#include "transport/buddy_arena.h"

namespace winnow {
namespace {

constexpr size_t kBytes = size_t{1} << 20;
constexpr size_t kSmallest = 4096;

TEST(BuddyArenaTest, PartsAreAlignedToTheirSizeAndDoNotOverlap) {
  BuddyArena arena(kBytes, kSmallest);
  std::map<size_t, size_t> parts;  // offset -> rounded bytes
  std::mt19937 random(3);
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 3 != 0) {
      const size_t bytes = random() % (random() % 4 == 0 ? 200'000 : 9'000) + 1;
      const std::optional<size_t> offset = arena.Take(bytes);
      if (!offset.has_value()) continue;
      const size_t rounded = arena.RoundedBytes(bytes);
      ASSERT_GE(rounded, bytes);
      ASSERT_EQ(*offset % rounded, 0u);
      ASSERT_LE(*offset + rounded, kBytes);
      const auto next = parts.lower_bound(*offset);
      ASSERT_TRUE(next == parts.end() || *offset + rounded <= next->first);
      ASSERT_TRUE(next == parts.begin() || std::prev(next)->first + std::prev(next)->second <= *offset);
      parts.emplace(*offset, rounded);
    } else if (!parts.empty()) {
      const auto part = std::next(parts.begin(), random() % parts.size());
      ASSERT_TRUE(arena.GiveBack(part->first));
      parts.erase(part);
    }
  }
  // What was cut is whole again.
  for (const auto& [offset, bytes] : parts) ASSERT_TRUE(arena.GiveBack(offset));
  EXPECT_EQ(arena.Take(kBytes), 0u);
  EXPECT_EQ(arena.Take(1), std::nullopt);
}

TEST(BuddyArenaTest, TakesTheWholeRangeInAnySize) {
  for (size_t bytes = kSmallest; bytes <= kBytes; bytes *= 2) {
    BuddyArena arena(kBytes, kSmallest);
    for (size_t i = 0; i < kBytes / bytes; ++i) EXPECT_EQ(arena.Take(bytes), i * bytes);
    EXPECT_EQ(arena.Take(1), std::nullopt);
  }
  EXPECT_EQ(BuddyArena(kBytes, kSmallest).Take(kBytes + 1), std::nullopt);
}

TEST(BuddyArenaTest, KnowsWhatIsNotOut) {
  BuddyArena arena(kBytes, kSmallest);
  EXPECT_FALSE(arena.GiveBack(0));
  ASSERT_EQ(arena.Take(kSmallest), 0u);
  ASSERT_EQ(arena.Take(4 * kSmallest), 4 * kSmallest);
  EXPECT_FALSE(arena.GiveBack(5 * kSmallest)) << "inside of a part";
  EXPECT_FALSE(arena.GiveBack(1));
  EXPECT_FALSE(arena.GiveBack(kBytes));
  EXPECT_TRUE(arena.GiveBack(0));
  EXPECT_FALSE(arena.GiveBack(0)) << "twice";
}

}  // namespace
}  // namespace winnow
