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

#include "common/base/kv_layout.h"
#include "inference_rank/memory/slot_pool.h"

namespace winnow {

// Rows of prompts that stay in the slots of an inference rank after the sequences that brought them, and that sequences
// share while they run. The unit is a column: the slot pages of all lists that hold the same kSlotPageTokens positions.
// Its rows never change, so whoever begins with the same tokens has the column's pages among its own. Columns form a
// forest by a hash chain over token ids (common/base/prefix_hash.h); tokens and salts are compared, so that no
// collision can mix up two prompts.
//
// Beside the slots of a column lies an index of its keys: of one kind at a time, which sequences with another neither
// read nor write. A lease says which kind its holder has. While it holds a column that kind stays, and who has another
// gets a column of its own for the same tokens; once no lease with a kind is left, the next one's takes its place.
//
// A lease on a column keeps it and all columns before it. What nobody leases is idle: it goes, the longest unused first
// and later positions before earlier ones, as soon as anybody wants its pages (MakeRoom), so that idle pages are as
// good as free ones. Engine thread; leases must not outlive this, nor this the slots.
class ResidentPrefixes {
  struct Column;

 public:
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : prefixes_(other.prefixes_), last_(std::exchange(other.last_, nullptr)), index_(other.index_) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(prefixes_, other.prefixes_);
      std::swap(last_, other.last_);
      std::swap(index_, other.index_);
      return *this;
    }
    ~Lease() {
      if (last_ != nullptr) prefixes_->Unpin(last_, index_);
    }
    uint32_t num_columns() const;
    uint32_t positions() const { return num_columns() * kSlotPageTokens; }
    // Slot pages by column, in position order, each [list].
    std::vector<std::span<const uint32_t>> pages() const;
    // Whether some of them lie in host memory behind a GPU's.
    bool has_host_pages() const;
    // Rows below are in the lease's index of their slots' keys (LocalSelection), as far as somebody has said so.
    uint32_t indexed_positions() const;
    void SetIndexed();

   private:
    friend class ResidentPrefixes;
    Lease(ResidentPrefixes* prefixes, Column* last, uint32_t index) : prefixes_(prefixes), last_(last), index_(index) {
      prefixes_->Pin(last_, index_);
    }
    ResidentPrefixes* prefixes_ = nullptr;
    Column* last_ = nullptr;
    uint32_t index_ = 0;
  };

  // Rows that somebody looks for, or has.
  struct Key {
    std::string salt;  // what the rows depend on beside the tokens, and who may share them
    std::span<const uint32_t> tokens;
    // Columns that end behind so many tokens are those of one sequence alone: its answer's rows depend on what it
    // selects.
    uint32_t shared_tokens = 0;
    uint64_t owner = 0;  // that sequence
    uint32_t index = 0;  // of the slots' keys, that whoever has them reads and writes (StepClient::IndexOf); 0: none
    bool is_indexed = false;  // whether those that are inserted are in it
  };

  // Columns of pages of `slots`: of so many lists of each part, as those of the others have pages of the same numbers.
  ResidentPrefixes(SlotPool& slots, size_t num_lists) : slots_(slots), num_lists_(num_lists) {}
  ~ResidentPrefixes();
  ResidentPrefixes(const ResidentPrefixes&) = delete;
  ResidentPrefixes& operator=(const ResidentPrefixes&) = delete;

  // The longest prefix of the key's tokens that is there, whole columns only.
  Lease Find(const Key& key);
  // Leases all whole columns of the key's tokens. The pages of those that are missing are `page_of(list, column)`,
  // which become this object's.
  Lease Insert(const Key& key, const std::function<uint32_t(size_t list, uint32_t column)>& page_of);
  // Of these columns, the pages that somebody leases.
  uint32_t LeasedPages(const Key& key) const;
  // Evicts until `pages` are free in that memory, or nothing there is idle.
  void MakeRoom(uint32_t pages, SlotPlace place = SlotPlace::kFront);

  uint32_t idle_pages() const { return idle_pages(SlotPlace::kFront) + idle_pages(SlotPlace::kHostBehindGpu); }
  uint32_t idle_pages(SlotPlace place) const { return idle_pages_[static_cast<size_t>(place)]; }
  size_t num_columns() const { return columns_.size(); }
  uint64_t num_pages() const { return columns_.size() * num_lists_; }
  uint64_t evicted_columns() const { return evicted_columns_; }

 private:
  struct Column {
    uint64_t hash = 0;
    Column* parent = nullptr;
    std::string salt;  // of the first columns of chains
    uint64_t owner = 0;
    std::array<uint32_t, kSlotPageTokens> tokens{};
    uint32_t depth = 0;           // columns up to this one
    std::vector<uint32_t> pages;  // [list]
    uint32_t host_pages = 0;      // of these, those in host memory behind a GPU's
    uint32_t index = 0;           // the kind that lies beside its slots, or will: that of all leases with one
    bool is_indexed = false;
    size_t pins = 0;          // leases on it, and children with pins
    size_t pins_of_kind = 0;  // those with a kind of index
    size_t children = 0;
    std::list<Column*>::iterator idle;  // while pins is 0
  };

  class Walk;  // over the whole columns of a key
  // The last column of the key's tokens for which that and all before it are there and `counts`; null: none.
  Column* Deepest(const Key& key, bool (*counts)(const Column&)) const;
  // The walk goes on behind it.
  Column* Next(Walk& walk, Column* parent) const;
  Column* Find(const Walk& walk, uint64_t hash, Column* parent) const;
  void Pin(Column* column, uint32_t index);
  void Unpin(Column* column, uint32_t index);
  void AddIdle(Column* column);
  void RemoveIdle(Column* column);
  void Evict(Column* column);

  SlotPool& slots_;
  const size_t num_lists_;
  std::unordered_map<uint64_t, std::unique_ptr<Column>> columns_;  // by hash
  std::list<Column*> idle_;               // longest unused first; children stand before their parents
  std::array<uint32_t, 2> idle_pages_{};  // [SlotPlace]
  uint64_t evicted_columns_ = 0;
};

}  // namespace winnow
