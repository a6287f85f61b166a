#pragma once
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/model/checkpoint.h"
#include "kernels/kernel_table.h"
#include "model/weights/expert_slice.h"

namespace winnow {

// One matrix to be packed: the rows of the named tensors, stacked.
struct PackJob {
  std::vector<std::string> tensors;  // validated: [rows, in_features] each, f32, f16 or bf16
  PackedMatrix matrix;
  void* destination = nullptr;                      // what matrix.data points at; PackedBytes, 64-byte aligned
  bool release_pages = true;                        // of the tensors' file, when done
  std::optional<ExpertSlice> slice = std::nullopt;  // the matrix is that of one expert in the only tensor
};

// Checks that every tensor is finite and packs it, with `num_threads` threads, one matrix at a time each. Memory beyond
// source and destination is one panel per thread. The error is that of the first bad matrix.
absl::Status PackAll(const Checkpoint& checkpoint, const KernelTable& kernels, std::span<const PackJob> jobs,
                     int num_threads);

}  // namespace winnow
