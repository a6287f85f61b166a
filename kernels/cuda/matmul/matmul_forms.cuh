#pragma once
#include <cstddef>

#include "common/base/dtype.h"

// The forms of a weight matrix that decode products read. A form is how many bits a weight has, what a block of the
// kernel takes of it at once, and, where groups of inputs have scales of their own, how those lie.
namespace winnow::device {

// A stage of the ring holds kWeightBoxes boxes of 128 bytes by kTileOut output features; a warp multiplies 16 of them.
// kGroup: inputs that share a scale, 0 where scales, if any, are of whole rows. kScaleOut: output features that do.
template <int kBitsOf, int kTileOutOf, int kWeightBoxesOf, int kGroupOf, int kScaleOutOf>
struct WeightForm {
  static constexpr int kBits = kBitsOf;
  static constexpr int kTileOut = kTileOutOf;
  static constexpr int kMultiplyWarps = kTileOut / 16;
  static constexpr int kDecodeThreads = 32 * (kMultiplyWarps + 1);
  static constexpr int kWeightBoxes = kWeightBoxesOf;
  static constexpr int kWeightBoxK = 1024 / kBits;
  static constexpr int kChunkK = kWeightBoxes * kWeightBoxK;
  static constexpr int kGroup = kGroupOf;
  static constexpr bool kHasGroups = kGroup > 0;
  static constexpr int kScaleOut = kScaleOutOf;
  // Scales of groups lie [tiles of output features][groups][kTileOut / kScaleOut], f32. Of a matrix whose inputs end
  // within a chunk they are padded to whole chunks: those of a unit are in one piece, and a multiple of 16 bytes.
  static constexpr int kChunkGroups = kHasGroups ? kChunkK / kGroup : 0;
  static constexpr int kTileScales = kHasGroups ? kTileOut / kScaleOut : 0;
  static constexpr int kScaleBytes = kChunkGroups * kTileScales * static_cast<int>(sizeof(float));
  static_assert(kScaleBytes % 16 == 0);

  static constexpr size_t ScaleBytes(int out_features, int in_features) {
    const size_t tiles = (out_features + kTileOut - 1) / kTileOut, chunks = (in_features + kChunkK - 1) / kChunkK;
    return tiles * chunks * kScaleBytes;
  }
  // Where the scale of an output feature's group is; `in_features` of the matrix.
  static constexpr size_t ScalePlace(int out, int group, int in_features) {
    const size_t tile_groups = static_cast<size_t>((in_features + kChunkK - 1) / kChunkK) * kChunkGroups;
    return (out / kTileOut * tile_groups + group) * kTileScales + out % kTileOut / kScaleOut;
  }
};

using Bf16Form = WeightForm<16, 64, 2, 0, 1>;
using F8Form = WeightForm<8, 64, 2, 0, 1>;
// Scales of 16 output features: blocks have 128 of them, and what is stacked or cut keeps to 16.
template <int kGroup>
using F8GroupForm = WeightForm<8, 64, 2, kGroup, 16>;
// Twice the output features: a stage then brings as many bytes of W for each of x as one of fp8 does.
template <int kGroup>
using I4GroupForm = WeightForm<4, 128, 1, kGroup, 1>;

// Calls visit(Form()) with the form of groups of this size, one of kMatmulGroups (matmul.h).
template <template <int> class Form, typename Visit>
auto VisitGroupForm(int group_size, const Visit& visit) {
  if (group_size == 128) return visit(Form<128>());
  if (group_size == 64) return visit(Form<64>());
  return visit(Form<32>());
}
template <typename Visit>
auto VisitGroupForm(Dtype dtype, int group_size, const Visit& visit) {
  if (dtype == Dtype::kF8) return VisitGroupForm<F8GroupForm>(group_size, visit);
  return VisitGroupForm<I4GroupForm>(group_size, visit);
}

}  // namespace winnow::device
