#include "cache_rank/store/prefix_cache.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/prefix_hash.h"

namespace winnow {

size_t PrefixUnit::index_bytes() const {
  size_t bytes = 0;
  for (const std::vector<KvBlock>* blocks : {&rows, &bounds, &cuboids}) {
    for (const KvBlock& block : *blocks) bytes += block.index_bytes();
  }
  return bytes;
}

uint32_t PrefixCache::Lease::positions() const {
  return unit_ == nullptr ? 0 : unit_->depth * kBlockTokens;
}

std::vector<const PrefixUnit*> PrefixCache::Lease::units() const {
  std::vector<const PrefixUnit*> units;
  for (const Unit* unit = unit_; unit != nullptr; unit = unit->parent) units.push_back(&unit->kept);
  std::reverse(units.begin(), units.end());
  return units;
}

PrefixCache::~PrefixCache() {
  while (!idle_.empty()) EvictOldest();
  WINNOW_CHECK(units_.empty() && forgotten_.empty());
}

PrefixCache::Unit* PrefixCache::Next(Unit* parent, uint64_t hash, const std::string& salt,
                                     std::span<const uint32_t> block) const {
  const auto found = units_.find(hash);
  if (found == units_.end()) return nullptr;
  Unit* unit = found->second.get();
  const bool same = unit->parent == parent && std::equal(block.begin(), block.end(), unit->tokens.begin()) &&
                    (parent != nullptr || unit->salt == salt);
  return same ? unit : nullptr;
}

PrefixCache::Lease PrefixCache::Find(const std::string& salt, std::span<const uint32_t> tokens) {
  Unit* deepest = nullptr;
  uint64_t hash = PrefixRoot(salt);
  for (; tokens.size() >= kBlockTokens; tokens = tokens.subspan(kBlockTokens)) {
    const std::span<const uint32_t> block = tokens.first(kBlockTokens);
    hash = ExtendPrefix(hash, block);
    Unit* next = Next(deepest, hash, salt, block);
    if (next == nullptr) break;
    deepest = next;
  }
  return deepest == nullptr ? Lease() : Lease(this, deepest);
}

PrefixCache::Lease PrefixCache::Insert(const std::string& salt, std::span<const uint32_t> tokens,
                                       const std::function<PrefixUnit(size_t)>& unit_at) {
  Lease lease;
  if (!enabled()) return lease;
  uint64_t hash = PrefixRoot(salt);
  for (size_t i = 0; tokens.size() >= kBlockTokens; ++i, tokens = tokens.subspan(kBlockTokens)) {
    const std::span<const uint32_t> block = tokens.first(kBlockTokens);
    hash = ExtendPrefix(hash, block);
    Unit* unit = Next(lease.unit_, hash, salt, block);
    if (unit == nullptr) {
      if (units_.contains(hash)) break;  // another prompt has this hash: the rest is not kept
      auto added = std::make_unique<Unit>();
      unit = added.get();
      unit->hash = hash;
      unit->parent = lease.unit_;
      if (unit->parent == nullptr) unit->salt = salt;
      std::copy(block.begin(), block.end(), unit->tokens.begin());
      unit->depth = static_cast<uint32_t>(i + 1);
      unit->kept = unit_at(i);
      unit->index_bytes = unit->kept.index_bytes();
      if (unit->parent != nullptr) ++unit->parent->children;
      units_[hash] = std::move(added);
      blocks_ += unit->kept.blocks();
      AddIdle(unit);
    }
    // The new lease pins the parent through the child, before the old one lets go.
    lease = Lease(this, unit);
  }
  return lease;
}

void PrefixCache::Pin(Unit* unit) {
  for (; unit != nullptr && unit->pins++ == 0; unit = unit->parent) RemoveIdle(unit);
}

void PrefixCache::Unpin(Unit* last) {
  for (Unit* unit = last; unit != nullptr && --unit->pins == 0; unit = unit->parent) AddIdle(unit);
  EvictForgotten(last);
  while (idle_blocks_ > max_idle_blocks_) EvictOldest();
}

void PrefixCache::AddIdle(Unit* unit) {
  unit->idle = idle_.insert(idle_.end(), unit);
  idle_blocks_ += unit->kept.blocks();
  idle_index_bytes_ += unit->index_bytes;
}

void PrefixCache::RemoveIdle(Unit* unit) {
  idle_.erase(unit->idle);
  idle_blocks_ -= unit->kept.blocks();
  idle_index_bytes_ -= unit->index_bytes;
}

void PrefixCache::Evict(Unit* unit) {
  WINNOW_CHECK(unit->pins == 0 && unit->children == 0);
  RemoveIdle(unit);
  if (unit->parent != nullptr) --unit->parent->children;
  blocks_ -= unit->kept.blocks();
  ++evicted_units_;
  if (unit->forgotten) {
    forgotten_.erase(unit);
  } else {
    units_.erase(unit->hash);
  }
}

void PrefixCache::EvictForgotten(Unit* unit) {
  while (unit != nullptr && unit->forgotten && unit->pins == 0 && unit->children == 0) {
    Evict(std::exchange(unit, unit->parent));
  }
}

size_t PrefixCache::Forget(uint32_t block_number) {
  const auto holds = [&](const Unit& unit) {
    return std::any_of(unit.kept.rows.begin(), unit.kept.rows.end(),
                       [&](const KvBlock& block) { return block.number() == block_number; });
  };
  std::vector<Unit*> forgotten;
  for (const auto& [hash, unit] : units_) {
    for (const Unit* of = unit.get(); of != nullptr; of = of->parent) {
      if (!holds(*of)) continue;
      forgotten.push_back(unit.get());
      break;
    }
  }
  for (Unit* unit : forgotten) {
    unit->forgotten = true;
    auto node = units_.extract(unit->hash);
    forgotten_[unit] = std::move(node.mapped());
  }
  // Later positions before earlier ones, which they keep.
  std::sort(forgotten.begin(), forgotten.end(), [](const Unit* a, const Unit* b) { return a->depth > b->depth; });
  for (Unit* unit : forgotten) {
    if (unit->pins == 0 && unit->children == 0) Evict(unit);
  }
  return forgotten.size();
}

void PrefixCache::MakeRoom(const KvBlockPool& pool, size_t blocks, size_t index_bytes) {
  const auto lacks = [&](size_t spare_blocks, size_t spare_index_bytes) {
    return pool.free() + spare_blocks < blocks ||
           (index_bytes > spare_index_bytes && pool.free_index_bytes() < index_bytes - spare_index_bytes);
  };
  if (lacks(idle_blocks_, idle_index_bytes_)) return;
  while (lacks(0, 0) && !idle_.empty()) EvictOldest();
}

}  // namespace winnow
