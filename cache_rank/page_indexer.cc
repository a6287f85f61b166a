#include "cache_rank/page_indexer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace winnow {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

uint16_t ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Where int8 tiles keep element d of key `row`, and its scale (IndexTileBytes).
size_t Int8Offset(int d, int row) {
  return (static_cast<size_t>(d / 4) * kBlockTokens + row) * 4 + d % 4;
}
size_t Int8ScaleOffset(int head_dim, int row) {
  return static_cast<size_t>(head_dim + 3) / 4 * 4 * kBlockTokens + row * sizeof(float);
}

int Int4Value(const std::byte* tile, int d, int row) {
  const auto both = std::to_integer<int>(tile[(static_cast<size_t>(d / 8) * kBlockTokens + row) * 4 + d % 4]);
  return (d % 8 < 4 ? both & 15 : both >> 4) - 8;
}
size_t Int4ScaleOffset(int head_dim, int row) {
  return static_cast<size_t>(head_dim + 7) / 8 * 4 * kBlockTokens + row * sizeof(float);
}

}  // namespace

PageIndexer::PageIndexer(const KernelTable* kernels, const KvLayout& layout, const IndexLayout& index)
    : kernels_(kernels),
      layout_(layout),
      index_(index),
      keys_(static_cast<size_t>(index.page_tokens) * layout.head_dim),
      hi_(layout.head_dim),
      lo_(layout.head_dim),
      mean_(layout.head_dim),
      pseudo_(2 * layout.head_dim),
      bf16_(2 * layout.head_dim) {}

void PageIndexer::LoadKeys(const void* const* blocks, uint32_t first_row) {
  const int dim = layout_.head_dim;
  for (uint32_t i = 0; i < index_.page_tokens; ++i) {
    const uint32_t row = first_row + i;
    const std::byte* key =
        static_cast<const std::byte*>(blocks[row / kBlockTokens]) + row % kBlockTokens * layout_.row_bytes();
    float* out = keys_.data() + static_cast<size_t>(i) * dim;
    if (layout_.dtype == Dtype::kF32) {
      std::memcpy(out, key, dim * sizeof(float));
    } else {
      const auto* values = reinterpret_cast<const uint16_t*>(key);
      for (int d = 0; d < dim; ++d) out[d] = std::bit_cast<float>(uint32_t{values[d]} << 16);
    }
  }
}

void PageIndexer::Include(const float* key) {
  for (int d = 0; d < layout_.head_dim; ++d) {
    const float x = key[d];
    hi_[d] = x > hi_[d] && x <= kLargest ? x : hi_[d];
    lo_[d] = x < lo_[d] && x >= -kLargest ? x : lo_[d];
  }
}

void PageIndexer::IncludeAsScored(const void* tile, int row) {
  const bool int4 = index_.key_dtype == Dtype::kI4;
  const auto* bytes = static_cast<const std::byte*>(tile);
  float scale;
  std::memcpy(&scale, bytes + (int4 ? Int4ScaleOffset : Int8ScaleOffset)(layout_.head_dim, row), sizeof scale);
  for (int d = 0; d < layout_.head_dim; ++d) {
    const int value = int4 ? Int4Value(bytes, d, row) : static_cast<int8_t>(bytes[Int8Offset(d, row)]);
    const float x = static_cast<float>(value) * scale;
    hi_[d] = std::max(hi_[d], x);
    lo_[d] = std::min(lo_[d], x);
  }
}

void PageIndexer::Index(const void* const* blocks, const void* const* tiles, uint32_t first_row, int slot,
                        void* bounds_tile, void* cuboid_tile) {
  const int dim = layout_.head_dim;
  LoadKeys(blocks, first_row);
  std::fill(hi_.begin(), hi_.end(), -kLargest);
  std::fill(lo_.begin(), lo_.end(), kLargest);
  for (uint32_t i = 0; i < index_.page_tokens; ++i) Include(keys_.data() + static_cast<size_t>(i) * dim);
  for (int d = 0; d < dim; ++d) {
    if (hi_[d] < lo_[d]) hi_[d] = lo_[d] = 0;
  }
  if (cuboid_tile != nullptr) {
    std::fill(mean_.begin(), mean_.end(), 0.0f);
    for (uint32_t i = 0; i < index_.page_tokens; ++i) {
      const float* key = keys_.data() + static_cast<size_t>(i) * dim;
      for (int d = 0; d < dim; ++d) {
        const float distance = std::abs(key[d] - (hi_[d] / 2 + lo_[d] / 2));
        mean_[d] += distance <= kLargest ? distance : 0;
      }
    }
    for (int d = 0; d < dim; ++d) {
      const float centre = hi_[d] / 2 + lo_[d] / 2, radius = mean_[d] / static_cast<float>(index_.page_tokens);
      pseudo_[d] = centre + radius;
      pseudo_[dim + d] = centre - radius;
    }
    Write(slot, cuboid_tile);
  }
  if (bounds_tile == nullptr) return;
  if (index_.key_dtype.has_value()) {
    for (uint32_t row = first_row; row < first_row + index_.page_tokens; ++row) {
      IncludeAsScored(tiles[row / kBlockTokens], static_cast<int>(row % kBlockTokens));
    }
  }
  std::copy(hi_.begin(), hi_.end(), pseudo_.begin());
  std::copy(lo_.begin(), lo_.end(), pseudo_.begin() + dim);
  index_.page_dtype() == Dtype::kI8 ? WriteInt8Outwards(slot, bounds_tile) : Write(slot, bounds_tile);
}

void PageIndexer::Write(int slot, void* tile) {
  const bool as_bf16 = !index_.page_dtype().has_value() && layout_.dtype == Dtype::kBf16;
  if (as_bf16) std::transform(pseudo_.begin(), pseudo_.end(), bf16_.begin(), ToBf16);
  kernels_->index_keys({.rows = as_bf16 ? static_cast<const void*>(bf16_.data()) : pseudo_.data(),
                        .num_rows = 1,
                        .first_row = slot,
                        .head_dim = 2 * layout_.head_dim,
                        .dtype = as_bf16 ? Dtype::kBf16 : Dtype::kF32,
                        .tile = tile,
                        .tile_dtype = index_.page_dtype()});
}

void PageIndexer::WriteInt8Outwards(int slot, void* tile) const {
  const int dim = 2 * layout_.head_dim;
  auto* bytes = static_cast<std::byte*>(tile);
  float largest = 0;
  for (const float x : pseudo_) largest = std::max(largest, std::abs(x));
  // A little more than the step of 127, so that rounding outwards never needs 128.
  const float step = std::max(largest / 127 * (1 + 0x1p-20f), 0x1p-120f);
  std::memcpy(bytes + Int8ScaleOffset(dim, slot), &step, sizeof step);
  for (int d = 0; d < dim; ++d) {
    const double steps = double{pseudo_[d]} / step;
    const double outwards = d < dim / 2 ? std::ceil(steps) : std::floor(steps);
    bytes[Int8Offset(d, slot)] = static_cast<std::byte>(static_cast<int8_t>(outwards));
  }
}

}  // namespace winnow
