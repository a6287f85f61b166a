#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_rank/select/device/colocated_selection.h"
#include "cache_rank/select/device/device_plan.h"
#include "cache_rank/select/device/device_selection.h"
#include "cache_rank/select/device/select_graph.h"
#include "cache_rank/store/device/device_kv_store.h"
#include "common/model/model_config.h"
#include "common/selection/selection_spec.h"
#include "model/device/decode_graph.h"
#include "model/device/decode_slots.h"

namespace winnow {

// What a cache rank's GPU holds and does for a batch of generated sequences.
struct GpuCacheSideOptions {
  SelectionSpec spec;
  ModelConfig config;  // of the whole model
  WeightShard shard;   // of the inference rank that it serves
  int num_sequences = 0;
  uint32_t context_tokens = 0;  // of every sequence before the first step
  uint32_t max_steps = 0;
  int max_rows = 0;                 // of the exchange
  RowTier rows = RowTier::kDevice;  // kInPlace, kPinnedHost: on the inference rank's own GPU
  int dram_sequences = 0;           // of num_sequences, the last ones: their rows lie in DRAM
  Dtype kv = Dtype::kBf16;          // of the slots' rows
  Dtype weights = Dtype::kBf16;
  uint64_t weight_seed = 0;  // as the inference rank's weights
  uint64_t kv_seed = 0;
};

// A cache rank's GPU in this process: beside an inference rank's, or the same one. Keys and values are random numbers.
class GpuCacheSide {
 public:
  // Device bytes, part by part.
  static size_t WeightBytes(const device::DeviceTable& table, const GpuCacheSideOptions& options);
  static DeviceKvShape StoreShape(const GpuCacheSideOptions& options);

  // Its sequences attend from `slots`, whose memory must be mapped. All arguments outlive it.
  static absl::StatusOr<std::unique_ptr<GpuCacheSide>> Create(const device::DeviceTable& table, device::Device& device,
                                                              const DecodeSlots& slots,
                                                              const GpuCacheSideOptions& options);

  const device::CacheInbox& inbox() const { return inbox_; }
  // Layers whose residual it needs, from the first.
  int hidden_layers() const { return colocated_->hidden_layers(); }
  // Of the predictor depth, as the inference rank's weights have it.
  absl::Status SetQueryBias(const std::vector<float>& bias);

  // Beside an inference rank: enqueues the next plan.
  absl::Status LaunchPlan();
  absl::Status Synchronize() { return device_.Synchronize(stream_); }
  absl::Status WaitError() const;
  // On the same GPU: its work becomes part of the step's graph, and CountPlan belongs to every launch.
  ColocatedSelection& colocated() { return *colocated_; }

  // Rows pushed since the start.
  absl::StatusOr<uint64_t> PushedRows();
  // Microseconds on the device of all layers' actions of one kind, one after the other without waits. What they select
  // and store afterwards is worthless.
  absl::StatusOr<double> TimeActions(SelectAction::Kind kind);

 private:
  GpuCacheSide(const device::DeviceTable& table, device::Device& device, const GpuCacheSideOptions& options);
  absl::Status FillSequences(const DecodeSlots& slots);
  absl::Status FillSequence(const DecodeSlots& slots, int row);
  absl::StatusOr<uint32_t> OpenInPlace(const DecodeSlots& slots, int row);
  // Rows [num_kv_heads][count] of bf16 to the slots of a row in the slots' own dtype.
  absl::Status QuantizeIntoSlots(const DecodeSlots& slots, int row, int layer, uint32_t first, uint32_t count,
                                 const void* rows);

  const device::DeviceTable& table_;
  device::Device& device_;
  const GpuCacheSideOptions options_;
  const device::Stream stream_;
  std::unique_ptr<device::DeviceMemory> inbox_memory_;
  device::CacheInbox inbox_;
  device::InferenceInbox peer_;
  std::unique_ptr<device::DeviceMemory> quantized_;  // QuantizeIntoSlots
  std::unique_ptr<DeviceWeights> weights_;           // of the predictor depth
  std::unique_ptr<DeviceKvStore> store_;
  std::unique_ptr<DevicePlan> plan_;
  std::unique_ptr<DeviceSelection> selection_;
  std::unique_ptr<SelectGraph> graph_;
  std::unique_ptr<ColocatedSelection> colocated_;
};

}  // namespace winnow
