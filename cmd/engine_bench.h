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
  double overlap = 0;       // of adjacent selections, measured
  double resident = 0;      // share of a selection that need not be pushed
  size_t pushed_bytes = 0;  // of a step
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

// Decode steps and prefill of one model of random weights, loaded once. One thread.
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
  EngineBench(const ModelConfig& config, const BenchEngineOptions& options, const BenchEnginePlan& plan)
      : config_(config), options_(options), plan_(plan) {}
  absl::Status OpenDevices(const cuda::CudaTable* table);
  absl::Status MeasureReadRate();
  absl::StatusOr<double> GemmRate();
  DecodeSlotShape SlotShape(DecodeMode mode, int batch) const;
  GpuCacheSideOptions CacheOptions(int batch) const;
  absl::Status CheckFits(DecodeMode mode, int batch) const;
  absl::StatusOr<std::unique_ptr<DecodeSlots>> FilledSlots(DecodeMode mode, int batch);
  // Median of groups of steps, each of `launch`.
  absl::StatusOr<double> TimeSteps(cuda::Stream stream, const std::function<absl::Status()>& launch);
  absl::StatusOr<double> TimeGraph(DecodeGraph& graph, int batch, DecodeParts parts);
  absl::Status SeatRows(DecodeGraph& graph, int batch);
  absl::Status Tune(DecodeSlots& slots, GpuCacheSide& cache, const std::function<absl::Status()>& step,
                    DecodeMeasurement& result);
  absl::StatusOr<double> MeasureOverlap(DecodeSlots& slots, const std::function<absl::Status()>& step);
  absl::Status BreakDown(DecodeGraph& graph, int batch, DecodeMeasurement& result);
  absl::Status BreakDownCache(GpuCacheSide& cache, DecodeMeasurement& result);
  double FloorUs(size_t bytes) const { return static_cast<double>(bytes) / read_bytes_per_us_; }
  size_t AttendedBytes(DecodeMode mode, int batch) const;
  size_t ScoredBytes(int batch) const;
  double PartFloorUs(DecodePart part, DecodeMode mode, int batch) const;

  const ModelConfig config_;
  const BenchEngineOptions options_;
  const BenchEnginePlan plan_;
  const cuda::CudaTable* table_ = nullptr;
  std::unique_ptr<cuda::Device> device_, cache_device_;  // the second for disaggregated alone
  double read_bytes_per_us_ = 0;
  std::unique_ptr<DeviceWeights> weights_;
  std::unique_ptr<DeviceLayers> layers_;
};

}  // namespace winnow
