#include "inference_rank/inference_rank.h"

#include <algorithm>
#include <filesystem>

#include "common/selection/head_profile.h"
#include "common/selection/validate.h"
#include "inference_rank/fingerprint.h"

namespace winnow {
namespace {

uint64_t ActivationBytes(const ModelConfig& config, uint32_t prefill_chunk_tokens) {
  const uint64_t rows = std::max<uint32_t>(prefill_chunk_tokens, kMaxDecodeRows);
  const uint64_t row_floats = config.hidden_size + config.qkv_features() + 4ull * config.q_features() +
                              2ull * config.intermediate_size + 2ull * config.kv_features();
  return (rows * row_floats + static_cast<uint64_t>(kMaxDecodeRows) * config.vocab_size) * sizeof(float);
}

}  // namespace

absl::StatusOr<std::unique_ptr<InferenceRank>> InferenceRank::Create(const InferenceRankOptions& options,
                                                                     std::unique_ptr<Transport> transport,
                                                                     const v1::Identity& identity) {
  auto rank = std::unique_ptr<InferenceRank>(new InferenceRank());
  rank->options_ = options;
  WINNOW_ASSIGN_OR_RETURN(rank->config_, LoadModelConfig(options.model_dir));
  ModelConfig& config = rank->config_;
  const int64_t model_context = std::min<int64_t>(config.max_context_tokens, std::numeric_limits<int32_t>::max());
  if (options.max_context_tokens > model_context) {
    return absl::InvalidArgumentError(absl::StrCat("--max-context ", options.max_context_tokens,
                                                   " exceeds the model's ", model_context, " (", options.model_dir,
                                                   "/config.json)"));
  }
  if (options.max_context_tokens == 0) rank->options_.max_context_tokens = static_cast<uint32_t>(model_context);
  rank->layout_ = config.kv_layout(options.kv_dtype);

  WINNOW_ASSIGN_OR_RETURN(rank->kernels_, CpuKernels(options.isa));
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> opened, Checkpoint::Open(options.model_dir));
  const std::shared_ptr<const Checkpoint> checkpoint = std::move(opened);
  WINNOW_ASSIGN_OR_RETURN(const TensorView embedding, checkpoint->Find("model.embed_tokens.weight"));
  SelectionSpec selection = options.selection;
  if (!options.head_profile.empty()) {
    WINNOW_ASSIGN_OR_RETURN(const HeadProfile profile, HeadProfile::Load(options.head_profile));
    WINNOW_RETURN_IF_ERROR(profile.CheckShape(config.num_layers, config.num_kv_heads, options.head_profile));
    for (const std::string& doubt : profile.DoubtsAbout(checkpoint->Digest(), selection)) {
      rank->profile_warnings_.push_back(absl::StrCat("head profile ", options.head_profile, " ", doubt));
    }
    selection = WithHeadProfile(selection, profile);
  }
  WINNOW_RETURN_IF_ERROR(CheckFitsModel(selection, rank->layout_));
  const MemoryNeeds needs{.layout = rank->layout_,
                          .selection = selection,
                          .max_context_tokens = rank->options_.max_context_tokens,
                          .max_running = options.max_running,
                          .weights_bytes = ComputeWeightMemory(config, options.compute_dtype,
                                                               WeightDtype(embedding.dtype).value_or(Dtype::kF32))
                                               .total_bytes(),
                          .activation_bytes = ActivationBytes(config, options.prefill_chunk_tokens),
                          .slot_memory_bytes = options.slot_memory_bytes,
                          .prefill_memory_bytes = options.prefill_memory_bytes};
  WINNOW_ASSIGN_OR_RETURN(rank->memory_plan_, PlanMemory(needs, AvailableMemoryBytes()));

  rank->executor_ = rank->kernels_->new_executor(options.num_threads);
  WINNOW_ASSIGN_OR_RETURN(rank->weights_, ModelWeights::Load(checkpoint, config, *rank->kernels_,
                                                             {.compute_dtype = options.compute_dtype}));
  rank->metrics_ = std::make_unique<InferenceRankMetrics>(config.num_layers);
  const uint32_t longest_list = rank->options_.max_context_tokens + kBlockTokens;
  rank->transformer_ = std::make_unique<Transformer>(config, *rank->weights_, *rank->kernels_, *rank->executor_,
                                                     options.kv_dtype, static_cast<int>(options.prefill_chunk_tokens),
                                                     std::min<uint32_t>(longest_list, 16384));
  const std::string numerics = absl::StrCat(AbslSv(rank->kernels_->name), "/", DtypeName(options.compute_dtype), "/",
                                            DtypeName(options.kv_dtype));
  rank->fingerprint_ = InferenceFingerprint(checkpoint->Digest(), rank->layout_, *rank->transformer_, numerics);

  WINNOW_ASSIGN_OR_RETURN(SlotPool slots, SlotPool::Create(rank->layout_.row_bytes(), rank->memory_plan_.slot_pages));
  Engine::Options engine_options;
  engine_options.limits = {.max_running = options.max_running,
                           .prefill_memory_bytes = rank->memory_plan_.prefill_bytes};
  engine_options.prefill_chunk_tokens = options.prefill_chunk_tokens;
  engine_options.waits = options.waits;
  engine_options.eos_token_ids = config.eos_token_ids;
  rank->engine_ = std::make_unique<Engine>(
      std::move(engine_options), rank->layout_, *rank->transformer_, std::move(slots), std::move(transport),
      LinkTable::Options{.identity = identity, .fingerprint = rank->fingerprint_}, *rank->metrics_);
  rank->service_ = std::make_unique<RankServiceImpl>(
      *rank->engine_, SubmitLimits{.vocab_size = static_cast<uint32_t>(config.vocab_size),
                                   .max_context_tokens = rank->options_.max_context_tokens,
                                   .max_budget_tokens = options.selection.budget_tokens,
                                   .lookahead = options.selection.lookahead,
                                   .layout = rank->layout_,
                                   .slot_pages = rank->memory_plan_.slot_pages});
  return rank;
}

InferenceRank::~InferenceRank() = default;

std::vector<std::string> InferenceRank::warnings() const {
  std::vector<std::string> all = config_.warnings;
  all.insert(all.end(), weights_->warnings().begin(), weights_->warnings().end());
  all.insert(all.end(), profile_warnings_.begin(), profile_warnings_.end());
  return all;
}

v1::ModelLimits InferenceRank::limits() const {
  v1::ModelLimits limits;
  limits.set_max_context_tokens(options_.max_context_tokens);
  limits.set_vocab_size(config_.vocab_size);
  limits.set_max_budget_tokens(options_.selection.budget_tokens);
  limits.set_max_running(options_.max_running);
  return limits;
}

v1::RankLoad InferenceRank::load() const {
  v1::RankLoad load;
  load.set_running_sequences(static_cast<uint32_t>(metrics_->running_sequences));
  load.set_waiting_sequences(static_cast<uint32_t>(metrics_->waiting_sequences));
  const uint64_t page_bytes = kSlotPageTokens * layout_.row_bytes();
  load.set_total_bytes(metrics_->slot_pages_total * page_bytes);
  load.set_free_bytes((metrics_->slot_pages_total - metrics_->slot_pages_used) * page_bytes);
  load.set_progress_count(metrics_->progress);
  return load;
}

}  // namespace winnow
