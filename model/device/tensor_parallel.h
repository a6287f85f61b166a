#pragma once
#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/params/step.h"
#include "kernels/plugin/device_table.h"
#include "model/device/device_layers.h"

namespace winnow {

// What one GPU of a tensor-parallel group holds for the others, which map it. Zeroed once.
struct TensorParallelBox {
  float* terms = nullptr;           // [2][num_ranks][rows * hidden_size]: of o, and of down
  uint32_t* logit_flags = nullptr;  // [num_ranks]
  float* logits = nullptr;          // of its layers
};

// A rank's place in its group; with one rank there is nothing to add up.
struct TensorParallelGroup {
  int rank = 0;
  int num_ranks = 1;
  std::array<TensorParallelBox, device::kMaxTensorParallel> boxes = {};
};

// The memory of one rank's box.
class TensorParallelMemory {
 public:
  static size_t Bytes(const ModelConfig& config, int num_ranks, int max_rows);
  static absl::StatusOr<std::unique_ptr<TensorParallelMemory>> Create(device::Device& device,
                                                                      const DeviceLayers& layers, int num_ranks,
                                                                      int max_rows);
  const TensorParallelBox& box() const { return box_; }

 private:
  std::unique_ptr<device::DeviceMemory> memory_;
  TensorParallelBox box_;
};

}  // namespace winnow
