#pragma once
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/config/fields.h"
#include "common/selection/selection_spec.h"
#include "tools/engine/decode_case.h"

namespace winnow {

// The command line of `winnow bench engine`.
struct BenchEngineOptions {
  std::string model = "synthetic:qwen3-14b";
  std::string context = "32k";
  std::string batch = "1,8";
  std::string mode = "fixed";
  std::string devices = "0";
  std::string selections;
  std::string kv = "bf16";
  std::string tensor_parallel = "1";
  std::string prefill;
  std::string quality;
  std::string out;
  Predictor predictor = Predictor::kDepth;
  Scorer scorer = Scorer::kToken;
  Dtype weights = Dtype::kBf16;
  Dtype keys = Dtype::kBf16;
  uint32_t budget = 2048;
  double overlap = 0.75;
  double pool_factor = 2;
  uint32_t lookahead = 1;
  int chunk_tokens = 4096;
  bool breakdown = true;
  uint64_t seed = 1;
  void Declare(Fields& fields);
};

// The same, read: INVALID_ARGUMENT says which option holds what it must not.
struct BenchEnginePlan {
  std::vector<uint32_t> contexts;
  std::vector<int> batches;  // kGreatestBatch: as many as fit
  std::vector<KvPlacement> placements;
  std::vector<std::string> selections;  // specifications by text; empty: `spec` alone
  std::vector<Dtype> kv;
  std::vector<int> devices;    // of the inference ranks, then of the cache ranks beside them
  std::vector<int> num_ranks;  // of tensor-parallel groups, one after the other
  std::vector<uint32_t> prefill_tokens;
  SelectionSpec spec;
  size_t num_gpus() const;

  static constexpr int kGreatestBatch = 0;
};
absl::StatusOr<BenchEnginePlan> ReadBenchEngineOptions(const BenchEngineOptions& options);

}  // namespace winnow
