#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "cache_rank/store/sequence_store.h"

namespace winnow::fuzz {

// What a cache rank must have stored, told by what was sent to it: of each row of each sequence a digest. A call that
// changes rows is followed by the function here that says how; after every other call nothing may have changed.
class StoredRows {
 public:
  explicit StoredRows(const KvLayout& layout) : layout_(layout) {}

  // Which rows a peer sends of a sequence: equal prompts have equal rows.
  using VariantOf = std::function<uint8_t(uint64_t sequence_id, uint32_t position)>;
  // Bytes of a row that is sent; those of variants from 253 on are what arithmetic likes least.
  std::vector<std::byte> Row(uint8_t variant, int layer, int head, uint32_t position) const;

  // Aborts unless each sequence has the rows that are known here. Sequences may have gone if `may_vanish`.
  void ExpectUnchanged(const SequenceStore& store, bool may_vanish = false) const;
  // The same of those that are attached to other links than this one.
  void ExpectOthersUnchanged(const SequenceStore& store, uint32_t link) const;
  // Rows may have come at the end of sequences that are attached to the link, of those variants.
  void Appended(const SequenceStore& store, uint32_t link, const VariantOf& variant_of);
  // A sequence has been opened, and begins with rows that the cache rank had of another: they are read and remembered.
  // Aborts when they differ from those of `variant_of`, which is null where somebody has sent others for this prompt.
  void Opened(const CachedSequence& sequence, const VariantOf& variant_of);
  void Forked(const CachedSequence& source, const CachedSequence& fork);
  // Rows from a position on are gone.
  void Truncated(const CachedSequence& sequence);
  // Positions from `first` on have been replaced by [layer][head][count] rows.
  void Replaced(const CachedSequence& sequence, uint32_t first, uint32_t count, const std::byte* rows);
  void Gone(uint64_t id) { lists_.erase(id); }

  // Reads every row of the sequence. Aborts where one is not what was sent and not found damaged either, and where one
  // is found damaged although nobody has damaged any.
  void ExpectIntact(const CachedSequence& sequence, bool may_be_damaged) const;

 private:
  // [list of the shard][position]
  using Digests = std::vector<std::vector<uint64_t>>;
  uint64_t Digest(const std::byte* row) const;
  bool Has(const CachedSequence& sequence) const;

  const KvLayout layout_;
  std::map<uint64_t, Digests> lists_;
};

}  // namespace winnow::fuzz
