#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/params/cache.h"
#include "kernels/device/params/selection.h"
#include "kernels/device/stream.h"

namespace winnow::device {

struct MeasuredMass {
  uint32_t plan = 0;  // in which it was measured
  float mass = 0;     // NaN: it was not
};

// Captured mass of what the rows of a plan attend to in one layer: the share of the softmax of their real queries over
// rows [0, position] that sinks, the selected rows and the recent window hold, averaged over the group. Rows [0,
// position] are in the store. What was selected is what the plan's assignment of slots has left in the residency, or,
// where rows are attended to in place, what `selected` names. Measured are lists that select (more rows between `first`
// and `last` than their budget), at positions that MeasuresMass or, with `staggers`, MeasuresMassOfRow
// (common/selection/mass_positions.h) names; all others get NaN.
struct AttendedMassParams {
  const SelectionList* lists = nullptr;  // [num_rows, num_kv_heads]
  int num_rows = 0;
  int num_kv_heads = 0;
  const uint32_t* blocks = nullptr;
  KeyStore keys;
  int head_dim = 0;  // a multiple of 32
  int group = 0;     // 1..8
  float scale = 0;
  const float* queries = nullptr;       // [num_rows, num_kv_heads * group, head_dim] rotated, not scaled
  uint32_t max_keys = 0;                // greatest position + 1 this launch may meet: fixes the grid, not the result
  const uint32_t* positions = nullptr;  // [num_rows], kNoPosition: nobody
  const uint32_t* prompt_tokens = nullptr;  // [num_rows]
  uint32_t interval = 0;
  bool staggers = false;                     // whether rows have their turns
  const ResidencyList* residency = nullptr;  // [num_rows, num_kv_heads]; null: in place
  const uint32_t* selected = nullptr;        // [num_rows, num_kv_heads, max_budget] positions
  const uint32_t* counts = nullptr;          // [num_rows, num_kv_heads] of those, count_stride words apart
  uint32_t count_stride = 1;
  uint32_t max_budget = 0;
  const uint32_t* plan = nullptr;       // one word
  MeasuredMass* masses = nullptr;       // [num_rows, num_kv_heads]
  MeasuredMass* peer_masses = nullptr;  // of even plans, those of odd ones peer_stride behind; may be null. Rows
                                        // without a position are left out
  int64_t peer_stride = 0;
  uint32_t* arrivals = nullptr;  // [num_rows, num_kv_heads] zeroed once when it is allocated, for one stream
  void* scratch = nullptr;       // mass_scratch_bytes, likewise, without being zeroed
};

constexpr bool MeasuresAt(const AttendedMassParams& p, uint32_t row, uint32_t position) {
  const bool is_first = position < p.prompt_tokens[row] + p.interval;
  if (!p.staggers) return position % p.interval == 0 || is_first;
  const uint32_t at = position + row;
  return at % p.interval == 0 || position == p.prompt_tokens[row] || (is_first && at % 4 == 0);
}

struct AttendedMassKernels {
  size_t (*mass_scratch_bytes)(const AttendedMassParams&);
  void (*attended_mass)(Stream, const AttendedMassParams&);
};
extern const AttendedMassKernels kAttendedMassKernels;

}  // namespace winnow::device
