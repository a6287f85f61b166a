#include "inference_rank/memory/prefill_region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace winnow {
namespace {

// The region never touches its memory: any address will do.
std::byte* const kMemory = reinterpret_cast<std::byte*>(uintptr_t{1} << 20);

TEST(PrefillRegion, HandsOutTheFirstPartThatFits) {
  PrefillRegion region({kMemory}, 1024);
  EXPECT_EQ(region.Take(256).value(), 0u);
  EXPECT_EQ(region.Take(512).value(), 256u);
  region.GiveBack(0);
  EXPECT_EQ(region.Take(200).value(), 0u) << "rounded up to a whole unit";
}

TEST(PrefillRegion, ShareIsTheSameInEveryMemory) {
  PrefillRegion region({kMemory, kMemory + 4096}, 1024);
  EXPECT_EQ(region.largest_free(), 2048u);
  EXPECT_EQ(region.Take(600).value(), 0u);
  EXPECT_EQ(region.largest_free(), 1024u) << "512 of each, rounded up";
  EXPECT_EQ(region.Take(1024).value(), 512u);
  EXPECT_EQ(region.memory(1), kMemory + 4096);
}

TEST(PrefillRegion, SaysHowMuchIsFreeInOnePiece) {
  PrefillRegion region({kMemory}, 1024);
  const size_t first = region.Take(256).value();
  (void)region.Take(256).value();
  region.GiveBack(first);
  EXPECT_EQ(region.largest_free(), 512u) << "256 in front and 512 behind, not together";
  const absl::Status refused = region.Take(600).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("512 are free"));
}

TEST(PrefillRegion, NeighboursMergeWhateverTheOrderTheyComeBackIn) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    PrefillRegion region({kMemory}, 8 * 256);
    std::vector<size_t> parts;
    for (int i = 0; i < 8; ++i) parts.push_back(region.Take(256).value());
    EXPECT_EQ(region.largest_free(), 0u);
    std::shuffle(parts.begin(), parts.end(), random);
    for (const size_t part : parts) region.GiveBack(part);
    EXPECT_EQ(region.largest_free(), 8 * 256u);
  }
}

TEST(PrefillRegion, PartsNeverOverlap) {
  std::mt19937 random(11);
  PrefillRegion region({kMemory}, 64 * 256);
  std::vector<std::pair<size_t, size_t>> held;
  for (int i = 0; i < 2000; ++i) {
    const size_t bytes = 1 + random() % 3000;
    if (absl::StatusOr<size_t> part = region.Take(bytes); part.ok()) {
      for (const auto& [other, other_bytes] : held) {
        EXPECT_TRUE(*part + bytes <= other || other + other_bytes <= *part);
      }
      EXPECT_LE(*part + bytes, 64 * 256u);
      held.emplace_back(*part, bytes);
    }
    while (!held.empty() && (held.size() > 8 || random() % 3 == 0)) {
      std::swap(held[random() % held.size()], held.back());
      region.GiveBack(held.back().first);
      held.pop_back();
    }
  }
}

}  // namespace
}  // namespace winnow
