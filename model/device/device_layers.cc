#include "model/device/device_layers.h"

#include <algorithm>
#include <array>
#include <set>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/rope.h"
#include "kernels/device/arena.h"

namespace winnow {
namespace {

constexpr size_t kBf16Bytes = 2;

int LargestOutput(const ModelConfig& config) {
  const int queries = config.latent ? QueryUpFeatures(config) : 0;
  return std::max(
      {ProjectedFeatures(config), queries, 2 * config.max_dense_mlp_features(), config.hidden_size, config.vocab_size});
}

device::ExpertRows ExpertRowsOf(DevicePhase phase) {
  return phase == DevicePhase::kDecode ? device::ExpertRows::kFew : device::ExpertRows::kMany;
}

}  // namespace

DeviceLayers::DeviceLayers(const device::DeviceTable& table, const ModelConfig& config, const DeviceWeights* weights,
                           const DeviceLayerOptions& options)
    : table_(table), config_(config), weights_(weights), options_(options), scale_(AttentionScale(config)) {
  WINNOW_CHECK(options.max_decode_rows >= 1 && options.max_decode_rows <= kMaxGraphRows);
}

absl::StatusOr<std::unique_ptr<DeviceLayers>> DeviceLayers::Create(const device::DeviceTable& table,
                                                                   device::Device& device, const DeviceWeights& weights,
                                                                   const DeviceLayerOptions& options) {
  std::unique_ptr<DeviceLayers> layers(new DeviceLayers(table, weights.config(), &weights, options));
  WINNOW_ASSIGN_OR_RETURN(layers->memory_, device.Allocate(layers->Carve(nullptr)));
  layers->Carve(layers->memory_->data());
  if (options.max_prefill_rows > 0) layers->plans_ = table.matmul->open_prefill_plans();
  const device::Stream stream = device.NewStream();
  // Scratch has to begin as zeros.
  device.FillAsync(layers->memory_->data(), 0, layers->memory_->bytes(), stream);
  const ModelConfig& config = weights.config();
  const std::array ropes = {RopeOfHeads(config, config.rope),
                            RopeOfHeads(config, config.window_rope.value_or(config.rope))};
  for (size_t i = 0; i < ropes.size(); ++i) {
    Rotation& rotation = layers->rotations_[i];
    rotation.attention_factor = ropes[i].attention_factor;
    device.CopyAsync(rotation.inv_freq, ropes[i].inv_freq.data(), ropes[i].inv_freq.size() * sizeof(float), stream);
  }
  WINNOW_RETURN_IF_ERROR(device.Synchronize(stream));
  return layers;
}

device::DecodeAttentionParams DeviceLayers::AttentionParams(int num_rows, uint32_t max_count,
                                                            int lists_per_kv_head) const {
  const ModelConfig& config = config_;
  return {.q = q_,
          .num_rows = num_rows,
          .num_query_heads = config.num_query_heads,
          .num_kv_heads = config.num_kv_heads * lists_per_kv_head,
          .head_dim = config.head_dim,
          .scale = scale_,
          .kv_dtype = options_.kv_dtype,
          .row = config.kv_layout(options_.kv_dtype).row,
          .max_count = max_count,
          .out = attention_,
          .out_dtype = Dtype::kBf16,
          .scratch = attention_scratch_};
}

// Scratch may depend on the number of rows, and of those of a list, in any way.
size_t DeviceLayers::AttentionScratchBytes() const {
  std::set<uint32_t> counts = {options_.max_list_rows};
  for (int layer = 0; layer < config_.num_layers; ++layer) counts.insert(LongestList(layer, options_.max_list_rows));
  size_t bytes = 0;
  for (int n = 1; n <= options_.max_decode_rows; ++n) {
    for (const int lists : {1, options_.lists_per_kv_head}) {
      for (const uint32_t count : counts) {
        bytes = std::max(bytes, table_.attention->decode_attention_scratch_bytes(AttentionParams(n, count, lists)));
      }
    }
  }
  return bytes;
}

int64_t DeviceLayers::wide_rows_stride() const {
  if (options_.kv_dtype != Dtype::kI8 || options_.max_prefill_rows == 0) return 0;
  constexpr int64_t kAligned = 128;
  return (int64_t{options_.max_prompt_tokens} + device::kPrefillScalePad + kAligned - 1) / kAligned * kAligned;
}

uint32_t DeviceLayers::LongestList(int layer, uint32_t max_count) const {
  const uint32_t window = config_.window(layer);
  return window > 0 ? std::min(window, max_count) : max_count;
}

size_t DeviceLayers::Carve(void* region) {
  const ModelConfig& config = config_;
  const size_t decode_rows = options_.max_decode_rows, prefill_rows = options_.max_prefill_rows;
  const size_t rows = std::max(decode_rows, prefill_rows);
  const size_t hidden = config.hidden_size, q = config.q_features(), intermediate = config.max_dense_mlp_features();
  device::Arena arena(region);
  for (Rotation& rotation : rotations_) rotation.inv_freq = arena.TakeArray<float>(config.head_dim / 2);
  hidden_ = own_hidden_ = arena.TakeArray<float>(rows * hidden);
  partial_ = arena.TakeArray<float>((options_.partial_chunks || has_post_norms() ? rows : decode_rows) * hidden);
  normed_ = arena.Take(rows * hidden * kBf16Bytes);
  qkv_ = arena.TakeArray<float>(rows * qkv_stride());
  q_ = arena.TakeArray<float>(decode_rows * q);
  q_bf16_ = arena.Take(prefill_rows * q * kBf16Bytes);
  attention_ = arena.Take(rows * q * kBf16Bytes);
  if (config.latent) {
    const LatentConfig& latent = *config.latent;
    const size_t heads = config.num_query_heads;
    if (latent.query_rank > 0) {
      latent_.query_latents = arena.Take(rows * latent.query_rank * kBf16Bytes);
      latent_.heads = arena.TakeArray<float>(rows * QueryUpFeatures(config));
    }
    latent_.nope = arena.Take(rows * heads * latent.nope_dim * kBf16Bytes);
    latent_.values = arena.Take(rows * config.o_features() * kBf16Bytes);
    latent_.key_attention_factor = ComputeRope(config.rope, latent.shape.rope_dim).attention_factor;
    if (latent.indexer.num_heads > 0) CarveIndex(rows, arena);
  }
  gate_up_ = arena.Take(2 * intermediate * std::max(decode_rows * sizeof(float), prefill_rows * kBf16Bytes));
  mlp_ = arena.Take(rows * intermediate * kBf16Bytes);
  experts_.emplace(table_, config, static_cast<int>(rows), arena);
  logits_ = arena.TakeArray<float>(decode_rows * config.vocab_size);
  matmul_scratch_ = arena.Take(table_.matmul->decode_scratch_bytes(options_.max_decode_rows, LargestOutput(config)));
  if (prefill_rows > 0)
    prefill_workspace_ = arena.Take(table_.matmul->prefill_workspace_bytes(options_.max_prefill_rows));
  attention_scratch_ = arena.Take(AttentionScratchBytes());
  const size_t wide_rows = static_cast<size_t>(wide_rows_stride()) * config.num_kv_heads;
  wide_rows_ = arena.Take(wide_rows * 2 * config.head_dim * kBf16Bytes);
  wide_scales_ = arena.TakeArray<float>(2 * wide_rows);
  sample_scratch_ = arena.Take(table_.elementwise->sample_scratch_bytes(options_.max_decode_rows, config.vocab_size));
  return arena.used_bytes();
}

size_t DeviceLayers::ActivationBytes(const device::DeviceTable& table, const ModelConfig& config,
                                     const DeviceLayerOptions& options) {
  return DeviceLayers(table, config, nullptr, options).Carve(nullptr);
}

void DeviceLayers::Embed(device::Stream stream, const uint32_t* token_ids, int num_rows) {
  table_.elementwise->embed(stream, {.token_ids = token_ids,
                                     .num_rows = num_rows,
                                     .embedding = weights_->embedding(),
                                     .hidden_size = config().hidden_size,
                                     .scale = config().embedding_scale,
                                     .x = hidden_});
}

void DeviceLayers::Norm(device::Stream stream, const float* weight, int num_rows, const float* bias) {
  table_.elementwise->rms_norm(stream, {.x = hidden_,
                                        .bias = bias,
                                        .biased = hidden_,
                                        .num_rows = num_rows,
                                        .hidden_size = config().hidden_size,
                                        .weight = weight,
                                        .epsilon = config().rms_norm_eps,
                                        .out = normed_});
}

void DeviceLayers::AddNormed(device::Stream stream, const float* weight, int num_rows) {
  table_.elementwise->norm_rows(stream, {.x = partial_,
                                         .x_stride = config().hidden_size,
                                         .num_rows = num_rows,
                                         .width = config().hidden_size,
                                         .weight = weight,
                                         .epsilon = config().rms_norm_eps,
                                         .y = hidden_,
                                         .y_stride = config().hidden_size,
                                         .accumulate = true});
}

void DeviceLayers::NormProjections(device::Stream stream, const DeviceLayerWeights& weights, int num_rows) {
  const auto norm = [&](float* x, int width, const float* weight) {
    table_.elementwise->norm_rows(stream, {.x = x,
                                           .x_stride = qkv_stride(),
                                           .num_rows = num_rows,
                                           .width = width,
                                           .weight = weight,
                                           .epsilon = config().rms_norm_eps,
                                           .y = x,
                                           .y_stride = qkv_stride()});
  };
  norm(qkv_, config().q_features(), weights.q_norm);
  norm(qkv_ + config().q_features(), config().kv_features(), weights.k_norm);
}

void DeviceLayers::Matmul(device::Stream stream, DevicePhase phase, const device::DeviceMatrix& weight, const void* x,
                          int num_rows, const MatmulOutput& output) {
  if (phase == DevicePhase::kPrefill) {
    table_.matmul->prefill_matmul(stream, {.plans = plans_.get(),
                                           .x = x,
                                           .x_stride = weight.in_features,
                                           .num_rows = num_rows,
                                           .weight = weight,
                                           .accumulate = output.accumulate,
                                           .y = output.y,
                                           .y_stride = output.stride,
                                           .y_dtype = output.dtype,
                                           .workspace = prefill_workspace_});
    return;
  }
  table_.matmul->decode_matmul(stream, {.x = x,
                                        .x_stride = weight.in_features,
                                        .num_rows = num_rows,
                                        .weight = weight,
                                        .accumulate = output.accumulate,
                                        .y = output.y,
                                        .y_stride = output.stride,
                                        .y_dtype = output.dtype,
                                        .term = output.term,
                                        .scratch = matmul_scratch_,
                                        .spread = true});  // no product is behind another
}

DeviceLayers::MatmulOutput DeviceLayers::ResidualSum(const DecodeSum* sum) const {
  const bool is_partial = is_shard() || has_post_norms();
  return {.y = is_partial ? partial_ : hidden_,
          .stride = config().hidden_size,
          .dtype = Dtype::kF32,
          .accumulate = !is_partial,
          .term = sum == nullptr ? device::TermPlaces() : sum->places};
}

void DeviceLayers::AddTerms(device::Stream stream, int num_rows, const DecodeSum& sum, const float* norm_weight) {
  table_.all_reduce->add_terms(stream, {.num_ranks = sum.places.num_ranks,
                                        .terms = sum.terms,
                                        .term_stride = sum.term_stride,
                                        .x = hidden_,
                                        .num_rows = num_rows,
                                        .hidden_size = config().hidden_size,
                                        .weight = norm_weight,
                                        .epsilon = config().rms_norm_eps,
                                        .out = normed_,
                                        .abort = sum.abort,
                                        .error = sum.error,
                                        .timeout_us = sum.timeout_us});
}

void DeviceLayers::AddOutput(device::Stream stream, int layer, int num_rows, const DecodeSum& sum) {
  AddTerms(stream, num_rows, sum, weights_->layer(layer).post_attention_norm);
}

void DeviceLayers::AddDown(device::Stream stream, int layer, int num_rows, const DecodeSum& sum) {
  const bool is_last = layer + 1 == config().num_layers;
  AddTerms(stream, num_rows, sum, is_last ? weights_->final_norm() : weights_->layer(layer + 1).input_norm);
}

void DeviceLayers::InputNorm(device::Stream stream, int layer, int num_rows) {
  Norm(stream, weights_->layer(layer).input_norm, num_rows);
}

void DeviceLayers::Qkv(device::Stream stream, DevicePhase phase, int layer, int num_rows) {
  Matmul(stream, phase, weights_->layer(layer).qkv, normed_, num_rows,
         {.y = qkv_, .stride = qkv_stride(), .dtype = Dtype::kF32, .accumulate = false});
}

void DeviceLayers::ProjectQkv(device::Stream stream, DevicePhase phase, int layer, int num_rows, PartialSums* sums) {
  if (sums == nullptr || layer == 0 || sums->AllOwnAllRows()) {
    InputNorm(stream, layer, num_rows);
  } else {
    sums->NormChunk(stream, num_rows, weights_->layer(layer).input_norm);
  }
  Qkv(stream, phase, layer, num_rows);
}

void DeviceLayers::Rope(device::Stream stream, DevicePhase phase, int layer, int num_rows, const RopeOutputs& outputs) {
  if (config().latent) return ProjectLatents(stream, phase, layer, num_rows, outputs);
  const DeviceLayerWeights& weights = weights_->layer(layer);
  const bool decode = phase == DevicePhase::kDecode, norms_heads = !config().qk_norm_projection;
  const Rotation& rotation = RotationOf(layer);
  if (!norms_heads) NormProjections(stream, weights, num_rows);
  table_.elementwise->rope_append(stream, {.qkv = qkv_,
                                           .qkv_stride = qkv_stride(),
                                           .qkv_bias = weights.qkv_bias,
                                           .num_rows = num_rows,
                                           .num_query_heads = config().num_query_heads,
                                           .num_kv_heads = config().num_kv_heads,
                                           .head_dim = config().head_dim,
                                           .rotary_dim = config().rotary_dim,
                                           .q_norm_weight = norms_heads ? weights.q_norm : nullptr,
                                           .k_norm_weight = norms_heads ? weights.k_norm : nullptr,
                                           .norm_epsilon = config().rms_norm_eps,
                                           .positions = outputs.positions,
                                           .rope_inv_freq = rotation.inv_freq,
                                           .rope_attention_factor = rotation.attention_factor,
                                           .q = decode ? q_ : nullptr,
                                           .q_bf16 = decode ? nullptr : q_bf16_,
                                           .q_pre_rope = outputs.q_pre_rope,
                                           .q_pre_rope_stride = outputs.q_pre_rope_stride,
                                           .kv_dtype = outputs.kv_dtype,
                                           .kv_destinations = outputs.kv_destinations,
                                           .slot_scales = outputs.slot_scales,
                                           .slot_pool = outputs.slot_pool,
                                           .kv_copy = outputs.kv_copy,
                                           .kv_copy_stride = outputs.kv_copy_stride,
                                           .copy_regions = outputs.copy_regions});
}

void DeviceLayers::Attend(device::Stream stream, int layer, int num_rows, const DecodeKvView& kv) {
  WINNOW_CHECK(kv.max_count <= options_.max_list_rows && kv.dtype == options_.kv_dtype);
  WINNOW_CHECK(kv.lists_per_kv_head == 1 || kv.lists_per_kv_head == options_.lists_per_kv_head);
  const uint32_t max_count = LongestList(layer, kv.max_count);
  device::DecodeAttentionParams params = AttentionParams(num_rows, max_count, kv.lists_per_kv_head);
  params.sinks = weights_->layer(layer).sinks;
  params.slot_pool = kv.slot_pool;
  params.kv_scales = kv.scales;
  params.lists = kv.lists;
  params.pages = kv.pages;
  params.selected = kv.selected;
  params.settled = kv.settled;
  params.remote_flags = kv.remote_flags;
  params.sends = kv.sends;
  if (kv.index_budgets != nullptr) {
    SelectRows(stream, num_rows, kv);
    params.selected = index_.selected;
  }
  table_.attention->decode_attention(stream, params);
}

void DeviceLayers::AttendChunk(device::Stream stream, int layer, int num_rows, const ChunkKvView& kv) {
  device::PrefillAttentionParams params = {.q = q_bf16_,
                                           .num_queries = num_rows,
                                           .first_position = kv.first_position,
                                           .num_query_heads = config().num_query_heads,
                                           .num_kv_heads = config().num_kv_heads,
                                           .head_dim = config().head_dim,
                                           .scale = scale_,
                                           .kv = kv.rows,
                                           .kv_head_stride = kv.head_stride,
                                           .row = config().kv_layout(Dtype::kBf16).row,
                                           .streaming_window = kv.streaming_window,
                                           .streaming_sinks = kv.streaming_sinks,
                                           .sliding_window = config().window(layer),
                                           .sinks = weights_->layer(layer).sinks,
                                           .out = attention_};
  if (index_.queries != nullptr) params.num_queries = AttendToChosen(stream, params);
  if (params.num_queries == 0) return;
  if (options_.kv_dtype == Dtype::kI8) {
    float* const value_scales = wide_scales_ + config().num_kv_heads * wide_rows_stride();
    table_.prefill->widen_rows(stream, {.rows = kv.rows,
                                        .head_stride = kv.head_stride,
                                        .num_rows = kv.first_position + num_rows,
                                        .num_kv_heads = config().num_kv_heads,
                                        .head_dim = config().head_dim,
                                        .kv = wide_rows_,
                                        .key_scales = wide_scales_,
                                        .value_scales = value_scales,
                                        .kv_head_stride = wide_rows_stride()});
    params.kv = wide_rows_;
    params.kv_head_stride = wide_rows_stride();
    params.key_scales = wide_scales_;
    params.value_scales = value_scales;
  }
  table_.prefill->prefill_attention(stream, params);
}

void DeviceLayers::Output(device::Stream stream, DevicePhase phase, int layer, int num_rows, const DecodeSum* sum) {
  const MatmulOutput output = ResidualSum(sum);
  const DeviceLayerWeights& weights = weights_->layer(layer);
  if (config().latent) LatentValues(stream, phase, layer, num_rows);
  Matmul(stream, phase, weights.o, config().latent ? latent_.values : attention_, num_rows, output);
  if (has_post_norms()) AddNormed(stream, weights.attention_post_norm, num_rows);
}

void DeviceLayers::MlpNorm(device::Stream stream, int layer, int num_rows) {
  const DeviceLayerWeights& weights = weights_->layer(layer);
  Norm(stream, weights.post_attention_norm, num_rows, weights.o_bias);
}

void DeviceLayers::GateUp(device::Stream stream, DevicePhase phase, int layer, int num_rows,
                          const uint32_t* positions) {
  const DeviceLayerWeights& weights = weights_->layer(layer);
  if (weights.is_sparse()) {
    experts_->Route(stream, ExpertRowsOf(phase), weights.experts, normed_, positions, num_rows);
    experts_->GateUp(stream, ExpertRowsOf(phase), weights.experts, normed_, num_rows);
    return;
  }
  Matmul(stream, phase, weights.gate_up, normed_, num_rows,
         {.y = gate_up_, .stride = 2 * config().intermediate_size, .dtype = GateUpDtype(phase), .accumulate = false});
}

void DeviceLayers::GatedMul(device::Stream stream, DevicePhase phase, int layer, int num_rows) {
  if (weights_->layer(layer).is_sparse()) return;
  table_.elementwise->gated_mul(stream, {.activation = ActivationOf(config().activation),
                                         .gate_up = gate_up_,
                                         .dtype = GateUpDtype(phase),
                                         .num_rows = num_rows,
                                         .intermediate_size = config().intermediate_size,
                                         .out = mlp_});
}

void DeviceLayers::Down(device::Stream stream, DevicePhase phase, int layer, int num_rows, const DecodeSum* sum) {
  if (const device::ExpertMatrices& experts = weights_->layer(layer).experts; experts.num_experts > 0) {
    experts_->Down(stream, ExpertRowsOf(phase), experts, num_rows, hidden_);
    return;
  }
  const MatmulOutput output = ResidualSum(sum);
  Matmul(stream, phase, weights_->layer(layer).down, mlp_, num_rows, output);
  if (has_post_norms()) AddNormed(stream, weights_->layer(layer).mlp_post_norm, num_rows);
}

void DeviceLayers::OutputAndMlp(device::Stream stream, DevicePhase phase, int layer, int num_rows, PartialSums* sums,
                                bool norms_next) {
  WINNOW_CHECK(is_shard() == (sums != nullptr));
  const bool adds_rows = sums != nullptr && phase == DevicePhase::kDecode;
  DecodeSum sum;
  const auto next_sum = [&] { return adds_rows ? &(sum = sums->NextDecodeSum()) : nullptr; };
  Output(stream, phase, layer, num_rows, next_sum());
  if (adds_rows) {
    AddOutput(stream, layer, num_rows, sum);
  } else if (sums != nullptr) {
    sums->AddChunk(stream, num_rows, weights_->layer(layer).post_attention_norm);
  } else {
    MlpNorm(stream, layer, num_rows);
  }
  GateUp(stream, phase, layer, num_rows);
  GatedMul(stream, phase, layer, num_rows);
  Down(stream, phase, layer, num_rows, next_sum());
  if (adds_rows) {
    AddTerms(stream, num_rows, sum, /*norm_weight=*/nullptr);  // norms of several layers may read it
  } else if (sums != nullptr) {
    sums->AddChunk(stream, num_rows, norms_next ? weights_->layer(layer + 1).input_norm : nullptr);
  }
}

void DeviceLayers::FinalNorm(device::Stream stream, int num_rows) {
  Norm(stream, weights_->final_norm(), num_rows);
}

void DeviceLayers::LmHead(device::Stream stream, int num_rows) {
  Matmul(stream, DevicePhase::kDecode, weights_->lm_head(), normed_, num_rows,
         {.y = logits_ + weights_->lm_head_first(),
          .stride = config().vocab_size,
          .dtype = Dtype::kF32,
          .accumulate = false});
}

void DeviceLayers::Logits(device::Stream stream, int num_rows) {
  FinalNorm(stream, num_rows);
  LmHead(stream, num_rows);
}

void DeviceLayers::Sample(device::Stream stream, int num_rows, const device::SampleRow* rows, uint32_t* token_ids,
                          float* logprobs, const TokenMasks& masks) {
  table_.elementwise->sample(stream, {.logits = logits_,
                                      .num_rows = num_rows,
                                      .vocab_size = config().vocab_size,
                                      .rows = rows,
                                      .token_ids = token_ids,
                                      .logprobs = logprobs,
                                      .scratch = sample_scratch_,
                                      .masks = masks.words,
                                      .mask_words = TokenMasks::WordsPerRow(config().vocab_size),
                                      .masked_rows = masks.rows});
}

}  // namespace winnow
