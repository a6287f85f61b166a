#pragma once
#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"
#include "kernels/params.h"

namespace winnow {

// Which index a cache rank keeps of a sequence's keys beside the tiles of all keys: decided by the sequence's
// specification when it is opened.
struct IndexLayout {
  uint32_t page_tokens = 0;  // of pages whose bounds are kept; 0: none
  bool cuboid = false;       // cuboid-means of the pages, beside the bounds
  bool int8 = false;         // keys and pages are int8 instead of the rows' dtype

  friend bool operator==(const IndexLayout&, const IndexLayout&) = default;
};

constexpr IndexLayout IndexLayoutFor(const SelectionSpec& spec) {
  const bool selects = !IsDense(spec) && spec.predictor != Predictor::kFixed;
  const bool pages = selects && spec.scorer != Scorer::kToken;
  return {.page_tokens = pages ? spec.page_tokens : 0,
          .cuboid = pages && spec.scorer == Scorer::kPageCuboid,
          .int8 = selects && spec.key_copy == KeyCopy::kInt8};
}

// Complete pages among `rows` rows.
constexpr uint32_t CompletePages(const IndexLayout& index, uint32_t rows) {
  return index.page_tokens == 0 ? 0 : rows / index.page_tokens;
}

// Keys as kernels score them: of rows, or pseudo-keys of pages.
struct KeyTable {
  const void* const* tiles = nullptr;  // [ceil(num_keys / kBlockTokens)] index tiles
  uint32_t num_keys = 0;
  int head_dim = 0;  // of a pseudo-key: twice that of the keys
  Dtype dtype = Dtype::kBf16;
  // Null: keys 0, 1, ...; otherwise [num_keys / kKeyGroup] groups of 16 keys, see KeyScoreParams.
  const uint32_t* groups = nullptr;

  uint64_t key_bytes() const { return uint64_t{num_keys} * head_dim * DtypeBytes(dtype); }
};

// The index of one (sequence, layer, kv head). Pages: the k-th holds rows [k * page_tokens, (k + 1) * page_tokens) and
// is there when all of them are.
struct HeadIndex {
  const void* const* keys = nullptr;    // tiles of all rows
  const void* const* bounds = nullptr;  // tiles of the pages' [max | min]; null without pages
  const void* const* cuboids = nullptr;
  Dtype dtype = Dtype::kBf16;  // of all tiles
  uint32_t page_tokens = 0;
};

}  // namespace winnow
