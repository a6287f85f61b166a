#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cmd/bench_engine_options.h"
#include "cmd/gpu_cache_side.h"
#include "inference_rank/device/decode_graph.h"
#include "inference_rank/device/device_layers.h"
#include "inference_rank/device/tensor_parallel.h"

namespace winnow {

// One part of a step, over all layers.
struct PartTime {
  std::string name;
  double alone_us = 0;     // a graph of it alone
  double marginal_us = 0;  // what the step takes less without it; 0: not measured
  double floor_us = 0;     // its bytes at the measured read rate; 0: none to speak of
};

struct DecodeMeasurement {
  DecodeMode mode = DecodeMode::kDense;
  int batch = 0;
  double step_us = 0;   // median
  double floor_us = 0;  // all bytes that a step has to read, at the measured read rate
  bool selects = false;
  double overlap = 0;         // of adjacent selections, measured
  double query_strength = 0;  // that gave it, see QueryBias
  double resident = 0;        // share of a selection that need not be pushed
  size_t pushed_bytes = 0;    // of a step
  std::vector<PartTime> parts = {};
};

struct PrefillMeasurement {
  uint32_t tokens = 0;
  double us = 0;
  double flops = 0;  // of matrices and of causal attention
  double gemm_flops_per_us = 0;
};

nlohmann::ordered_json ToJson(const DecodeMeasurement& result);
nlohmann::ordered_json ToJson(const PrefillMeasurement& result);

// Decode steps and prefill of one model of random weights, loaded once, on one GPU or on a tensor-parallel group, each
// of whose GPUs may have a cache rank's beside it. One thread.
class EngineBench {
 public:
  // UNAVAILABLE: no GPU; INVALID_ARGUMENT: fewer than asked for; RESOURCE_EXHAUSTED: the weights do not fit.
  static absl::StatusOr<std::unique_ptr<EngineBench>> Open(const ModelConfig& config, const BenchEngineOptions& options,
                                                           const BenchEnginePlan& plan);

  // RESOURCE_EXHAUSTED with the arithmetic where the batch does not fit beside the weights.
  absl::StatusOr<DecodeMeasurement> Decode(DecodeMode mode, int batch);
  absl::StatusOr<PrefillMeasurement> Prefill(uint32_t tokens);

  std::string Description() const;
  nlohmann::ordered_json DescriptionJson() const;

 private:
  // One GPU of the tensor-parallel group, and the cache rank's GPU beside it.
  struct Rank {
    std::unique_ptr<cuda::Device> device, cache_device;
    std::unique_ptr<DeviceWeights> weights;
    std::unique_ptr<DeviceLayers> layers;
  };
  // What one measurement holds on a rank.
  struct Side {
    std::unique_ptr<DecodeSlots> slots;
    std::unique_ptr<GpuCacheSide> cache;
    std::unique_ptr<TensorParallelMemory> memory;
    std::unique_ptr<DecodeGraph> graph;
  };

  EngineBench(const ModelConfig& config, const BenchEngineOptions& options, const BenchEnginePlan& plan)
      : config_(config), shard_config_(ShardConfig(config, {0, plan.num_ranks})), options_(options), plan_(plan) {}
  cuda::Device& device() const { return *ranks_[0].device; }
  const DeviceWeights& weights() const { return *ranks_[0].weights; }
  absl::Status OpenDevices();
  absl::Status LoadWeights();
  absl::Status MeasureReadRate();
  absl::StatusOr<double> GemmRate();
  DecodeSlotShape SlotShape(DecodeMode mode, int batch) const;
  GpuCacheSideOptions CacheOptions(int rank, int batch) const;
  absl::Status CheckFits(DecodeMode mode, int batch) const;
  absl::StatusOr<std::unique_ptr<DecodeSlots>> FilledSlots(cuda::Device& device, DecodeMode mode, int batch);
  absl::StatusOr<std::vector<Side>> NewSides(DecodeMode mode, int batch);
  // Enqueues a step on all GPUs.
  absl::Status Step(std::vector<Side>& sides, DecodeMode mode, int batch);
  absl::Status CheckWaits(const std::vector<Side>& sides) const;
  absl::Status SynchronizeAll() const;
  // Median of groups of steps.
  absl::StatusOr<double> TimeSteps(std::vector<Side>& sides, DecodeMode mode, int batch);
  absl::StatusOr<double> TimeGraph(DecodeGraph& graph, int batch, DecodeParts parts);
  absl::Status SeatRows(DecodeGraph& graph, int batch);
  absl::Status Tune(std::vector<Side>& sides, DecodeMode mode, DecodeMeasurement& result);
  absl::StatusOr<double> MeasureOverlap(std::vector<Side>& sides, DecodeMode mode, int batch);
  absl::Status BreakDown(DecodeGraph& graph, DecodeMeasurement& result);
  absl::Status BreakDownCache(GpuCacheSide& cache, DecodeMeasurement& result);
  absl::StatusOr<uint64_t> PushedRows(std::vector<Side>& sides) const;
  double FloorUs(size_t bytes) const { return static_cast<double>(bytes) / read_bytes_per_us_; }
  // Of one rank.
  size_t AttendedBytes(DecodeMode mode, int batch) const;
  size_t ScoredBytes(int batch) const;
  double PartFloorUs(DecodePart part, DecodeMode mode, int batch) const;

  const ModelConfig config_;
  const ModelConfig shard_config_;
  const BenchEngineOptions options_;
  const BenchEnginePlan plan_;
  const cuda::CudaTable* table_ = nullptr;
  double read_bytes_per_us_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace winnow
