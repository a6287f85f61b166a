#include "inference_rank/memory/resident_prefixes.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/prefix_hash.h"

namespace winnow {

class ResidentPrefixes::Walk {
 public:
  explicit Walk(const Key& key) : key_(key), hash_(PrefixRoot(key.salt)) {}

  // Goes to the next whole column; false when there is none.
  bool GoOn() {
    const size_t end = (uint64_t{depth_} + 1) * kSlotPageTokens;
    if (end > key_.tokens.size()) return false;
    ++depth_;
    tokens_ = key_.tokens.subspan(end - kSlotPageTokens, kSlotPageTokens);
    owner_ = end > key_.shared_tokens ? key_.owner : 0;
    hash_ = ExtendPrefix(hash_, tokens_);
    if (owner_ != 0) hash_ = MixPrefixWord(hash_, owner_);
    return true;
  }
  // The columns to come are those behind one with that hash.
  void GoOnBehind(uint64_t hash) { hash_ = hash; }
  const std::string& salt() const { return key_.salt; }
  std::span<const uint32_t> tokens() const { return tokens_; }  // of the column
  uint64_t hash() const { return hash_; }
  // Of a column for the same tokens beside one that has another kind of index.
  uint64_t hash_of_kind() const { return MixPrefixWord(hash_, ~uint64_t{key_.index}); }
  uint32_t index() const { return key_.index; }
  uint64_t owner() const { return owner_; }
  uint32_t depth() const { return depth_; }

 private:
  const Key& key_;
  std::span<const uint32_t> tokens_;
  uint64_t hash_;
  uint64_t owner_ = 0;
  uint32_t depth_ = 0;
};

uint32_t ResidentPrefixes::Lease::num_columns() const {
  return last_ == nullptr ? 0 : last_->depth;
}

std::vector<std::span<const uint32_t>> ResidentPrefixes::Lease::pages() const {
  std::vector<std::span<const uint32_t>> pages;
  for (const Column* column = last_; column != nullptr; column = column->parent) pages.push_back(column->pages);
  std::reverse(pages.begin(), pages.end());
  return pages;
}

bool ResidentPrefixes::Lease::has_host_pages() const {
  for (const Column* column = last_; column != nullptr; column = column->parent) {
    if (column->host_pages > 0) return true;
  }
  return false;
}

uint32_t ResidentPrefixes::Lease::indexed_positions() const {
  if (index_ == 0) return 0;
  uint32_t indexed = num_columns();
  for (const Column* column = last_; column != nullptr; column = column->parent) {
    if (!column->is_indexed) indexed = column->depth - 1;
  }
  return indexed * kSlotPageTokens;
}

void ResidentPrefixes::Lease::SetIndexed() {
  if (index_ == 0) return;  // what lies there is not its
  for (Column* column = last_; column != nullptr; column = column->parent) column->is_indexed = true;
}

ResidentPrefixes::~ResidentPrefixes() {
  while (!idle_.empty()) Evict(idle_.front());
  WINNOW_CHECK(columns_.empty());
}

// One with the walk's kind of index, else one with none, else one whose kind nobody holds any longer: as long as a
// lease holds the column that was found for it, a walk with that kind finds it again.
ResidentPrefixes::Column* ResidentPrefixes::Next(Walk& walk, Column* parent) const {
  Column* next = Find(walk, walk.hash(), parent);
  if (walk.index() != 0) {
    Column* const of_kind = Find(walk, walk.hash_of_kind(), parent);
    const auto rank = [&](const Column* column) {
      if (column == nullptr) return 0;
      if (column->index == walk.index()) return 3;
      return column->index == 0 ? 2 : column->pins_of_kind == 0 ? 1 : 0;
    };
    if (rank(of_kind) > rank(next)) next = of_kind;
    if (rank(next) == 0) return nullptr;
  }
  if (next != nullptr) walk.GoOnBehind(next->hash);
  return next;
}

ResidentPrefixes::Column* ResidentPrefixes::Find(const Walk& walk, uint64_t hash, Column* parent) const {
  const auto found = columns_.find(hash);
  if (found == columns_.end()) return nullptr;
  Column* const column = found->second.get();
  const bool same = column->parent == parent && column->owner == walk.owner() &&
                    std::equal(walk.tokens().begin(), walk.tokens().end(), column->tokens.begin()) &&
                    (parent != nullptr || column->salt == walk.salt());
  return same ? column : nullptr;
}

ResidentPrefixes::Column* ResidentPrefixes::Deepest(const Key& key, bool (*counts)(const Column&)) const {
  Column* deepest = nullptr;
  for (Walk walk(key); walk.GoOn();) {
    Column* const next = Next(walk, deepest);
    if (next == nullptr || !counts(*next)) break;
    deepest = next;
  }
  return deepest;
}

ResidentPrefixes::Lease ResidentPrefixes::Find(const Key& key) {
  Column* const deepest = Deepest(key, [](const Column&) { return true; });
  return deepest == nullptr ? Lease() : Lease(this, deepest, key.index);
}

uint32_t ResidentPrefixes::LeasedPages(const Key& key) const {
  const Column* const deepest = Deepest(key, [](const Column& column) { return column.pins > 0; });
  return deepest == nullptr ? 0 : static_cast<uint32_t>(deepest->depth * num_lists_);
}

ResidentPrefixes::Lease ResidentPrefixes::Insert(const Key& key,
                                                 const std::function<uint32_t(size_t, uint32_t)>& page_of) {
  Lease lease;
  for (Walk walk(key); walk.GoOn();) {
    Column* column = Next(walk, lease.last_);
    if (column == nullptr) {
      // Beside a column with another kind of index. Where other tokens have the hash the rest is not kept.
      if (key.index != 0 && columns_.contains(walk.hash())) walk.GoOnBehind(walk.hash_of_kind());
      if (columns_.contains(walk.hash())) break;
      auto added = std::make_unique<Column>();
      column = added.get();
      column->hash = walk.hash();
      column->index = key.index;
      column->is_indexed = key.index != 0 && key.is_indexed;
      column->parent = lease.last_;
      if (column->parent == nullptr) column->salt = walk.salt();
      column->owner = walk.owner();
      std::copy(walk.tokens().begin(), walk.tokens().end(), column->tokens.begin());
      column->depth = walk.depth();
      for (size_t list = 0; list < num_lists_; ++list) {
        column->pages.push_back(page_of(list, walk.depth() - 1));
        column->host_pages += slots_.place_of(column->pages.back()) == SlotPlace::kHostBehindGpu;
      }
      if (column->parent != nullptr) ++column->parent->children;
      columns_[column->hash] = std::move(added);
      AddIdle(column);
    }
    // The new lease pins the parent through the child, before the old one lets go.
    lease = Lease(this, column, key.index);
  }
  return lease;
}

void ResidentPrefixes::Pin(Column* column, uint32_t index) {
  for (Column* c = column; index != 0 && c != nullptr && c->pins_of_kind++ == 0; c = c->parent) {
    if (std::exchange(c->index, index) != index) c->is_indexed = false;
  }
  for (; column != nullptr && column->pins++ == 0; column = column->parent) RemoveIdle(column);
}

void ResidentPrefixes::Unpin(Column* column, uint32_t index) {
  for (Column* c = column; index != 0 && c != nullptr && --c->pins_of_kind == 0;) c = c->parent;
  for (; column != nullptr && --column->pins == 0; column = column->parent) AddIdle(column);
}

void ResidentPrefixes::AddIdle(Column* column) {
  column->idle = idle_.insert(idle_.end(), column);
  idle_pages_[0] += static_cast<uint32_t>(num_lists_) - column->host_pages;
  idle_pages_[1] += column->host_pages;
}

void ResidentPrefixes::RemoveIdle(Column* column) {
  idle_.erase(column->idle);
  idle_pages_[0] -= static_cast<uint32_t>(num_lists_) - column->host_pages;
  idle_pages_[1] -= column->host_pages;
}

void ResidentPrefixes::Evict(Column* column) {
  WINNOW_CHECK(column->pins == 0 && column->children == 0);
  RemoveIdle(column);
  if (column->parent != nullptr) --column->parent->children;
  slots_.Free(column->pages);
  ++evicted_columns_;
  columns_.erase(column->hash);
}

// Of the columns with pages there the oldest that has no children goes; where all of them have, which then lie in the
// other memory, the oldest of all.
void ResidentPrefixes::MakeRoom(uint32_t pages, SlotPlace place) {
  while (slots_.free_pages(place) < pages && idle_pages(place) > 0) {
    const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const Column* column) {
      const uint32_t there = place == SlotPlace::kHostBehindGpu
                                 ? column->host_pages
                                 : static_cast<uint32_t>(num_lists_) - column->host_pages;
      return there > 0 && column->children == 0;
    });
    Evict(found != idle_.end() ? *found : idle_.front());
  }
}

}  // namespace winnow
