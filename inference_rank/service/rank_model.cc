#include "inference_rank/service/rank_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/model/synthetic_models.h"
#include "common/selection/head_profile.h"
#include "common/selection/indexer_spec.h"
#include "common/selection/validate.h"
#include "common/selection/window_layers.h"

namespace winnow {
namespace {

// A GPU needs more tokens at a time to reach its rate.
constexpr uint32_t kCpuPrefillChunk = 512;
constexpr uint32_t kGpuPrefillChunk = 2048;

BackendOptions BackendOptionsFor(const InferenceRankOptions& options, const RankModel& model, uint32_t default_chunk) {
  return {.checkpoint = model.checkpoint,
          .config = &model.config,
          .compute_dtype = options.compute_dtype,
          .kv_dtype = options.kv_dtype,
          .max_context_tokens = model.max_context_tokens,
          .prefill_chunk_tokens = options.prefill_chunk_tokens == 0 ? default_chunk : options.prefill_chunk_tokens,
          .needs = {.layout = model.layout,
                    .selection = model.selection,
                    .max_context_tokens = model.max_context_tokens,
                    .max_running = options.max_running,
                    .slot_memory_bytes = options.slot_memory_bytes,
                    .slot_host_memory_bytes = options.slot_host_memory_bytes,
                    .prefill_memory_bytes = options.prefill_memory_bytes,
                    .prefill_mode = options.prefill_mode},
          .paces_prompts = options.scheduling.tpot_target.count() > 0,
          .offers_peer_links = options.offers_peer_links,
          .selects_in_place = options.selects_in_place,
          .synthetic_model = model.checkpoint == nullptr ? options.model_dir : std::string(),
          .model_name = options.model_dir};
}

}  // namespace

absl::StatusOr<RankModel> RankModel::Read(const InferenceRankOptions& options, Weights weights) {
  RankModel model;
  WINNOW_ASSIGN_OR_RETURN(model.config, ModelConfigOf(options.model_dir));
  const ModelConfig& config = model.config;
  const int64_t model_context = std::min<int64_t>(config.max_context_tokens, std::numeric_limits<int32_t>::max());
  if (options.max_context_tokens > model_context) {
    return absl::InvalidArgumentError(absl::StrCat("--max-context ", options.max_context_tokens,
                                                   " exceeds the model's ", model_context, " (", options.model_dir,
                                                   "/config.json)"));
  }
  model.max_context_tokens =
      options.max_context_tokens == 0 ? static_cast<uint32_t>(model_context) : options.max_context_tokens;
  model.config.ServeContextsOf(model.max_context_tokens);
  model.layout = config.kv_layout(options.kv_dtype);
  model.digest = options.model_dir;
  if (!IsSyntheticModel(options.model_dir)) {
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(options.model_dir);
    if (!checkpoint.ok() && weights == Weights::kNeeded) return checkpoint.status();
    if (checkpoint.ok()) {
      model.checkpoint = *std::move(checkpoint);
      if (weights == Weights::kNeeded) model.digest = model.checkpoint->Digest();
    }
  }
  model.selection = options.selection;
  if (!options.head_profile.empty()) {
    WINNOW_ASSIGN_OR_RETURN(const HeadProfile profile, HeadProfile::Load(options.head_profile));
    WINNOW_RETURN_IF_ERROR(profile.CheckShape(config.num_kv_layers(), config.num_kv_heads, options.head_profile));
    for (const std::string& doubt : profile.DoubtsAbout(model.digest, model.selection)) {
      model.warnings.push_back(absl::StrCat("head profile ", options.head_profile, " ", doubt));
    }
    model.selection = WithHeadProfile(model.selection, profile);
  }
  model.selection = WithWindowLayers(std::move(model.selection), config.windows, config.num_kv_heads);
  if (config.latent) {
    model.selection = WithIndexer(std::move(model.selection), static_cast<uint32_t>(config.latent->indexer.top_k));
  }
  WINNOW_RETURN_IF_ERROR(CheckFitsModel(model.selection, model.layout));
  return model;
}

BackendOptions CpuBackendOptions(const InferenceRankOptions& options, const RankModel& model) {
  return BackendOptionsFor(options, model, kCpuPrefillChunk);
}

BackendOptions GpuBackendOptions(const InferenceRankOptions& options, const RankModel& model) {
  return BackendOptionsFor(options, model, kGpuPrefillChunk);
}

}  // namespace winnow
