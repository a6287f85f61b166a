#pragma once
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/model/checkpoint.h"
#include "common/model/quantized/stored_weight.h"
#include "kernels/kernel_table.h"
#include "model/weights/expert_slice.h"
#include "model/weights/latent_slice.h"

namespace winnow {

// One matrix to be packed: weights of the checkpoint, stacked, as many of their rows as the matrix has, or a slice.
struct PackJob {
  std::vector<StoredWeight> weights;  // where the matrix is quantised, all in its form
  PackedMatrix matrix;
  void* destination = nullptr;                       // what matrix.data points at; PackedBytes, 64-byte aligned
  bool release_pages = true;                         // of the weights' files, when done
  std::optional<ExpertSlice> slice = std::nullopt;   // in place of weights
  std::optional<LatentSlice> latent = std::nullopt;  // the part of the one weight that is packed
};

// Checks that every weight is finite and packs it, with `num_threads` threads, one matrix at a time each. Memory beyond
// source and destination is a few panels per thread. The error is that of the first bad matrix.
absl::Status PackAll(const Checkpoint& checkpoint, const KernelTable& kernels, std::span<const PackJob> jobs,
                     int num_threads);

}  // namespace winnow
