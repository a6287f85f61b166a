#include "cache_rank/index/page_indexer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "common/base/check.h"

namespace winnow {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr int kMaxHeadDim = kMaxScoredHeadDim / 2;

uint16_t ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

size_t Int4ScaleOffset(int head_dim, int row) {
  return static_cast<size_t>(head_dim + 7) / 8 * 4 * kBlockTokens + row * sizeof(float);
}

}  // namespace

// Elements that lie together in a tile.
using Four = float __attribute__((vector_size(16)));

// Loops are written so that compilers vectorise them: a prompt's pages are indexed while it is computed.
struct PageIndexer::Box {
  // Whole groups of elements, as tiles have them.
  alignas(64) float hi[kMaxHeadDim + 8];
  alignas(64) float lo[kMaxHeadDim + 8];

  void Include(const float* __restrict key, int dim) {
    for (int d = 0; d < dim; ++d) {
      const float x = key[d];
      const float upper = x <= kLargest ? x : -kLargest, lower = x >= -kLargest ? x : kLargest;
      hi[d] = hi[d] < upper ? upper : hi[d];
      lo[d] = lower < lo[d] ? lower : lo[d];
    }
  }
  // Elements [first_d, first_d + 4) of `count` keys as they are scored: values[key][4] * scales[key].
  void IncludeGroup(int first_d, int count, const float* __restrict scales, const float* __restrict values) {
    Four most, least, value;
    std::memcpy(&most, hi + first_d, sizeof most);
    std::memcpy(&least, lo + first_d, sizeof least);
    for (int i = 0; i < count; ++i) {
      std::memcpy(&value, values + 4 * i, sizeof value);
      value *= scales[i];
      most = most < value ? value : most;
      least = value < least ? value : least;
    }
    std::memcpy(hi + first_d, &most, sizeof most);
    std::memcpy(lo + first_d, &least, sizeof least);
  }
};

PageIndexer::PageIndexer(const KernelTable* kernels, const KvLayout& layout, const IndexLayout& index)
    : kernels_(kernels), layout_(layout), index_(index) {
  WINNOW_CHECK(layout.head_dim <= kMaxHeadDim);
}

const float* PageIndexer::LoadKey(const void* const* blocks, uint32_t row, float* key) const {
  const std::byte* stored =
      static_cast<const std::byte*>(blocks[row / kBlockTokens]) + row % kBlockTokens * layout_.row_bytes();
  if (layout_.dtype == Dtype::kF32) return reinterpret_cast<const float*>(stored);
  if (layout_.dtype == Dtype::kI8) {
    const auto* const codes = reinterpret_cast<const int8_t*>(stored);
    float scale;
    std::memcpy(&scale, stored + layout_.row.scales_offset_bytes(layout_.head_dim, layout_.dtype), sizeof scale);
    if (!(scale <= kLargest)) scale = 0;  // as it is scored
    for (int d = 0; d < layout_.head_dim; ++d) key[d] = static_cast<float>(codes[d]) * scale;
    return key;
  }
  const auto* values = reinterpret_cast<const uint16_t*>(stored);
  for (int d = 0; d < layout_.head_dim; ++d) key[d] = std::bit_cast<float>(uint32_t{values[d]} << 16);
  return key;
}

void PageIndexer::IncludeAsScored(const void* tile, int row, int count, Box* box) const {
  const bool int4 = index_.key_dtype == Dtype::kI4;
  const auto* bytes = static_cast<const int8_t*>(tile);
  float scales[kBlockTokens];
  std::memcpy(scales, bytes + (int4 ? Int4ScaleOffset : Int8TileScaleOffset)(layout_.head_dim, row),
              count * sizeof(float));
  float values[4 * kBlockTokens];
  for (int d = 0; d < layout_.head_dim; d += int4 ? 8 : 4) {
    const int8_t* const group = bytes + (static_cast<size_t>(int4 ? d / 8 : d / 4) * kBlockTokens + row) * 4;
    if (!int4) {
      for (int i = 0; i < 4 * count; ++i) values[i] = group[i];
      box->IncludeGroup(d, count, scales, values);
      continue;
    }
    for (int i = 0; i < 4 * count; ++i) values[i] = static_cast<float>((group[i] & 15) - 8);
    box->IncludeGroup(d, count, scales, values);
    for (int i = 0; i < 4 * count; ++i) values[i] = static_cast<float>((group[i] >> 4 & 15) - 8);
    box->IncludeGroup(d + 4, count, scales, values);
  }
}

void PageIndexer::Index(const void* const* blocks, const void* const* tiles, uint32_t first_row, int slot,
                        void* bounds_tile, void* cuboid_tile) const {
  const int dim = layout_.head_dim;
  const uint32_t end = first_row + index_.page_tokens;
  Box box;
  std::fill(std::begin(box.hi), std::end(box.hi), -kLargest);
  std::fill(std::begin(box.lo), std::end(box.lo), kLargest);
  float key[kMaxHeadDim], pseudo[2 * kMaxHeadDim];
  for (uint32_t row = first_row; row < end; ++row) box.Include(LoadKey(blocks, row, key), dim);
  for (int d = 0; d < dim; ++d) {
    if (box.hi[d] < box.lo[d]) box.hi[d] = box.lo[d] = 0;
  }
  if (cuboid_tile != nullptr) {
    float sum[kMaxHeadDim] = {};
    for (uint32_t row = first_row; row < end; ++row) {
      const float* const of_row = LoadKey(blocks, row, key);
      for (int d = 0; d < dim; ++d) {
        const float distance = std::abs(of_row[d] - (box.hi[d] / 2 + box.lo[d] / 2));
        sum[d] += distance <= kLargest ? distance : 0;
      }
    }
    for (int d = 0; d < dim; ++d) {
      const float centre = box.hi[d] / 2 + box.lo[d] / 2, radius = sum[d] / static_cast<float>(index_.page_tokens);
      pseudo[d] = centre + radius;
      pseudo[dim + d] = centre - radius;
    }
    Write(pseudo, slot, cuboid_tile);
  }
  if (bounds_tile == nullptr) return;
  // Keys of int8 are as they are scored.
  const bool is_copied = index_.key_dtype.has_value() && layout_.dtype != Dtype::kI8;
  for (uint32_t row = first_row; is_copied && row < end;) {
    const uint32_t in_block = row % kBlockTokens, count = std::min<uint32_t>(end - row, kBlockTokens - in_block);
    IncludeAsScored(tiles[row / kBlockTokens], static_cast<int>(in_block), static_cast<int>(count), &box);
    row += count;
  }
  std::copy_n(box.hi, dim, pseudo);
  std::copy_n(box.lo, dim, pseudo + dim);
  index_.page_dtype() == Dtype::kI8 ? WriteInt8Outwards(pseudo, slot, bounds_tile) : Write(pseudo, slot, bounds_tile);
}

void PageIndexer::Write(const float* pseudo, int slot, void* tile) const {
  const bool as_bf16 = !index_.page_dtype().has_value() && layout_.dtype == Dtype::kBf16;
  uint16_t bf16[2 * kMaxHeadDim];
  if (as_bf16) std::transform(pseudo, pseudo + 2 * layout_.head_dim, bf16, ToBf16);
  kernels_->index_keys({.rows = as_bf16 ? static_cast<const void*>(bf16) : pseudo,
                        .num_rows = 1,
                        .first_row = slot,
                        .head_dim = 2 * layout_.head_dim,
                        .dtype = as_bf16 ? Dtype::kBf16 : Dtype::kF32,
                        .tile = tile,
                        .tile_dtype = index_.page_dtype()});
}

void PageIndexer::WriteInt8Outwards(const float* pseudo, int slot, void* tile) const {
  const int dim = 2 * layout_.head_dim;
  int32_t largest_bits = 0;  // of numbers that are not negative, bits are ordered as values are
  for (int d = 0; d < dim; ++d) largest_bits = std::max(largest_bits, std::bit_cast<int32_t>(std::abs(pseudo[d])));
  // A little more than the step of 127, so that rounding outwards never needs 128.
  const float step = std::max(std::bit_cast<float>(largest_bits) / 127 * (1 + 0x1p-20f), 0x1p-120f);
  double steps[2 * kMaxHeadDim];
  int32_t outwards[2 * kMaxHeadDim];
  for (int d = 0; d < dim; ++d) steps[d] = double{pseudo[d]} / step;
  for (int d = 0; d < dim; ++d) outwards[d] = static_cast<int32_t>(steps[d]);  // towards zero
  for (int d = 0; d < dim / 2; ++d) outwards[d] += steps[d] > outwards[d] ? 1 : 0;
  for (int d = dim / 2; d < dim; ++d) outwards[d] -= steps[d] < outwards[d] ? 1 : 0;
  int8_t values[2 * kMaxHeadDim];
  for (int d = 0; d < dim; ++d) values[d] = static_cast<int8_t>(outwards[d]);
  auto* const bytes = static_cast<std::byte*>(tile);
  std::memcpy(bytes + Int8TileScaleOffset(dim, slot), &step, sizeof step);
  for (int d = 0; d < dim; d += 4) std::memcpy(bytes + Int8TileOffset(d, slot), values + d, 4);
}

}  // namespace winnow
