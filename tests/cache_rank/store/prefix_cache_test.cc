#include "cache_rank/store/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "tests/cache_rank/reference.h"

namespace winnow {
namespace {

// A prompt by the content of each of its blocks.
using Path = std::vector<uint32_t>;

std::vector<uint32_t> TokensOf(const Path& path) {
  std::vector<uint32_t> tokens;
  for (const uint32_t content : path) {
    for (uint32_t i = 0; i < kBlockTokens; ++i) tokens.push_back(content * 100 + i);
  }
  return tokens;
}

bool IsPrefix(const Path& prefix, const Path& path) {
  return prefix.size() <= path.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

class PrefixCacheTest : public testing::Test {
 protected:
  static constexpr size_t kUnitBlocks = 2;
  PrefixCacheTest() : layout_(test::SmallShape().layout) { Restart(1000, 1000); }
  void Restart(size_t pool_blocks, size_t max_idle_blocks) {
    cache_.reset();
    pool_ = KvBlockPool::Create(pool_blocks * BlockBytes(layout_), layout_).value();
    cache_ = std::make_unique<PrefixCache>(max_idle_blocks);
  }
  PrefixCache::Lease Insert(const Path& path, const std::string& salt = "") {
    return cache_->Insert(salt, TokensOf(path), [&](size_t) {
      KvBlockReservation reservation = pool_->Reserve(kUnitBlocks).value();
      PrefixUnit unit;
      for (size_t i = 0; i < kUnitBlocks; ++i) unit.rows.push_back(reservation.Allocate());
      return unit;
    });
  }
  uint32_t FindBlocks(const Path& path, const std::string& salt = "") {
    return cache_->Find(salt, TokensOf(path)).positions() / kBlockTokens;
  }

  const KvLayout layout_;
  std::unique_ptr<KvBlockPool> pool_;
  std::unique_ptr<PrefixCache> cache_;
};

TEST_F(PrefixCacheTest, FindsTheLongestPrefixOfTheSameSalt) {
  Insert({1, 2, 3});
  EXPECT_EQ(FindBlocks({1, 2, 3, 4}), 3u);
  EXPECT_EQ(FindBlocks({1, 2, 4}), 2u);
  EXPECT_EQ(FindBlocks({2, 3}), 0u) << "blocks stand for all that comes before them";
  EXPECT_EQ(FindBlocks({1, 2, 3}, "another tenant"), 0u);
  std::vector<uint32_t> part = TokensOf({1, 2});
  part.pop_back();
  EXPECT_EQ(cache_->Find("", part).positions(), kBlockTokens) << "whole blocks only";
}

TEST_F(PrefixCacheTest, KeepsWhatPromptsShareOnce) {
  Insert({1, 2, 3});
  Insert({1, 2, 7});
  EXPECT_EQ(cache_->units(), 4u);
  EXPECT_EQ(pool_->used(), 4 * kUnitBlocks);
}

TEST_F(PrefixCacheTest, EvictsTheLongestUnusedAndLeavesBeforeTheirParents) {
  Insert({1, 2, 3});
  Insert({5, 6});
  FindBlocks({1, 2, 3});  // used again
  cache_->MakeRoom(*pool_, pool_->free() + 3 * kUnitBlocks);
  EXPECT_EQ(FindBlocks({5, 6}), 0u);
  EXPECT_EQ(FindBlocks({1, 2, 3}), 2u) << "the end of the prompt goes first";
}

TEST_F(PrefixCacheTest, NeverEvictsWhatIsLeasedNorEvictsInVain) {
  const PrefixCache::Lease lease = Insert({1, 2});
  Insert({1, 2, 3});
  EXPECT_EQ(cache_->idle_blocks(), kUnitBlocks);
  cache_->MakeRoom(*pool_, pool_->total());
  EXPECT_EQ(cache_->units(), 3u) << "that much cannot be had";
  cache_->MakeRoom(*pool_, pool_->total() - 2 * kUnitBlocks);
  EXPECT_EQ(cache_->units(), 2u);
  EXPECT_EQ(lease.units().size(), 2u);
}

TEST_F(PrefixCacheTest, KeepsIdleUnitsUpToItsLimit) {
  Restart(1000, 2 * kUnitBlocks);
  PrefixCache::Lease lease = Insert({1, 2, 3});
  EXPECT_EQ(cache_->units(), 3u);
  lease = {};
  EXPECT_EQ(FindBlocks({1, 2, 3}), 2u);
  Restart(1000, 0);
  Insert({1});
  EXPECT_EQ(cache_->units(), 0u) << "turned off";
}

// What the cache has to do, in the plainest terms: every prefix is an entry of its own, and who uses it is counted by
// looking at all leases.
struct Model {
  std::map<Path, std::pair<uint64_t, int>> units;  // when it fell idle, and minus its depth: the order of eviction
  std::map<int, Path> leases;
  uint64_t now = 0;

  bool Used(const Path& unit) const {
    return std::any_of(leases.begin(), leases.end(), [&](const auto& lease) { return IsPrefix(unit, lease.second); });
  }
  std::set<Path> Idle() const {
    std::set<Path> idle;
    for (const auto& [unit, since] : units) {
      if (!Used(unit)) idle.insert(unit);
    }
    return idle;
  }
  Path Longest(const Path& path) const {
    Path found;
    for (const auto& [unit, since] : units) {
      if (IsPrefix(unit, path) && unit.size() > found.size()) found = unit;
    }
    return found;
  }
  template <typename Change>
  void Apply(Change change) {
    const std::set<Path> before = Idle();
    change();
    ++now;
    for (const Path& unit : Idle()) {
      if (!before.contains(unit)) units[unit] = {now, -static_cast<int>(unit.size())};
    }
  }
  void EvictOldest() {
    const std::set<Path> idle = Idle();
    units.erase(*std::min_element(idle.begin(), idle.end(),
                                  [&](const Path& a, const Path& b) { return units.at(a) < units.at(b); }));
  }
};

TEST_F(PrefixCacheTest, CountsExactlyThroughTenThousandRandomOperations) {
  constexpr size_t kPoolBlocks = 120, kMaxIdle = 60;
  Restart(kPoolBlocks, kMaxIdle);
  Model model;
  std::map<int, PrefixCache::Lease> leases;
  std::mt19937 random(7);
  const auto draw = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  int next_lease = 0;
  uint64_t evictions = 0, hits = 0;
  const auto make_room = [&](size_t blocks) {
    cache_->MakeRoom(*pool_, blocks);
    const auto free = [&] { return kPoolBlocks - model.units.size() * kUnitBlocks; };
    if (free() + model.Idle().size() * kUnitBlocks < blocks) return;
    for (; free() < blocks; ++evictions) model.EvictOldest();
  };
  const auto trim = [&] {
    for (; model.Idle().size() * kUnitBlocks > kMaxIdle; ++evictions) model.EvictOldest();
  };
  for (int step = 0; step < 10'000; ++step) {
    Path path(1 + draw(6));
    for (uint32_t& content : path) content = draw(3);
    const auto lease = leases.empty() ? leases.end() : std::next(leases.begin(), draw(leases.size()));
    switch (draw(6)) {
      case 0:
      case 1: {  // a prompt has been computed
        make_room(path.size() * kUnitBlocks);
        if (pool_->free() < path.size() * kUnitBlocks) break;
        leases[next_lease] = Insert(path);
        model.Apply([&] {
          for (size_t n = 1; n <= path.size(); ++n) model.units[Path(path.begin(), path.begin() + n)];
          model.leases[next_lease] = path;
        });
        ++next_lease;
        break;
      }
      case 2: {  // a prompt begins with what is there
        PrefixCache::Lease found = cache_->Find("", TokensOf(path));
        const Path longest = model.Longest(path);
        ASSERT_EQ(found.positions(), longest.size() * kBlockTokens);
        if (longest.empty()) break;
        ++hits;
        leases[next_lease] = std::move(found);
        model.Apply([&] { model.leases[next_lease] = longest; });
        ++next_lease;
        break;
      }
      case 3:  // fork
        if (lease == leases.end()) break;
        leases[next_lease] = lease->second.Share();
        model.Apply([&] { model.leases[next_lease] = model.leases.at(lease->first); });
        ++next_lease;
        break;
      case 4:  // release; often enough that sequences do not pile up
        for (int i = 0; i < 3 && !leases.empty(); ++i) {
          const int id = std::next(leases.begin(), draw(leases.size()))->first;
          leases.erase(id);
          model.Apply([&] { model.leases.erase(id); });
          trim();
        }
        break;
      case 5:  // a sequence wants blocks
        make_room(draw(kPoolBlocks));
        break;
    }
    ASSERT_EQ(cache_->units(), model.units.size()) << "step " << step;
    ASSERT_EQ(cache_->blocks(), model.units.size() * kUnitBlocks) << "step " << step;
    ASSERT_EQ(cache_->idle_blocks(), model.Idle().size() * kUnitBlocks) << "step " << step;
    ASSERT_EQ(cache_->evicted_units(), evictions) << "step " << step;
    ASSERT_EQ(pool_->used(), cache_->blocks()) << "step " << step;
  }
  EXPECT_GT(evictions, 500u);
  EXPECT_GT(hits, 500u);
  leases.clear();
  EXPECT_EQ(cache_->idle_blocks(), cache_->blocks());
  cache_.reset();
  EXPECT_EQ(pool_->used(), 0u);
}

}  // namespace
}  // namespace winnow
