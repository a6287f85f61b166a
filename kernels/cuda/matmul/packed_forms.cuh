#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/cuda/matmul/matmul_cuts.cuh"

// How matrices of codes lie in memory, which is how decode products cut them into work.
//
// Output features come in strips of 16, which an mma takes. A product is done by teams of four blocks: a team has a
// range of strips, and each of its blocks a quarter of their inputs, whose sums meet through memory. So every block
// has the same amount of work, x is read by few, and no block adds up more than four parts. A team takes its strips in
// passes of up to 16. The shape of the matrix alone decides all of this, so that sums are the same however many rows
// there are, and on every GPU.
namespace winnow::cuda {

inline constexpr int kTeamBlocks = 4;
inline constexpr int kMaxTeams = 33;  // a block on each of the 132 multiprocessors of an H100 or H200
inline constexpr int kPassStrips = 16;

// Strips that lie together: of a pass of a team.
struct StripRange {
  int first, count;
};

struct PackedShape {
  constexpr PackedShape(int out_features, int in_features)
      : strips((out_features + kStripOut - 1) / kStripOut),
        steps(in_features / kStepK),
        chunks((in_features + kChunkK - 1) / kChunkK),
        team_strips((strips + kMaxTeams - 1) / kMaxTeams),
        passes((team_strips + kPassStrips - 1) / kPassStrips),
        pass_strips((team_strips + passes - 1) / passes) {}

  constexpr int teams() const { return (strips + team_strips - 1) / team_strips; }
  // Of the last team count may be 0 or less.
  constexpr StripRange Pass(int team, int pass) const {
    const int at = pass * pass_strips, first = team * team_strips + at;
    int count = team_strips - at < pass_strips ? team_strips - at : pass_strips;
    if (strips - first < count) count = strips - first;
    return {first, count};
  }
  constexpr StripRange PassOf(int strip) const { return Pass(strip / team_strips, strip % team_strips / pass_strips); }
  // Chunks of a team's block are [FirstChunk(block), FirstChunk(block + 1)).
  constexpr int FirstChunk(int block) const { return block * chunks / kTeamBlocks; }

  int strips, steps, chunks;
  int team_strips, passes, pass_strips;
};

// A form of codes. kGroup: inputs that share a scale, 0 where scales are of whole rows. Codes lie by passes, in them by
// steps, in those by strips; and of a strip's step each lane has a run of bytes (packed_codes.cuh). Scales of groups
// lie by passes, in them by groups of whole chunks, in those by strips: of int4 one for each output feature, of fp8 one
// for each 16, four times, as copies are of 16 bytes.
template <int kBitsOf, int kGroupOf>
struct PackedForm {
  static constexpr int kBits = kBitsOf;
  static constexpr int kStripBytes = kStripOut * kStepK * kBits / 8;  // of a step
  static constexpr int kGroup = kGroupOf;
  static constexpr bool kHasGroups = kGroup > 0;
  static constexpr int kChunkGroups = kHasGroups ? kChunkK / kGroup : 0;
  static constexpr int kStripScales = kBits == 4 ? kStripOut : 4;  // of a group
  // Of a strip's chunk.
  static constexpr int kScaleBytes = kChunkGroups * kStripScales * static_cast<int>(sizeof(float));

  static constexpr size_t ScaleBytes(int out_features, int in_features) {
    const PackedShape shape(out_features, in_features);
    return static_cast<size_t>(shape.strips) * shape.chunks * kScaleBytes;
  }
  // The first scale of a strip's group.
  static constexpr size_t ScalePlace(const PackedShape& shape, int strip, int group) {
    const StripRange pass = shape.PassOf(strip);
    const size_t before = static_cast<size_t>(pass.first) * shape.chunks * kChunkGroups;
    return (before + static_cast<size_t>(group) * pass.count + (strip - pass.first)) * kStripScales;
  }
};

using F8RowForm = PackedForm<8, 0>;
template <int kGroup>
using F8GroupForm = PackedForm<8, kGroup>;
template <int kGroup>
using I4GroupForm = PackedForm<4, kGroup>;

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
// Of any packed matrix.
template <typename Visit>
auto VisitPackedForm(Dtype dtype, int group_size, const Visit& visit) {
  if (group_size == 0) return visit(F8RowForm());
  return VisitGroupForm(dtype, group_size, visit);
}

}  // namespace winnow::cuda
