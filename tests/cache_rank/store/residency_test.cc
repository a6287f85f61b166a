#include "cache_rank/store/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace winnow {
namespace {

constexpr uint32_t kMaxPositions = 4000;
constexpr uint32_t kRing = 128;

// The other side: a pool that only does what deltas say.
struct Peer {
  std::map<uint32_t, uint32_t> position_at;  // by pool index

  // Applies a delta for `selected` at `position`, checking that it names each row once and only rows that are missing.
  void Apply(const HeadDelta& delta, const std::vector<uint32_t>& selected, uint32_t position, uint32_t pool_slots) {
    std::set<uint32_t> resident;
    for (const auto& [index, held] : position_at) resident.insert(held);
    std::set<uint32_t> written;
    auto write = [&](uint32_t index, uint32_t row_position) {
      EXPECT_LT(index, pool_slots);
      EXPECT_TRUE(written.insert(index).second) << "index written twice";
      EXPECT_FALSE(resident.count(row_position)) << "row " << row_position << " was resident";
      position_at[index] = row_position;
    };
    for (const wire::LocalRow& row : delta.local) {
      EXPECT_GT(row.position + kRing, position) << "left the ring";
      write(row.pool_index, row.position);
    }
    ASSERT_EQ(delta.streamed.size(), delta.streamed_positions.size());
    for (size_t i = 0; i < delta.streamed.size(); ++i) {
      EXPECT_LE(delta.streamed_positions[i] + kRing, position) << "could have been copied";
      write(delta.streamed[i], delta.streamed_positions[i]);
    }
    ASSERT_EQ(delta.selected.size(), selected.size());
    for (size_t i = 0; i < selected.size(); ++i) EXPECT_EQ(position_at[delta.selected[i]], selected[i]);
  }
};

void Update(HeadResidency& residency, const std::vector<uint32_t>& selected, uint32_t position, uint32_t ring_tokens,
            HeadDelta* delta) {
  ScratchBuffer<uint32_t> scratch;
  residency.Update(**CpuKernels(), selected, position, ring_tokens, scratch, delta);
}

std::vector<uint32_t> RandomSelection(std::mt19937& random, uint32_t count, uint32_t first, uint32_t last) {
  std::set<uint32_t> positions;
  while (positions.size() < std::min(count, last - first)) {
    // Half of the draws come from a narrow range, so that selections repeat themselves.
    const uint32_t span = random() % 2 == 0 ? last - first : std::min(last - first, 100u);
    positions.insert(first + random() % span);
  }
  return {positions.begin(), positions.end()};
}

TEST(HeadResidency, KnowsWhatThePeerHoldsOverRandomSelectionsAndGrants) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    HeadResidency residency;
    residency.Reset(kMaxPositions);
    Peer peer;
    uint32_t pool = 64;
    residency.Resize(pool);
    for (uint32_t position = 300; position < 500; ++position) {
      if (random() % 10 == 0) {
        pool = 32 + random() % 200;
        residency.Resize(pool);
        std::erase_if(peer.position_at, [&](const auto& entry) { return entry.first >= pool; });
      }
      const auto selected = RandomSelection(random, 1 + random() % 32, 4, position - 40);
      HeadDelta delta;
      Update(residency, selected, position, kRing, &delta);
      peer.Apply(delta, selected, position, pool);
      for (uint32_t i = 0; i < pool; ++i) {
        const auto held = peer.position_at.find(i);
        EXPECT_EQ(residency.position_at(i), held == peer.position_at.end() ? HeadResidency::kNone : held->second);
      }
      if (HasFailure()) FAIL() << "seed " << seed << " position " << position;
    }
  }
}

TEST(HeadResidency, EvictsTheLeastRecentlySelected) {
  HeadResidency residency;
  residency.Reset(kMaxPositions);
  residency.Resize(4);
  HeadDelta delta;
  Update(residency, std::vector<uint32_t>{10, 11, 12, 13}, 1000, kRing, &delta);
  EXPECT_EQ(delta.streamed, (std::vector<uint32_t>{0, 1, 2, 3}));  // empty indices in order
  Update(residency, std::vector<uint32_t>{10, 12}, 1001, kRing, &delta);
  EXPECT_TRUE(delta.streamed.empty());
  Update(residency, std::vector<uint32_t>{12, 20, 21}, 1002, kRing, &delta);
  EXPECT_EQ(residency.position_at(0), 10u) << "selected more recently than 11 and 13";
  EXPECT_EQ(delta.selected[0], 2u);
  EXPECT_EQ(delta.streamed_positions, (std::vector<uint32_t>{20, 21}));
}

TEST(HeadResidency, VictimsAreTheOldestAndNeverSelectedOverRandomSelections) {
  std::mt19937 random(7);
  HeadResidency residency;
  residency.Reset(kMaxPositions);
  constexpr uint32_t kPool = 96;
  residency.Resize(kPool);
  std::map<uint32_t, uint32_t> last_use;  // by pool index
  for (uint32_t position = 300; position < 400; ++position) {
    const auto selected = RandomSelection(random, 1 + random() % 64, 4, position - 40);
    std::vector<uint32_t> before(kPool);
    for (uint32_t i = 0; i < kPool; ++i) before[i] = residency.position_at(i);
    HeadDelta delta;
    Update(residency, selected, position, kRing, &delta);
    std::set<uint32_t> replaced(delta.streamed.begin(), delta.streamed.end());
    for (const wire::LocalRow& row : delta.local) replaced.insert(row.pool_index);
    const std::set<uint32_t> wanted(selected.begin(), selected.end());
    // Age of an index that is not part of this selection; what holds nothing is the oldest.
    const auto age = [&](uint32_t i) { return before[i] == HeadResidency::kNone ? -1 : int64_t{last_use[i]}; };
    for (uint32_t victim : replaced) {
      EXPECT_FALSE(wanted.count(before[victim])) << "a selected row was evicted";
      for (uint32_t i = 0; i < kPool; ++i) {
        if (replaced.count(i) || wanted.count(before[i])) continue;
        EXPECT_TRUE(age(victim) < age(i) || (age(victim) == age(i) && victim < i)) << victim << " before " << i;
      }
    }
    for (uint32_t index : delta.selected) last_use[index] = position;
  }
}

TEST(HeadResidency, MovesRowsAheadToIndicesThatNobodyNeedsAndKnowsThemAfterwards) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    HeadResidency residency;
    residency.Reset(kMaxPositions);
    const uint32_t pool = 32 + random() % 64;
    residency.Resize(pool);
    Peer peer;
    PrefetchScratch scratch;
    uint64_t hits = 0, prefetched = 0;
    std::set<uint32_t> ahead;  // pool indices of rows moved ahead and not selected since
    for (uint32_t position = 300; position < 400; ++position) {
      const auto selected = RandomSelection(random, 1 + random() % 32, 4, position - 40);
      HeadDelta delta;
      Update(residency, selected, position, kRing, &delta);
      std::set<uint32_t> written(delta.streamed.begin(), delta.streamed.end());
      for (const wire::LocalRow& row : delta.local) written.insert(row.pool_index);
      uint32_t expected_hits = 0;
      for (uint32_t index : delta.selected) expected_hits += ahead.count(index) && !written.count(index);
      EXPECT_EQ(delta.prefetch_hits, expected_hits);
      hits += expected_hits;
      for (uint32_t index : delta.selected) ahead.erase(index);
      peer.Apply(delta, selected, position, pool);

      const auto wanted = RandomSelection(random, 1 + random() % 48, 4, position - 39);
      HeadDelta plan;
      residency.PlanPrefetch(**CpuKernels(), wanted, position, kRing, scratch, &plan);
      // By brute force: rows that lack, and indices that are free to be taken.
      std::set<uint32_t> resident;
      for (const auto& [index, row] : peer.position_at) resident.insert(row);
      std::vector<uint32_t> lacking;
      for (uint32_t row : wanted) {
        if (!resident.count(row) && row + kRing <= position + 1) lacking.push_back(row);
      }
      const std::set<uint32_t> kept(delta.selected.begin(), delta.selected.end());
      uint32_t free = 0;
      const std::set<uint32_t> wanted_set(wanted.begin(), wanted.end());
      const auto is_free = [&](uint32_t index) {
        return !kept.count(index) && !(peer.position_at.count(index) && wanted_set.count(peer.position_at[index]));
      };
      for (uint32_t i = 0; i < pool; ++i) free += is_free(i);
      lacking.resize(std::min<size_t>(lacking.size(), free));
      EXPECT_EQ(plan.streamed_positions, lacking);
      ASSERT_EQ(plan.streamed.size(), lacking.size());
      for (uint32_t index : plan.streamed) EXPECT_TRUE(is_free(index)) << index;
      EXPECT_EQ(std::set<uint32_t>(plan.streamed.begin(), plan.streamed.end()).size(), lacking.size());
      // Some are posted, the rest is dropped.
      const size_t posted = lacking.empty() ? 0 : random() % (lacking.size() + 1);
      for (size_t i = 0; i < posted; ++i) {
        residency.CommitPrefetch(plan.streamed[i], lacking[i], position);
        peer.position_at[plan.streamed[i]] = lacking[i];
        ahead.insert(plan.streamed[i]);
      }
      prefetched += posted;
      for (uint32_t i = 0; i < pool; ++i) {
        const auto held = peer.position_at.find(i);
        EXPECT_EQ(residency.position_at(i), held == peer.position_at.end() ? HeadResidency::kNone : held->second);
      }
      if (HasFailure()) FAIL() << "seed " << seed << " position " << position;
    }
    EXPECT_GT(prefetched, 0u);
    EXPECT_GT(hits, 0u);
  }
}

TEST(HeadResidency, StartsFromTheIdentityOfTheDensePhase) {
  HeadResidency residency;
  residency.Reset(kMaxPositions);
  residency.Resize(50);
  residency.SetIdentity(4, 40);
  HeadDelta delta;
  Update(residency, std::vector<uint32_t>{4, 7, 43, 44}, 1000, kRing, &delta);
  EXPECT_EQ(delta.selected, (std::vector<uint32_t>{0, 3, 39, 40}));
  EXPECT_EQ(delta.streamed_positions, (std::vector<uint32_t>{44}));
}

TEST(HeadResidency, ForgetsRowsAboveAShrunkGrant) {
  HeadResidency residency;
  residency.Reset(kMaxPositions);
  residency.Resize(8);
  HeadDelta delta;
  Update(residency, std::vector<uint32_t>{1, 2, 3, 4, 5, 6}, 1000, kRing, &delta);
  residency.Resize(4);
  residency.Resize(8);
  Update(residency, std::vector<uint32_t>{1, 2, 3, 4, 5, 6}, 1001, kRing, &delta);
  EXPECT_EQ(delta.streamed_positions, (std::vector<uint32_t>{5, 6}));
}

}  // namespace
}  // namespace winnow
