#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache_rank/store/kv_block_pool.h"

namespace winnow {

// All that is kept of kBlockTokens consecutive positions: what sequences with equal prompts share.
struct PrefixUnit {
  std::vector<KvBlock> rows;     // [list]
  std::vector<KvBlock> bounds;   // [list], in units whose end completes a block of pages; otherwise empty
  std::vector<KvBlock> cuboids;  // likewise

  size_t blocks() const { return rows.size() + bounds.size() + cuboids.size(); }
  size_t index_bytes() const;  // of the fast tier
};

// Full blocks of prompts, kept after the sequences that brought them: a forest of units, found by a hash chain over
// token ids (common/base/prefix_hash.h). Tokens and salts are compared, so that no collision can mix up two prompts.
//
// A lease on a unit keeps it and all units before it. Units without a lease on them or after them are evicted, the
// longest unused first and later positions before earlier ones: at once where they exceed the limit, otherwise when
// MakeRoom asks. Units that are forgotten are found no more. One thread; leases must not outlive the cache, nor the
// cache the pool.
class PrefixCache {
  struct Unit;

 public:
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : cache_(other.cache_), unit_(std::exchange(other.unit_, nullptr)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(cache_, other.cache_);
      std::swap(unit_, other.unit_);
      return *this;
    }
    ~Lease() {
      if (unit_ != nullptr) cache_->Unpin(unit_);
    }
    Lease Share() const { return unit_ == nullptr ? Lease() : Lease(cache_, unit_); }
    // Positions that it covers, a multiple of kBlockTokens.
    uint32_t positions() const;
    // [positions() / kBlockTokens], in position order.
    std::vector<const PrefixUnit*> units() const;

   private:
    friend class PrefixCache;
    Lease(PrefixCache* cache, Unit* unit) : cache_(cache), unit_(unit) { cache_->Pin(unit_); }
    PrefixCache* cache_ = nullptr;
    Unit* unit_ = nullptr;
  };

  // Units that nobody uses hold at most `max_idle_blocks`; 0 turns the cache off.
  explicit PrefixCache(size_t max_idle_blocks) : max_idle_blocks_(max_idle_blocks) {}
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The longest prefix of `tokens` that is held, whole blocks only. `salt` names what the rows depend on beside the
  // tokens.
  Lease Find(const std::string& salt, std::span<const uint32_t> tokens);
  // Holds all whole blocks of `tokens`: those that are missing come from `unit_at`, called with their number.
  Lease Insert(const std::string& salt, std::span<const uint32_t> tokens,
               const std::function<PrefixUnit(size_t)>& unit_at);
  // No prompt is given that block any more, nor what follows it: units go as soon as nobody uses them. Returns how many
  // units that are.
  size_t Forget(uint32_t block_number);
  // Evicts until the pool has `blocks` free, and `index_bytes` of its fast tier, but nothing if that cannot be reached.
  void MakeRoom(const KvBlockPool& pool, size_t blocks, size_t index_bytes = 0);

  bool enabled() const { return max_idle_blocks_ > 0; }
  size_t units() const { return units_.size(); }  // that can be found
  size_t blocks() const { return blocks_; }
  size_t idle_blocks() const { return idle_blocks_; }  // of units that no lease keeps
  uint64_t evicted_units() const { return evicted_units_; }

 private:
  struct Unit {
    uint64_t hash = 0;
    Unit* parent = nullptr;
    std::string salt;  // of the first units of chains
    std::array<uint32_t, kBlockTokens> tokens{};
    uint32_t depth = 0;  // units up to this one
    PrefixUnit kept;
    size_t index_bytes = 0;  // of kept
    size_t pins = 0;         // leases on it, and children with pins
    size_t children = 0;
    bool forgotten = false;
    std::list<Unit*>::iterator idle;  // while pins is 0
  };

  // The unit that follows `parent` (null: begins a chain), or null.
  Unit* Next(Unit* parent, uint64_t hash, const std::string& salt, std::span<const uint32_t> block) const;
  void Pin(Unit* unit);
  void Unpin(Unit* unit);
  // To and from the units that no lease keeps.
  void AddIdle(Unit* unit);
  void RemoveIdle(Unit* unit);
  void EvictOldest() { Evict(idle_.front()); }
  void Evict(Unit* unit);
  // Those of the unit and the ones before it that are forgotten and that nobody uses.
  void EvictForgotten(Unit* unit);

  const size_t max_idle_blocks_;
  std::unordered_map<uint64_t, std::unique_ptr<Unit>> units_;  // by hash
  std::unordered_map<Unit*, std::unique_ptr<Unit>> forgotten_;
  std::list<Unit*> idle_;  // longest unused first; children stand before their parents
  size_t blocks_ = 0;
  size_t idle_blocks_ = 0;
  size_t idle_index_bytes_ = 0;
  uint64_t evicted_units_ = 0;
};

}  // namespace winnow
