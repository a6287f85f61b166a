#include "kernels/cpu/row_keys.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

// A softmax run of keys of 128 elements.
constexpr int kMostTiles = kSoftmaxRun / kBlockTokens;
constexpr size_t kTilesBytes = kMostTiles * IndexTileBytes(128, Dtype::kI8);
static_assert(kTilesBytes >= IndexTileBytes(kMaxScoredHeadDim, Dtype::kI8));

}  // namespace

void ScoreRowKeys(const KeyScoreParams& params, void (*index_keys)(const IndexKeysParams&),
                  void (*key_score)(const KeyScoreParams&)) {
  WINNOW_CHECK(params.dtype == Dtype::kI8 && params.head_dim <= kMaxScoredHeadDim);
  alignas(64) char memory[kTilesBytes];
  const size_t tile_bytes = IndexTileBytes(params.head_dim, Dtype::kI8);
  const int most_tiles = static_cast<int>(std::min<size_t>(kTilesBytes / tile_bytes, kMostTiles));
  const void* tiles[kMostTiles];
  for (int i = 0; i < most_tiles; ++i) tiles[i] = memory + i * tile_bytes;
  const size_t row_bytes = RowLayout().bytes(params.head_dim, Dtype::kI8);
  KeyScoreParams pass = params;
  pass.in_rows = false;
  pass.groups = nullptr;
  pass.tiles = tiles;
  for (int begin = 0; begin < params.num_keys; begin += most_tiles * kBlockTokens) {
    pass.num_keys = std::min(params.num_keys - begin, most_tiles * kBlockTokens);
    pass.scores = params.scores + begin;
    for (int key = 0; key < pass.num_keys; key += kKeyGroup) {
      const uint32_t number = static_cast<uint32_t>((begin + key) / kKeyGroup);
      const uint32_t group = params.groups == nullptr ? number : params.groups[number];
      const char* const block = static_cast<const char*>(params.tiles[group / 2]);
      index_keys({.rows = block + group % 2 * kKeyGroup * row_bytes,
                  .row_elements = static_cast<int>(row_bytes),
                  .num_rows = std::min(pass.num_keys - key, kKeyGroup),
                  .first_row = key % kBlockTokens,
                  .head_dim = params.head_dim,
                  .dtype = Dtype::kI8,
                  .tile = memory + key / kBlockTokens * tile_bytes,
                  .tile_dtype = Dtype::kI8});
    }
    key_score(pass);
  }
}

}  // namespace winnow
