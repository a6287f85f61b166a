#pragma once
#include <cstddef>

#include "common/base/dtype.h"
#include "kernels/device/params/matmul_codes.h"

// The forms of a weight matrix that decode products read. A form is how many bits a weight has, what a block of the
// kernel takes of it at once, and, where groups of inputs have scales of their own, how those lie.
namespace winnow::device {

inline constexpr int kStripOut = 16;  // output features that a warp multiplies

// A stage of the ring holds a unit, kTileOut output features by kChunkK inputs; a warp multiplies a strip of the
// former. kGroup: inputs that share a scale, 0 where scales, if any, are of whole rows. kScaleOut: output features that
// do.
template <int kBitsOf, int kTileOutOf, int kGroupOf, int kScaleOutOf>
struct WeightForm {
  static constexpr int kBits = kBitsOf;
  static constexpr bool kIsPacked = kBits < 16;  // else row-major as it is
  static constexpr int kTileOut = kTileOutOf;
  static constexpr int kMultiplyWarps = kTileOut / kStripOut;
  static constexpr int kDecodeThreads = 32 * (kMultiplyWarps + 2);  // two warps fill the ring
  static constexpr int kChunkK = 128;
  static constexpr int kUnitBytes = kTileOut * kChunkK * kBits / 8;
  static constexpr int kStripBytes = kStripOut * kChunkK * kBits / 8;
  static_assert(!kIsPacked || (kTileOut == kCodeUnit && kChunkK == kCodeUnit));
  static constexpr int kGroup = kGroupOf;
  static constexpr bool kHasGroups = kGroup > 0;
  static constexpr int kScaleOut = kScaleOutOf;
  // Scales of groups lie [tiles of output features][groups][kTileOut / kScaleOut], f32. Of a matrix whose inputs end
  // within a chunk they are padded to whole chunks: those of a unit are in one piece, and a multiple of 16 bytes.
  static constexpr int kChunkGroups = kHasGroups ? kChunkK / kGroup : 0;
  static constexpr int kTileScales = kHasGroups ? kTileOut / kScaleOut : 0;
  static constexpr int kScaleBytes = kChunkGroups * kTileScales * static_cast<int>(sizeof(float));
  static_assert(kScaleBytes % 16 == 0);

  static constexpr size_t Units(int out_features, int in_features) {
    const size_t tiles = (out_features + kTileOut - 1) / kTileOut, chunks = (in_features + kChunkK - 1) / kChunkK;
    return tiles * chunks;
  }
  // Of weights that are packed.
  static constexpr size_t PackedBytes(int out_features, int in_features) {
    return Units(out_features, in_features) * kUnitBytes;
  }
  static constexpr size_t ScaleBytes(int out_features, int in_features) {
    return kHasGroups ? Units(out_features, in_features) * kScaleBytes : kBits == 8 ? out_features * sizeof(float) : 0;
  }
  // Where the scale of an output feature's group is; `in_features` of the matrix.
  static constexpr size_t ScalePlace(int out, int group, int in_features) {
    if constexpr (!kHasGroups) return out;
    const size_t tile_groups = static_cast<size_t>((in_features + kChunkK - 1) / kChunkK) * kChunkGroups;
    return (out / kTileOut * tile_groups + group) * kTileScales + out % kTileOut / kScaleOut;
  }
};

using Bf16Form = WeightForm<16, 64, 0, 1>;
using F8Form = WeightForm<8, kCodeUnit, 0, 1>;
// Scales of 16 output features: blocks have 128 of them, and what is stacked or cut keeps to 16.
template <int kGroup>
using F8GroupForm = WeightForm<8, kCodeUnit, kGroup, 16>;
template <int kGroup>
using I4GroupForm = WeightForm<4, kCodeUnit, kGroup, 1>;

// Calls visit(Form()) with the form of groups of this size, one of kMatmulGroups (matmul.h).
template <template <int> class Form, typename Visit>
auto VisitGroupForm(int group_size, const Visit& visit) {
  if (group_size == 128) return visit(Form<128>());
  if (group_size == 64) return visit(Form<64>());
  return visit(Form<32>());
}
// The same with any form that is packed.
template <typename Visit>
auto VisitPackedForm(Dtype dtype, int group_size, const Visit& visit) {
  if (dtype == Dtype::kI4) return VisitGroupForm<I4GroupForm>(group_size, visit);
  if (group_size == 0) return visit(F8Form());
  return VisitGroupForm<F8GroupForm>(group_size, visit);
}

}  // namespace winnow::device
