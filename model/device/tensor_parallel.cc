#include "model/device/tensor_parallel.h"

#include "common/base/status.h"
#include "kernels/device/arena.h"

namespace winnow {
namespace {

size_t Carve(const ModelConfig& config, int num_ranks, int max_rows, void* region, TensorParallelBox& box) {
  device::Arena arena(region);
  box.terms = arena.TakeArray<float>(2 * static_cast<size_t>(num_ranks) * max_rows * config.hidden_size);
  box.logit_flags = arena.TakeArray<uint32_t>(num_ranks);
  return arena.used_bytes();
}

}  // namespace

size_t TensorParallelMemory::Bytes(const ModelConfig& config, int num_ranks, int max_rows) {
  TensorParallelBox box;
  return Carve(config, num_ranks, max_rows, nullptr, box);
}

absl::StatusOr<std::unique_ptr<TensorParallelMemory>> TensorParallelMemory::Create(device::Device& device,
                                                                                   const DeviceLayers& layers,
                                                                                   int num_ranks, int max_rows) {
  auto memory = std::make_unique<TensorParallelMemory>();
  const size_t bytes = Carve(layers.config(), num_ranks, max_rows, nullptr, memory->box_);
  WINNOW_ASSIGN_OR_RETURN(memory->memory_, device.Allocate(bytes));
  Carve(layers.config(), num_ranks, max_rows, memory->memory_->data(), memory->box_);
  memory->box_.logits = layers.logits();
  const device::Stream stream = device.NewStream();
  device.FillAsync(memory->memory_->data(), 0, bytes, stream);
  WINNOW_RETURN_IF_ERROR(device.Synchronize(stream));
  return memory;
}

}  // namespace winnow
