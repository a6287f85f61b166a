#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/device/params/step.h"
#include "kernels/plugin/device_table.h"
#include "model/device/device_layers.h"

namespace winnow {

// Adds up what the GPUs of a tensor-parallel group have each computed, in the order of the group, so that all get the
// same bits: of passes that are launched one by one, whose graphs are those of decode_graph.h. Over peer memory, or
// over pinned host memory where GPUs do not reach each other. All GPUs must be given the same calls, each by a thread
// of its own or before any waits.
class ShardSums final : public PartialSums {
 public:
  enum class Boxes : uint8_t { kPeerMemory, kHostMemory };
  // What the others write to.
  struct Box {
    float* mailboxes = nullptr;       // [2][num_ranks][rows that a rank owns at most * hidden_size]
    uint32_t* flags = nullptr;        // [2][2][num_ranks][kChunkSumBlocks]
    void* normed = nullptr;           // [max_rows, hidden_size] bf16: of its layers, or of the box
    float* terms = nullptr;           // [2][num_ranks][kMaxGraphRows * hidden_size], of decode rows
    uint32_t* logit_flags = nullptr;  // [num_ranks]
    float* logits = nullptr;          // [kMaxGraphRows, vocab_size]: of its layers, or of the box
  };

  static size_t BoxBytes(const ModelConfig& config, int num_ranks, int max_rows);
  // Of the GPU that holds this shard of the weights. Layers outlive it.
  static absl::StatusOr<std::unique_ptr<ShardSums>> Create(device::Device& device, DeviceLayers& layers, int max_rows,
                                                           Boxes boxes);
  const Box& box() const { return box_; }
  // Those of all ranks, in their order.
  void Connect(std::span<const Box> boxes);

  // Before the first sum of a pass, when the last pass has ended.
  void BeginPass(device::Stream stream);
  // Whose rows sums of chunks have from now on: those of a chunk from first_position on, shared out by position, or all
  // of them with every rank.
  void BeginChunk(uint32_t first_position, bool all_own_all);
  // hidden() += partial() of rank 0 + of rank 1 + ...
  void AddChunk(device::Stream stream, int num_rows, const float* norm_weight) override;
  void NormChunk(device::Stream stream, int num_rows, const float* weight) override;
  bool AllOwnAllRows() const override { return owners_.group_rows == 0; }
  DecodeSum NextDecodeSum() override;
  // Rank 0 gets all logits.
  void GatherLogits(device::Stream stream, int num_rows);

  // ABORTED, DEADLINE_EXCEEDED when a wait ended without the others. What passes gave since is worthless.
  absl::Status Error() const;
  // Ends all waits, from now on. Any thread.
  void Abort();

 private:
  ShardSums(device::Device& device, DeviceLayers& layers, int max_rows, Boxes boxes);
  size_t Carve(void* region, int max_rows);
  void EnqueueChunk(device::Stream stream, int num_rows, const float* partial, const float* norm_weight);
  uint32_t* word(int i) const { return static_cast<uint32_t*>(words_->data()) + i; }

  device::Device& device_;
  DeviceLayers& layers_;
  const WeightShard shard_;
  const Boxes kind_;
  const size_t mailbox_stride_;
  std::unique_ptr<device::DeviceMemory> memory_, state_, words_;
  Box box_;
  device::ChunkOwners owners_;
  std::array<Box, device::kMaxTensorParallel> boxes_ = {};
  uint32_t* counted_ = nullptr;   // device: sums before this pass
  uint32_t* arrivals_ = nullptr;  // device
  uint32_t num_sums_ = 1;         // since the start, and one: flags begin as zeros
  uint32_t pass_begin_ = 1;       // num_sums_ then
};

}  // namespace winnow
