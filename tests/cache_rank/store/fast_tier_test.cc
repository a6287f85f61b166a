#include "cache_rank/store/fast_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>

namespace winnow {
namespace {

constexpr size_t kCopyBytes = 256;

FastTier::Options Of(size_t memory_bytes, double high = 1, double low = 1) {
  return {.memory_bytes = memory_bytes, .high_watermark = high, .low_watermark = low};
}

TEST(FastTier, GivesUpTheCopyThatWasReadLongestAgo) {
  FastTier tier(Of(3 * kCopyBytes), kCopyBytes);
  for (const uint32_t block : {10, 11, 12}) ASSERT_NE(tier.Admit(block), nullptr);
  EXPECT_NE(tier.Touch(10), nullptr);
  ASSERT_NE(tier.Admit(13), nullptr);
  EXPECT_EQ(tier.Find(11), nullptr);
  EXPECT_NE(tier.Find(10), nullptr);
  EXPECT_EQ(tier.counts().blocks_evicted, 1u);
}

TEST(FastTier, GoesDownToTheLowWatermarkOnceItWouldPassTheHighOne) {
  FastTier tier(Of(10 * kCopyBytes, 0.8, 0.5), kCopyBytes);
  for (uint32_t block = 0; block < 8; ++block) ASSERT_NE(tier.Admit(block), nullptr);
  EXPECT_EQ(tier.counts().blocks_evicted, 0u);
  ASSERT_NE(tier.Admit(8), nullptr);
  EXPECT_EQ(tier.copied_bytes(), 5 * kCopyBytes) << "the new one is one of five";
  EXPECT_EQ(tier.counts().blocks_evicted, 4u);
}

TEST(FastTier, KeepsPinnedCopiesAndRefusesWhatDoesNotFitBesideThem) {
  FastTier tier(Of(2 * kCopyBytes), kCopyBytes);
  for (const uint32_t block : {0, 1}) {
    ASSERT_NE(tier.Admit(block), nullptr);
    tier.Pin(block);
  }
  EXPECT_EQ(tier.Admit(2), nullptr);
  tier.Pin(0);
  tier.Unpin(0);
  EXPECT_EQ(tier.Admit(2), nullptr) << "still pinned once";
  tier.Unpin(1);
  EXPECT_NE(tier.Admit(2), nullptr);
  EXPECT_EQ(tier.Find(1), nullptr);
  tier.Unpin(0);
}

TEST(FastTier, PromisesIndexMemoryThatCopiesThenLose) {
  FastTier tier(Of(4 * kCopyBytes), kCopyBytes);
  ASSERT_TRUE(tier.Reserve(2 * kCopyBytes).ok());
  EXPECT_EQ(tier.room_for_copies(), 2 * kCopyBytes);
  EXPECT_EQ(tier.Reserve(3 * kCopyBytes).code(), absl::StatusCode::kResourceExhausted);
  for (uint32_t block = 0; block < 4; ++block) ASSERT_NE(tier.Admit(block), nullptr) << "until the index comes";
  std::byte* index = tier.AllocateIndex(kCopyBytes + kCopyBytes / 2);
  for (size_t i = 0; i < kCopyBytes + kCopyBytes / 2; ++i) ASSERT_EQ(index[i], std::byte{0});
  EXPECT_EQ(tier.copied_bytes(), 2 * kCopyBytes);
  EXPECT_EQ(tier.reserved_bytes(), kCopyBytes / 2);
  std::fill_n(index, kCopyBytes + kCopyBytes / 2, std::byte{1});
  tier.FreeIndex(index, kCopyBytes + kCopyBytes / 2, /*keep_reserved=*/true);
  EXPECT_EQ(tier.reserved_bytes(), 2 * kCopyBytes);
  index = tier.AllocateIndex(kCopyBytes + kCopyBytes / 2);
  EXPECT_EQ(index[0], std::byte{0}) << "zeroed again";
  tier.FreeIndex(index, kCopyBytes + kCopyBytes / 2, /*keep_reserved=*/false);
  tier.Unreserve(tier.reserved_bytes());
  EXPECT_EQ(tier.free_index_bytes(), 4 * kCopyBytes);
}

// What the tier has to do, in the plainest terms: a list of copies in the order of their use.
struct Model {
  size_t capacity, high, low;
  std::list<uint32_t> order = {};  // unpinned, oldest first
  std::map<uint32_t, int> pins = {};
  size_t index = 0, reserved = 0;
  uint64_t loaded = 0, evicted = 0;

  size_t used() const { return index + (order.size() + pins.size()) * kCopyBytes; }
  bool holds(uint32_t block) const {
    return pins.contains(block) || std::find(order.begin(), order.end(), block) != order.end();
  }
  void MakeRoom(size_t bytes) {
    if (used() + bytes <= high) return;
    while (used() + bytes > low && !order.empty()) {
      order.pop_front();
      ++evicted;
    }
  }
};

// 20,000 random operations; after each the counts are those of the model, and copies hold what was written to them.
TEST(FastTier, AgreesWithAListInTheOrderOfUse) {
  std::mt19937 random(7);
  const auto draw = [&](uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random); };
  const FastTier::Options options = Of(40 * kCopyBytes, 0.9, 0.7);
  FastTier tier(options, kCopyBytes);
  Model model{.capacity = 40 * kCopyBytes, .high = 36 * kCopyBytes, .low = 28 * kCopyBytes};
  std::vector<std::pair<std::byte*, size_t>> indexes;
  uint64_t refused = 0;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t block = draw(60);
    switch (draw(8)) {
      case 0:
      case 1:
      case 2: {
        std::byte* copy = tier.Touch(block);
        ASSERT_EQ(copy != nullptr, model.holds(block));
        if (copy != nullptr) {
          ASSERT_EQ(copy[kCopyBytes - 1], static_cast<std::byte>(block));
          if (!model.pins.contains(block)) {
            model.order.remove(block);
            model.order.push_back(block);
          }
          break;
        }
        copy = tier.Admit(block);
        model.MakeRoom(kCopyBytes);
        const bool fits = model.used() + kCopyBytes <= model.high;
        ASSERT_EQ(copy != nullptr, fits);
        refused += !fits;
        if (!fits) break;
        std::fill_n(copy, kCopyBytes, static_cast<std::byte>(block));
        model.order.push_back(block);
        ++model.loaded;
        break;
      }
      case 3:  // at most a quarter of the tier is pinned
        if (!model.holds(block) || (model.pins.size() >= 10 && !model.pins.contains(block))) break;
        tier.Pin(block);
        model.order.remove(block);
        ++model.pins[block];
        break;
      case 4:
        if (!model.pins.contains(block)) break;
        tier.Unpin(block);
        if (--model.pins[block] > 0) break;
        model.pins.erase(block);
        model.order.push_back(block);
        break;
      case 5:
        if (model.pins.contains(block)) break;
        tier.Drop(block);
        model.order.remove(block);
        break;
      case 6: {
        const size_t bytes = kCopyBytes / 2 * (1 + draw(2));
        const bool fits = model.index + model.reserved + bytes <= model.capacity;
        ASSERT_EQ(tier.Reserve(bytes).ok(), fits);
        if (!fits) break;
        if (model.index + bytes + model.pins.size() * kCopyBytes > model.capacity) {  // pins are for moments only
          tier.Unreserve(bytes);
          break;
        }
        indexes.emplace_back(tier.AllocateIndex(bytes), bytes);
        model.MakeRoom(bytes);
        model.index += bytes;
        break;
      }
      default: {
        if (indexes.empty()) break;
        std::swap(indexes[draw(static_cast<uint32_t>(indexes.size()))], indexes.back());
        const auto [index, bytes] = indexes.back();
        indexes.pop_back();
        const bool keeps = draw(4) == 0;
        tier.FreeIndex(index, bytes, keeps);
        model.index -= bytes;
        if (keeps) tier.Unreserve(bytes);
        break;
      }
    }
    ASSERT_EQ(tier.copied_bytes(), (model.order.size() + model.pins.size()) * kCopyBytes);
    ASSERT_EQ(tier.index_bytes(), model.index);
    ASSERT_EQ(tier.reserved_bytes(), model.reserved);
    ASSERT_EQ(tier.counts().blocks_loaded, model.loaded);
    ASSERT_EQ(tier.counts().blocks_evicted, model.evicted);
    ASSERT_LE(tier.index_bytes() + tier.copied_bytes(), tier.capacity_bytes());
  }
  EXPECT_GT(model.evicted, 100u);
  EXPECT_GT(model.loaded, 1000u);
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace winnow
