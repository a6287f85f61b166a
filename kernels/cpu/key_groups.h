#pragma once
#include <algorithm>
#include <cstdint>

#include "common/base/kv_layout.h"
#include "kernels/params/keys.h"

// The keys of a scoring call as groups of 16, half a tile each: one vector of f32 scores. Internal linkage: see
// scalar.h.

namespace winnow {
namespace {

// Bytes from one step of the head dimension to the next, in tiles of every format; the first 64 belong to the first
// half.
inline constexpr int kStepBytes = 128;
inline constexpr int kHalfStepBytes = 64;
static_assert(kBlockTokens * 4 == kStepBytes && kKeyGroup * 4 == kHalfStepBytes);

// Steps of a tile; behind them lie the scales of int8 and int4.
inline int TileSteps(const KeyScoreParams& params) {
  const int per_step = params.dtype == Dtype::kF32    ? 1
                       : params.dtype == Dtype::kBf16 ? 2
                       : params.dtype == Dtype::kI8   ? 4
                                                      : 8;
  return (params.head_dim + per_step - 1) / per_step;
}

class KeyGroups {
 public:
  explicit KeyGroups(const KeyScoreParams& params)
      : tiles_(params.tiles), groups_(params.groups), count_((params.num_keys + kKeyGroup - 1) / kKeyGroup) {}

  int count() const { return count_; }
  // The first line of the i-th group; behind the last, that one's. There must be one.
  const char* Lines(int i) const {
    i = std::min(i, count_ - 1);
    const uint32_t group = groups_ == nullptr ? static_cast<uint32_t>(i) : groups_[i];
    return static_cast<const char*>(tiles_[group / 2]) + group % 2 * kHalfStepBytes;
  }

 private:
  const void* const* tiles_;
  const uint32_t* groups_;  // may be null
  int count_;
};

}  // namespace
}  // namespace winnow
