#include "inference_rank/backend/device_memory.h"

#include <algorithm>

#include "inference_rank/backend/device_peer_step_batch.h"
#include "model/weights/device_weights.h"

namespace winnow {
namespace {

constexpr uint64_t kReservedBytes = uint64_t{1} << 30;

int DecodeRows(const BackendOptions& options) {
  return static_cast<int>(std::min<uint32_t>(options.needs.max_running, kMaxDecodeRows));
}

// What a row takes in a sparse layer between the products of its experts.
uint64_t ExpertRowBytes(const device::ExpertMatrices& experts) {
  const uint64_t hidden = experts.hidden_size, width = experts.intermediate_size;
  return experts.pairs_per_row() * (4 * hidden + 2 * width + 20) + 4ull * experts.num_logits();
}

// What the model's own indexer chooses among rows where they are computed, unless frames alone were asked for; 0 of
// models that bring none.
uint32_t IndexTopK(const BackendOptions& options) {
  if (!options.config->latent || !options.selects_in_place.value_or(true)) return 0;
  return static_cast<uint32_t>(options.config->latent->indexer.top_k);
}

// By itself where no cache ranks' GPUs could, of which there must be as many. Of latents cache ranks select, where it
// is not their own indexer. GPUs that hold a model together have one budget for all kv heads.
bool SelectsInPlace(const BackendOptions& options, int num_gpus, int num_gpus_there) {
  if (options.config->latent || (num_gpus > 1 && !options.needs.selection.head_budgets.empty())) return false;
  const bool needs_to = options.needs.slot_host_memory_bytes > 0;
  return options.selects_in_place.value_or(needs_to || !options.offers_peer_links || num_gpus_there < 2 * num_gpus);
}

// As a cache rank's GPU projects queries from a residual.
bool ProjectsHeadsAlone(const ModelConfig& config) {
  return config.norms != NormPlacement::kAfter && !config.qk_norm_projection && config.rotary_dim == config.head_dim;
}

// `config`: of a GPU's part.
LocalSelection::Shape InPlaceShape(const BackendOptions& options, const ModelConfig& config) {
  return {.layout = config.kv_layout(options.kv_dtype),
          .max_rows = DecodeRows(options),
          .hidden_size = static_cast<int>(options.config->hidden_size),
          .max_context_tokens = options.max_context_tokens,
          .selection = options.needs.selection,
          .windows = options.config->windows,
          .projects_heads_alone = ProjectsHeadsAlone(*options.config),
          .stages = options.needs.slot_host_memory_bytes > 0};
}

// What rows that are selected where they are computed take beside their slots.
void AddInPlaceNeeds(const LocalSelection::Shape& shape, bool is_served, MemoryNeeds& needs) {
  needs.selects_in_place = is_served && !IsDense(needs.selection);
  needs.index_bytes_per_row = LocalSelection::IndexBytesPerRow(shape);
  needs.staging_slots = LocalSelection::StagingSlots(shape);
}

// `config`: of a GPU's part.
absl::StatusOr<PeerStepShape> PeerShape(const BackendOptions& options, const ModelConfig& config, int num_gpus,
                                        int num_gpus_there, const absl::Status& peers) {
  if (!options.offers_peer_links) return absl::FailedPreconditionError("frames alone were asked for");
  if (options.kv_dtype != Dtype::kBf16) return absl::FailedPreconditionError("peer links carry rows of bf16");
  if (options.needs.slot_host_memory_bytes > 0) {
    return absl::FailedPreconditionError("slots in host memory (--slot-host-memory) are no other GPU's to write to");
  }
  if (!peers.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the inference rank's GPUs add up through host memory: ", peers.message()));
  }
  if (!config.windows.empty()) return absl::FailedPreconditionError("peer links carry no layers with sliding windows");
  if (!ProjectsHeadsAlone(config) || config.head_dim < 64) {
    return absl::FailedPreconditionError("peer links carry no layers of this kind");
  }
  if (num_gpus > 1 && !options.needs.selection.head_budgets.empty()) {
    return absl::FailedPreconditionError("peer links of several GPUs serve one budget for all kv heads");
  }
  if (num_gpus_there < 2) return absl::FailedPreconditionError("there is one GPU alone");
  return DevicePeerStepBatch::Complete({.spec = options.needs.selection,
                                        .max_rows = DecodeRows(options),
                                        .hidden_size = 0,
                                        .max_positions = options.max_context_tokens,
                                        .pages_per_list = 0,
                                        .synthetic_model = options.synthetic_model,
                                        .shard = {}},
                                       config);
}

// All experts of a sparse layer, and their router.
uint64_t ExpertLayerBytes(const ModelConfig& config) {
  const device::ExpertMatrices experts = ExpertShapeOf(config);
  const uint64_t hidden = experts.hidden_size;
  return ExpertBytes(experts) * experts.num_all() + hidden * experts.num_logits() * sizeof(float);
}

// Of a GPU's part, without the embedding.
uint64_t EstimateMatrixBytes(const ModelConfig& part, WeightShard shard, const BackendOptions& options) {
  const DeviceForms forms = ChooseDeviceForms(options.checkpoint.get(), part, shard, options.compute_dtype);
  const auto bytes = [](const DeviceForm& form, int out, int in) {
    return uint64_t{
        MatrixBytes({.out_features = out, .in_features = in, .dtype = form.dtype, .group_size = form.group_size})};
  };
  const int hidden = part.hidden_size, mlp = part.intermediate_size;
  uint64_t all = part.tie_word_embeddings ? 0 : bytes(forms.lm_head, LmHeadFeatures(part, shard), hidden);
  for (size_t l = 0; l < forms.layers.size(); ++l) {
    const LayerForms& layer = forms.layers[l];
    all += bytes(layer.qkv, ProjectedFeatures(part), hidden) + bytes(layer.o, hidden, part.o_features());
    if (part.latent) all += LatentHeadBytes(part) + 2ull * QueryUpFeatures(part) * part.latent->query_rank;
    all += part.moe.IsSparse(static_cast<int>(l))
               ? ExpertLayerBytes(part)
               : bytes(layer.gate_up, 2 * mlp, hidden) + bytes(layer.down, hidden, mlp);
  }
  return all;
}

// What latent attention takes beside what all attention does, for so many rows, and what it leaves to be merged, once
// for steps of the engine and once for graphs.
uint64_t LatentActivationBytes(const ModelConfig& config, uint64_t rows, uint32_t max_context_tokens) {
  if (!config.latent) return 0;
  const uint64_t heads = config.num_query_heads;
  const auto max_splits = std::min<uint64_t>(64, max_context_tokens / 256 + 1);
  const IndexerConfig& indexer = config.latent->indexer;
  const uint64_t index_rows = indexer.num_heads > 0 ? kMaxDecodeRows * 4ull * (max_context_tokens + indexer.top_k) : 0;
  return index_rows + rows * indexer.num_heads * 4ull * (2 * indexer.head_dim + 2) +
         rows * heads * (6ull * config.latent->query_dim() + 2ull * config.latent->value_dim) +
         2 * kMaxDecodeRows * heads * max_splits * 4 * (config.head_dim + 2);
}

// What does not depend on what the GPU's kernels ask for.
MemoryNeeds CommonNeeds(const BackendOptions& options, int num_gpus) {
  MemoryNeeds needs = options.needs;
  needs.parts = num_gpus;
  needs.hidden_size = static_cast<uint32_t>(options.config->hidden_size);
  needs.is_exclusive = true;
  // A chunk's piece goes through all layers: it reads all weights, which alone takes most of what a target leaves.
  if (options.paces_prompts && needs.prefill_mode == PrefillMode::kAuto) needs.prefill_mode = PrefillMode::kLayered;
  return needs;
}

}  // namespace

absl::Status CheckSlotHostMemory(const BackendOptions& options, int num_gpus) {
  if (options.needs.slot_host_memory_bytes == 0) return absl::OkStatus();
  if (options.config->latent) {
    return absl::UnimplementedError(
        "--slot-host-memory is for rows that are selected in place, and those of latent attention are not");
  }
  if (num_gpus > 1) {
    return absl::UnimplementedError(
        "--slot-host-memory: slots lie in host memory behind those of one GPU, and --tensor-parallel has several");
  }
  if (!options.selects_in_place.value_or(true)) {
    return absl::InvalidArgumentError(
        "--slot-host-memory is for rows that are selected in place, which --select-in-place=off excludes");
  }
  return absl::OkStatus();
}

DeviceRankPlan PlanDeviceRank(const device::DeviceTable& table, const BackendOptions& options, int num_gpus,
                              const absl::Status& peers) {
  DeviceWeightOptions weights;
  weights.dtype = options.compute_dtype;
  weights.shard.count = num_gpus;
  const ModelConfig config = ShardConfig(*options.config, weights.shard);
  DeviceRankPlan plan;
  plan.forward = {
      .max_prefill_tokens = static_cast<int>(options.prefill_chunk_tokens),
      .max_list_rows = options.max_context_tokens + kBlockTokens,
      .kv_dtype = options.kv_dtype,
      .row_bytes = options.needs.layout.row_bytes(),
      .boxes = peers.ok() ? ShardSums::Boxes::kPeerMemory : ShardSums::Boxes::kHostMemory,
  };
  plan.peer_link = PeerShape(options, config, num_gpus, table.device_count(), peers);
  if (plan.peer_link.ok()) plan.forward.decode_list_rows = DevicePeerStepBatch::MaxListRows(*plan.peer_link, config);
  plan.needs = CommonNeeds(options, num_gpus);
  if (peers.ok()) {
    plan.local_step = DeviceLocalStep::Shape{.layout = config.kv_layout(options.kv_dtype),
                                             .num_gpus = num_gpus,
                                             .max_rows = DecodeRows(options),
                                             .hidden_size = static_cast<int>(config.hidden_size),
                                             .vocab_size = static_cast<int>(config.vocab_size),
                                             .max_context_tokens = options.max_context_tokens,
                                             .index_top_k = IndexTopK(options)};
    if (SelectsInPlace(options, num_gpus, table.device_count())) {
      plan.local_step->selection = InPlaceShape(options, config);
    }
  }
  plan.needs.weights_bytes = DeviceWeightBytes(table, *options.config, weights, options.checkpoint.get());
  plan.needs.activation_bytes = DeviceForward::ActivationBytes(table, config, num_gpus, plan.forward);
  if (plan.local_step.has_value()) {
    plan.needs.activation_bytes += DeviceLocalStep::DeviceBytes(table, config, *plan.local_step);
    if (const auto& shape = plan.local_step->selection; shape.has_value()) {
      AddInPlaceNeeds(*shape, LocalSelection::Serves(table, *shape, plan.needs.selection).ok(), plan.needs);
    }
    if (plan.local_step->index_top_k > 0) plan.needs.selects_in_place = SelectsFromAll(plan.needs.selection);
  }
  if (plan.peer_link.ok())
    plan.needs.activation_bytes += DevicePeerStepBatch::DeviceBytes(*plan.peer_link, config, num_gpus);
  return plan;
}

MemoryNeeds EstimateDeviceNeeds(const BackendOptions& options, int num_gpus, int num_gpus_there) {
  // Selections in place keep tables by sequence and graphs; peer links an inbox. Scratch of products and of attention.
  constexpr uint64_t kSelectionBytes = uint64_t{768} << 20, kScratchBytes = uint64_t{512} << 20;
  const ModelConfig config = ShardConfig(*options.config, {.count = num_gpus});
  MemoryNeeds needs = CommonNeeds(options, num_gpus);
  const uint64_t hidden = config.hidden_size, mlp = config.max_dense_mlp_features(), q = config.q_features();
  const uint64_t head = static_cast<uint64_t>(config.vocab_size) * hidden;
  const device::ExpertMatrices experts = ExpertShapeOf(config);
  needs.weights_bytes = EstimateMatrixBytes(config, {.count = num_gpus}, options) + head * 2;
  // The steps of sequences whose rows the GPUs have all have activations of their own.
  const uint64_t step_rows = kMaxDecodeRows;
  const uint64_t rows = std::max<uint64_t>(options.prefill_chunk_tokens, kMaxDecodeRows) + step_rows;
  needs.activation_bytes =
      rows * (12 * hidden + 4ull * config.qkv_features() + 8 * q + 6 * mlp + ExpertRowBytes(experts)) +
      LatentActivationBytes(config, rows, options.max_context_tokens) +
      4ull * (kMaxDecodeRows + step_rows) * config.vocab_size + kScratchBytes;
  if (options.kv_dtype == Dtype::kI8) {  // a layer of the longest prompt, as attention of chunks reads it
    needs.activation_bytes +=
        uint64_t{options.max_context_tokens} * config.num_kv_heads * (4ull * config.head_dim + 2 * sizeof(float));
  }
  if (SelectsInPlace(options, num_gpus, num_gpus_there)) {
    AddInPlaceNeeds(InPlaceShape(options, config), /*is_served=*/true, needs);
  }
  if (num_gpus == 1 && IndexTopK(options) > 0) needs.selects_in_place = SelectsFromAll(needs.selection);
  if (!IsDense(options.needs.selection)) needs.activation_bytes += kSelectionBytes;
  return needs;
}

uint64_t UsableGpuBytes(uint64_t free_bytes) {
  return free_bytes > kReservedBytes ? free_bytes - kReservedBytes : 0;
}

}  // namespace winnow
