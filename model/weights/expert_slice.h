#pragma once
#include <string>

#include "absl/status/status.h"
#include "common/model/checkpoint.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Where one expert's matrix lies in a tensor that holds those of all experts, [num_experts, in_features, out_features],
// or, where it says so, [num_experts, out_features, in_features].
struct ExpertSlice {
  std::string tensor;
  int expert = 0;
  bool pairs = false;  // outputs belong in turn to two halves, gate and up, which lie one after the other when packed
  bool by_output = false;  // inputs of an output follow each other
};

// Checks that the slice is finite and packs it, turned, into matrix.data's place. Memory beyond source and destination
// is one panel.
absl::Status PackExpertSlice(const Checkpoint& checkpoint, const KernelTable& kernels, const ExpertSlice& slice,
                             const PackedMatrix& matrix, void* destination);

}  // namespace winnow
