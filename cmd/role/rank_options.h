#pragma once
#include "cmd/role/options/inference_options.h"
#include "common/base/status.h"
#include "inference_rank/service/inference_rank.h"

namespace winnow {

// What the options of an inference process mean for its rank; what only a running process has is left out.
absl::StatusOr<InferenceRankOptions> RankOptionsOf(const InferenceProcessOptions& options);

}  // namespace winnow
