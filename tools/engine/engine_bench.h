#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "tools/engine/bench_engine_options.h"
#include "tools/engine/decode_batch.h"
#include "tools/engine/decode_floor.h"
#include "tools/engine/measurement.h"

namespace winnow {

// Decode steps and prefill of one model of random weights, loaded once, on one GPU or on a tensor-parallel group, each
// of whose GPUs may have a cache rank's beside it. One thread.
class EngineBench {
 public:
  // UNAVAILABLE: no GPU; INVALID_ARGUMENT: fewer than asked for; RESOURCE_EXHAUSTED: the weights do not fit.
  static absl::StatusOr<std::unique_ptr<EngineBench>> Open(const ModelConfig& config, const BenchEngineOptions& options,
                                                           const BenchEnginePlan& plan, int num_ranks);

  // Of what is measured from now on; at first it is the plan's first.
  void SetContext(uint32_t tokens) { setting_.context_tokens = tokens; }
  // RESOURCE_EXHAUSTED with the arithmetic where the batch does not fit beside the weights, FAILED_PRECONDITION for
  // what is not built.
  absl::StatusOr<DecodeMeasurement> Decode(const DecodeCase& of);
  // The most sequences that fit, at most kMaxGraphRows; 0: none.
  int GreatestBatch(DecodeCase of) const;
  absl::StatusOr<PrefillMeasurement> Prefill(uint32_t tokens);

  ModelConfig shard() const { return setting_.shard(); }
  std::string Description() const;
  nlohmann::ordered_json DescriptionJson() const;

 private:
  EngineBench(const ModelConfig& config, const BenchEngineOptions& options, const BenchEnginePlan& plan, int num_ranks)
      : setting_{config, num_ranks, plan.contexts[0], options.weights, options.seed}, options_(options), plan_(plan) {}
  device::Device& device() const { return *ranks_[0].device; }
  const DeviceWeights& weights() const { return *ranks_[0].weights; }
  absl::Status OpenDevices();
  absl::Status LoadWeights();
  absl::Status MeasureReadRate();
  absl::Status CheckFits(const DecodeCase& of) const;
  // The same case with as few sequences in DRAM as let it fit, where scores need no rows.
  DecodeCase Fitted(DecodeCase of) const;
  // Lets the queries lean to directions of their own until selections overlap as they should.
  absl::Status Tune(DecodeBatch& batch, DecodeMeasurement& result);
  absl::StatusOr<double> MeasureOverlap(DecodeBatch& batch, const DecodeCase& of);
  absl::Status MeasureExchange(DecodeBatch& batch, uint64_t pushed_before, DecodeMeasurement& result);

  EngineSetting setting_;
  const BenchEngineOptions options_;
  const BenchEnginePlan plan_;
  const device::DeviceTable* table_ = nullptr;
  EngineRates rates_;
  std::vector<EngineRank> ranks_;
  std::map<std::string, double> strengths_;  // of specifications that have been tuned, where the next search begins
};

}  // namespace winnow
