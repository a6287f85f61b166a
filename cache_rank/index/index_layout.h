#pragma once
#include <cstdint>
#include <optional>

#include "common/base/dtype.h"
#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// Which index a cache rank keeps of a sequence's keys beside the tiles of all keys: decided by the sequence's
// specification when it is opened.
struct IndexLayout {
  uint32_t page_tokens = 0;             // of pages whose bounds are kept; 0: none
  bool cuboid = false;                  // cuboid-means of the pages, beside the bounds
  std::optional<Dtype> key_dtype = {};  // kI8 or kI4; none: the rows'. Of rows of int8 it is kI8: their keys are scored
  // Selections or verifications read the keys of rows, so that their tiles are index; otherwise they are read for
  // figures alone, and lie where the rows do.
  bool scores_keys = false;
  bool index_keys = false;  // tiles are of index keys, not of keys

  // Of bounds and cuboids. They are few, and rounding them outwards to int4 would blur what they tell apart.
  constexpr std::optional<Dtype> page_dtype() const {
    return key_dtype.has_value() ? std::optional(Dtype::kI8) : std::nullopt;
  }

  friend bool operator==(const IndexLayout&, const IndexLayout&) = default;
};

// Elements of what lies in the tiles, and where it begins in a row.
constexpr int IndexedDim(const KvLayout& layout, const IndexLayout& index) {
  return index.index_keys ? layout.row.index_dim : layout.head_dim;
}
constexpr size_t IndexedOffsetBytes(const KvLayout& layout, const IndexLayout& index) {
  return index.index_keys ? layout.row.index_offset(layout.head_dim) * DtypeBytes(layout.dtype) : 0;
}

constexpr std::optional<Dtype> DtypeOf(KeyCopy copy) {
  if (copy == KeyCopy::kNone) return std::nullopt;
  return copy == KeyCopy::kInt8 ? Dtype::kI8 : Dtype::kI4;
}

// Of rows of this type. Rows of int8 need no copy of their keys, whatever the specification says of one.
constexpr IndexLayout IndexLayoutFor(const SelectionSpec& spec, Dtype rows = Dtype::kBf16) {
  const bool selects = !IsDense(spec) && spec.predictor != Predictor::kFixed;
  const bool index_keys = SelectsFromAll(spec);
  const bool pages = selects && spec.scorer != Scorer::kToken && !index_keys;
  return {.page_tokens = pages ? spec.page_tokens : 0,
          .cuboid = pages && spec.scorer == Scorer::kPageCuboid,
          .key_dtype = !selects             ? std::nullopt
                       : rows == Dtype::kI8 ? std::optional(Dtype::kI8)
                                            : DtypeOf(spec.key_copy),
          .scores_keys = (selects && (!pages || spec.scorer == Scorer::kTwoStage)) || WaitsForVerification(spec),
          .index_keys = index_keys};
}

// Where int8 tiles keep element d of key `row`, and its scale (IndexTileBytes).
constexpr size_t Int8TileOffset(int d, int row) {
  return (static_cast<size_t>(d / 4) * kBlockTokens + row) * 4 + d % 4;
}
constexpr size_t Int8TileScaleOffset(int head_dim, int row) {
  return static_cast<size_t>(head_dim + 3) / 4 * 4 * kBlockTokens + row * sizeof(float);
}

// Complete pages among `rows` rows.
constexpr uint32_t CompletePages(const IndexLayout& index, uint32_t rows) {
  return index.page_tokens == 0 ? 0 : rows / index.page_tokens;
}

// Keys as kernels score them: of rows, or pseudo-keys of pages.
struct KeyTable {
  const void* const* tiles = nullptr;  // [ceil(num_keys / kBlockTokens)] index tiles, or blocks of rows
  uint32_t num_keys = 0;
  int head_dim = 0;  // of a pseudo-key: twice that of the keys
  Dtype dtype = Dtype::kBf16;
  bool in_rows = false;  // see KeyScoreParams
  // Null: keys 0, 1, ...; otherwise [num_keys / kKeyGroup] groups of 16 keys, see KeyScoreParams.
  const uint32_t* groups = nullptr;

  uint64_t key_bytes() const { return num_keys * DtypeBytes(dtype, head_dim); }
};

// The index of one (sequence, layer, kv head). Pages: the k-th holds rows [k * page_tokens, (k + 1) * page_tokens) and
// is there when all of them are.
struct HeadIndex {
  const void* const* keys = nullptr;    // tiles of all rows, or the blocks that have the rows
  const void* const* bounds = nullptr;  // tiles of the pages' [max | min]; null without pages
  const void* const* cuboids = nullptr;
  Dtype dtype = Dtype::kBf16;       // of the keys' tiles
  Dtype page_dtype = Dtype::kBf16;  // of the pages'
  bool keys_in_rows = false;        // rows of int8 are scored where they lie
  uint32_t page_tokens = 0;

  // Of positions [first_block * kBlockTokens, first_block * kBlockTokens + num_keys).
  KeyTable Keys(uint32_t num_keys, int head_dim, uint32_t first_block = 0) const {
    return {.tiles = keys + first_block,
            .num_keys = num_keys,
            .head_dim = head_dim,
            .dtype = dtype,
            .in_rows = keys_in_rows};
  }
};

}  // namespace winnow
