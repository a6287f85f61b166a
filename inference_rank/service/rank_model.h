#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "common/selection/selection_spec.h"
#include "inference_rank/backend/backend.h"
#include "inference_rank/service/inference_rank.h"

namespace winnow {

// What a rank's options come to for its model, before anything is loaded: what a rank is made from, and what its memory
// is planned from.
struct RankModel {
  ModelConfig config;
  std::shared_ptr<const Checkpoint> checkpoint;  // null: random weights, or none are there
  std::string digest;
  KvLayout layout;
  SelectionSpec selection;  // with head profile, window layers and indexer
  uint32_t max_context_tokens = 0;
  std::vector<std::string> warnings;  // about the head profile

  // kIfThere: config.json is enough.
  enum class Weights { kNeeded, kIfThere };
  // Errors name the file or option and the limit.
  static absl::StatusOr<RankModel> Read(const InferenceRankOptions& options, Weights weights = Weights::kNeeded);
};

// `model` must outlive what is made from it.
BackendOptions CpuBackendOptions(const InferenceRankOptions& options, const RankModel& model);
BackendOptions GpuBackendOptions(const InferenceRankOptions& options, const RankModel& model);

}  // namespace winnow
