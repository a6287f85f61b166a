#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// Where a rank computes, as configured: "auto", "cpu", "cuda", and "auto:N" or "cuda:N" for GPU N of the machine
// instead of 0. Several GPUs are named as "cuda:0,1" or "cuda:0,cuda:1".
struct DeviceChoice {
  enum class Kind { kAuto, kCpu, kGpu };  // kAuto: the GPU if it answers and can, else the CPU
  Kind kind = Kind::kAuto;
  int ordinal = 0;
  std::vector<int> more = {};  // GPUs that are named after it

  int num_named() const { return 1 + static_cast<int>(more.size()); }
  bool operator==(const DeviceChoice&) const = default;
};

// INVALID_ARGUMENT says what is allowed.
absl::StatusOr<DeviceChoice> ParseDeviceChoice(std::string_view text);
std::string ToString(const DeviceChoice& choice);

// GPUs that one of `num_ranks` ranks computes on together, of those that all of them are given: the ones that are
// named, in their order, or, where one alone is, that many from it on. `tensor_parallel`: of each rank; 0: 1, or as the
// names divide. INVALID_ARGUMENT when the names do not go up in it, or it is not 1, 2 or 4.
absl::StatusOr<std::vector<int>> GpusOfRank(const DeviceChoice& choice, int tensor_parallel, int rank, int num_ranks);

}  // namespace winnow
