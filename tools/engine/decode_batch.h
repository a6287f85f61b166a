#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/device/device_layers.h"
#include "model/device/tensor_parallel.h"
#include "tools/engine/decode_case.h"
#include "tools/engine/gpu_cache_side.h"
#include "tools/engine/query_drift.h"

namespace winnow {

// One GPU of a tensor-parallel group, and the cache rank's GPU beside it, where there is one.
struct EngineRank {
  std::unique_ptr<device::Device> device, cache_device;
  std::unique_ptr<DeviceWeights> weights;
};

// What all measurements share.
struct EngineSetting {
  ModelConfig config;  // of the whole model
  int num_ranks = 1;
  uint32_t context_tokens = 0;
  Dtype weights = Dtype::kBf16;
  uint64_t seed = 1;
  ModelConfig shard() const { return ShardConfig(config, {0, num_ranks}); }
};

// A batch of generated sequences with the graphs that decode it, on all GPUs of a group. Borrows the ranks. One thread.
class DecodeBatch {
 public:
  static constexpr uint32_t kMaxSteps = 640;  // that one batch decodes: tuning, then timing

  // Bytes on one inference rank's GPU beside its weights, on the cache rank's, and of the host.
  struct Bytes {
    size_t here = 0, beside = 0, host = 0;
    std::string parts = {};  // the arithmetic, in words
  };
  static Bytes BytesOf(const device::DeviceTable& table, const EngineSetting& setting, const DecodeCase& of);

  static absl::StatusOr<std::unique_ptr<DecodeBatch>> Create(const device::DeviceTable& table,
                                                             std::span<EngineRank> ranks, const EngineSetting& setting,
                                                             const DecodeCase& of);

  // Enqueues a step on all GPUs.
  absl::Status Step();
  absl::Status Synchronize() const;
  // Median of groups of steps.
  absl::StatusOr<double> TimeSteps();
  static constexpr int kTimedSteps = 13 * 8;

  // How strongly the queries of all ranks lean to directions of their own (query_drift.h).
  absl::Status SetQueryStrength(double strength);
  // What rank 0 selected in the last step: pool indices, or positions where rows are attended to in place. They are
  // below SelectedLimit().
  absl::StatusOr<SelectedLists> Selections();
  uint32_t SelectedLimit() const;
  // Experts that the sparse layers of rank 0 have read since the start, each once a step.
  absl::StatusOr<uint64_t> TouchedExperts();
  // Rows that cache ranks have pushed since the start.
  absl::StatusOr<uint64_t> PushedRows();

  // A step of rank 0 with these parts alone; afterwards rows and selections do not fit together.
  absl::StatusOr<double> TimeParts(DecodeParts parts);
  GpuCacheSide* cache() { return sides_[0].cache.get(); }  // of rank 0, null where nothing is selected

 private:
  struct Side {
    std::unique_ptr<DeviceLayers> layers;
    std::unique_ptr<DecodeSlots> slots;
    std::unique_ptr<GpuCacheSide> cache;
    std::unique_ptr<TensorParallelMemory> memory;
    std::unique_ptr<DecodeGraph> graph;
  };

  DecodeBatch(const device::DeviceTable& table, std::span<EngineRank> ranks, const EngineSetting& setting,
              const DecodeCase& of)
      : table_(table), ranks_(ranks), setting_(setting), of_(of), sides_(ranks.size()) {}
  absl::Status CreateSide(size_t r, TensorParallelGroup& group);
  absl::Status FillSlots(device::Device& device, DecodeSlots& slots);
  absl::Status SetRows(DecodeGraph& graph);
  absl::Status CheckWaits() const;

  const device::DeviceTable& table_;
  const std::span<EngineRank> ranks_;
  const EngineSetting setting_;
  const DecodeCase of_;
  std::vector<Side> sides_;
};

}  // namespace winnow
