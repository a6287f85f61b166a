#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "common/base/kv_layout.h"
#include "tests/kernels/kernel_test.h"

namespace winnow {

// Index tiles of rows [num_keys, 2 * head_dim], written in two parts per block, as a tail grows.
struct KeyTiles {
  KeyTiles(const KernelTable& kernels, const TypedArray& rows, int num_keys, int head_dim,
           std::optional<Dtype> tile_dtype = {})
      : dtype(tile_dtype.value_or(rows.dtype)),
        tile_bytes((IndexTileBytes(head_dim, dtype) + 63) / 64 * 64),
        storage((num_keys + kBlockTokens - 1) / kBlockTokens * tile_bytes) {
    const size_t row_bytes = 2 * head_dim * DtypeBytes(rows.dtype);
    for (int first = 0; first < num_keys; first += kBlockTokens) {
      char* tile = static_cast<char*>(storage.data()) + tiles.size() * tile_bytes;
      tiles.push_back(tile);
      const int count = std::min(kBlockTokens, num_keys - first);
      const int split = count / 3;
      const uint8_t* block = rows.bytes.data() + first * row_bytes;
      const auto index = [&](int first_row, int num_rows) {
        kernels.index_keys({.rows = block + first_row * row_bytes,
                            .num_rows = num_rows,
                            .first_row = first_row,
                            .head_dim = head_dim,
                            .dtype = rows.dtype,
                            .tile = tile,
                            .tile_dtype = tile_dtype});
      };
      index(0, split);
      index(split, count - split);
    }
  }
  KeyTiles(const KeyTiles&) = delete;
  KeyTiles& operator=(const KeyTiles&) = delete;

  Dtype dtype;
  size_t tile_bytes;
  AlignedBytes storage;
  std::vector<const void*> tiles;
};

}  // namespace winnow
