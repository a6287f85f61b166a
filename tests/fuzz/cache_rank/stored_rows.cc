#include "tests/fuzz/cache_rank/stored_rows.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/selection/attended_set.h"

namespace winnow::fuzz {
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

std::vector<std::byte> StoredRows::Row(uint8_t variant, int layer, int head, uint32_t position) const {
  std::vector<std::byte> row(layout_.row_bytes());
  if (variant >= 253) {  // NaN; infinity; zeros
    const auto fill = static_cast<std::byte>(variant == 253 ? 0xff : 0);
    std::fill(row.begin(), row.end(), fill);
    const size_t element = layout_.dtype == Dtype::kI8 ? 1 : DtypeBytes(layout_.dtype);
    for (size_t i = element; variant == 254 && element > 1 && i <= row.size(); i += element) {
      row[i - 1] = std::byte{0x7f};
      row[i - 2] = std::byte{0x80};
    }
    return row;
  }
  const size_t elements = layout_.row.elements(layout_.head_dim);
  for (size_t i = 0; i < elements; ++i) {
    const uint64_t bits =
        Mix(((uint64_t{variant} << 8 | static_cast<uint64_t>(layer)) << 8 | static_cast<uint64_t>(head)) << 40 ^
            (uint64_t{position} << 12 | i));
    const float value = static_cast<float>(bits >> 40) / (1 << 23) - 1;
    if (layout_.dtype == Dtype::kF32) {
      std::memcpy(row.data() + 4 * i, &value, 4);
    } else if (layout_.dtype == Dtype::kBf16) {
      std::memcpy(row.data() + 2 * i, reinterpret_cast<const char*>(&value) + 2, 2);
    } else {
      row[i] = static_cast<std::byte>(static_cast<int8_t>(value * 127));
    }
  }
  const float scale = 0.01f;
  for (size_t at = layout_.row.scales_offset_bytes(layout_.head_dim, layout_.dtype); at < row.size(); at += 4) {
    std::memcpy(row.data() + at, &scale, 4);
  }
  return row;
}

uint64_t StoredRows::Digest(const std::byte* row) const {
  uint64_t digest = 1;
  for (size_t i = 0; i < layout_.row_bytes(); ++i) digest = Mix(digest * 257 + static_cast<uint64_t>(row[i]) + 1);
  return digest;
}

bool StoredRows::Has(const CachedSequence& sequence) const {
  const auto known = lists_.find(sequence.id);
  if (known == lists_.end() || known->second.size() != sequence.num_lists()) return false;
  for (size_t list = 0; list < sequence.num_lists(); ++list) {
    const auto layer = static_cast<int>(list / sequence.num_kv_heads());
    if (known->second[list].size() != sequence.kv.rows(layer)) return false;
  }
  return true;
}

void StoredRows::ExpectUnchanged(const SequenceStore& store, bool may_vanish) const {
  size_t here = 0;
  for (const auto& [id, lists] : lists_) {
    const CachedSequence* const sequence = store.Find(id);
    here += sequence != nullptr;
    WINNOW_CHECK(sequence == nullptr ? may_vanish : Has(*sequence));
  }
  WINNOW_CHECK(store.sequence_ids().size() == here);
}

void StoredRows::ExpectOthersUnchanged(const SequenceStore& store, uint32_t link) const {
  for (const auto& [id, lists] : lists_) {
    const CachedSequence* const sequence = store.Find(id);
    WINNOW_CHECK(sequence != nullptr && (sequence->channel == link || Has(*sequence)));
  }
}

void StoredRows::Appended(const SequenceStore& store, uint32_t link, const VariantOf& variant_of) {
  for (auto& [id, lists] : lists_) {
    const CachedSequence* const sequence = store.Find(id);
    WINNOW_CHECK(sequence != nullptr);
    if (sequence->channel != link) continue;
    for (size_t list = 0; list < lists.size(); ++list) {
      const auto layer = static_cast<int>(list / sequence->num_kv_heads());
      const auto head = static_cast<int>(list % sequence->num_kv_heads());
      WINNOW_CHECK(lists[list].size() <= sequence->kv.rows(layer));
      while (lists[list].size() < sequence->kv.rows(layer)) {
        const auto position = static_cast<uint32_t>(lists[list].size());
        const std::vector<std::byte> row =
            Row(variant_of(id, position), sequence->layer_of_model(layer), sequence->head_of_model(head), position);
        lists[list].push_back(Digest(row.data()));
      }
    }
  }
}

void StoredRows::Opened(const CachedSequence& sequence, const VariantOf& variant_of) {
  Digests& lists = lists_[sequence.id];
  lists.assign(sequence.num_lists(), {});
  std::vector<std::byte> row(layout_.row_bytes());
  for (size_t list = 0; list < lists.size(); ++list) {
    const auto layer = static_cast<int>(list / sequence.num_kv_heads());
    const auto head = static_cast<int>(list % sequence.num_kv_heads());
    for (uint32_t position = 0; position < sequence.kv.rows(layer); ++position) {
      sequence.kv.CopyRows(layer, head, position, 1, row.data());
      lists[list].push_back(Digest(row.data()));
      if (variant_of == nullptr || sequence.kv.is_damaged()) continue;
      WINNOW_CHECK(row == Row(variant_of(sequence.id, position), sequence.layer_of_model(layer),
                              sequence.head_of_model(head), position));
    }
  }
}

void StoredRows::Forked(const CachedSequence& source, const CachedSequence& fork) {
  lists_[fork.id] = lists_.at(source.id);
  Truncated(fork);
  WINNOW_CHECK(Has(fork));
}

void StoredRows::Truncated(const CachedSequence& sequence) {
  Digests& lists = lists_.at(sequence.id);
  for (size_t list = 0; list < lists.size(); ++list) {
    const uint32_t rows = sequence.kv.rows(static_cast<int>(list / sequence.num_kv_heads()));
    WINNOW_CHECK(rows <= lists[list].size());
    lists[list].resize(rows);
  }
}

void StoredRows::Replaced(const CachedSequence& sequence, uint32_t first, uint32_t count, const std::byte* rows) {
  Digests& lists = lists_.at(sequence.id);
  for (std::vector<uint64_t>& list : lists) {
    WINNOW_CHECK(first <= list.size());
    list.resize(first);
    for (uint32_t i = 0; i < count; ++i, rows += layout_.row_bytes()) list.push_back(Digest(rows));
  }
  WINNOW_CHECK(Has(sequence));
}

void StoredRows::ExpectIntact(const CachedSequence& sequence, bool may_be_damaged) const {
  WINNOW_CHECK(Has(sequence));
  const Digests& lists = lists_.at(sequence.id);
  const std::vector<std::byte> zeros(layout_.row_bytes());
  std::vector<std::byte> row(layout_.row_bytes());
  for (size_t list = 0; list < lists.size(); ++list) {
    const bool gives_back = Streams(sequence.spec, list);
    for (uint32_t position = 0; position < lists[list].size(); ++position) {
      sequence.kv.CopyRows(static_cast<int>(list / sequence.num_kv_heads()),
                           static_cast<int>(list % sequence.num_kv_heads()), position, 1, row.data());
      if (gives_back && row == zeros) continue;
      WINNOW_CHECK(Digest(row.data()) == lists[list][position] || sequence.kv.is_damaged());
    }
  }
  WINNOW_CHECK(may_be_damaged || !sequence.kv.is_damaged());
}

}  // namespace winnow::fuzz
