#include "model/weights/device_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/model_tensors.h"
#include "kernels/device/arena.h"
#include "kernels/device/params/expert_codes.h"
#include "model/weights/checkpoint_upload.h"
#include "model/weights/weight_synthesis.h"

namespace winnow {
namespace {

void TakeExperts(device::Arena& arena, device::ExpertMatrices& experts) {
  const size_t elements = static_cast<size_t>(experts.num_all()) * experts.intermediate_size * experts.hidden_size;
  const size_t matrix_bytes = experts.mxfp4 ? elements / 2 : elements * DtypeBytes(Dtype::kBf16);
  experts.gate_up = arena.Take(2 * matrix_bytes);
  experts.down = arena.Take(matrix_bytes);
  if (!experts.mxfp4) return;
  experts.gate_up_scales = arena.TakeArray<uint8_t>(2 * elements / device::kExpertBlock);
  experts.down_scales = arena.TakeArray<uint8_t>(elements / device::kExpertBlock);
}

void TakeExpertVectors(device::Arena& arena, const ModelConfig& config, device::ExpertMatrices& experts) {
  experts = ExpertShapeOf(config);
  experts.router = arena.TakeArray<float>(static_cast<size_t>(experts.num_logits()) * experts.hidden_size);
  if (config.moe.correction) experts.correction = arena.TakeArray<float>(experts.num_experts);
  if (!config.moe.biases) return;
  const size_t all = experts.num_all();
  experts.router_bias = arena.TakeArray<float>(experts.num_logits());
  experts.gate_up_bias = arena.TakeArray<float>(all * 2 * experts.intermediate_size);
  experts.down_bias = arena.TakeArray<float>(all * experts.hidden_size);
}

void TakeLatentVectors(device::Arena& arena, const LatentConfig& config, DeviceLatentWeights& latent) {
  if (config.query_rank > 0) latent.query_norm = arena.TakeArray<float>(config.query_rank);
  latent.key_norm = arena.TakeArray<float>(config.shape.rank);
  if (config.indexer.num_heads == 0) return;
  latent.index_norm = arena.TakeArray<float>(config.indexer.head_dim);
  latent.index_norm_bias = arena.TakeArray<float>(config.indexer.head_dim);
}

void TakeMatrix(const device::MatmulKernels& matmul, device::Arena& arena, const DeviceForm& form, int out_features,
                int in_features, device::DeviceMatrix& matrix) {
  matrix = {
      .out_features = out_features, .in_features = in_features, .dtype = form.dtype, .group_size = form.group_size};
  matrix.data = arena.Take(matmul.packed_bytes(out_features, in_features, form.dtype));
  const size_t scale_bytes = matmul.scale_bytes(out_features, in_features, form.dtype, form.group_size);
  if (scale_bytes > 0) matrix.scales = arena.TakeArray<float>(scale_bytes / sizeof(float));
}

void TakeLatentMatrices(const device::MatmulKernels& matmul, device::Arena& arena, const ModelConfig& config,
                        DeviceLatentWeights& latent) {
  const LatentConfig& of = *config.latent;
  if (of.query_rank > 0) {
    TakeMatrix(matmul, arena, {}, QueryUpFeatures(config), of.query_rank, latent.query_up);
  }
  const size_t bytes = LatentHeadBytes(config), keys = bytes / (of.nope_dim + of.value_dim) * of.nope_dim;
  latent.key_up = arena.Take(keys);
  latent.value_up = arena.Take(bytes - keys);
}

std::string Gigabytes(size_t bytes) {
  return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
}

absl::Status NoKernels(const ModelConfig& config, std::string_view what) {
  return absl::UnimplementedError(absl::StrCat("on GPUs there are no kernels for ", AbslSv(what), ", which ",
                                               ModelFamilyName(config.family), " has: it runs on CPUs (--device=cpu)"));
}

// Products read rows of weights, and of what they are multiplied with, in pieces.
absl::Status CheckDeviceWidths(const ModelConfig& config, const DeviceWeightOptions& options) {
  const int piece = options.dtype == Dtype::kBf16 ? 8 : 32, count = options.shard.count;
  for (const auto& [name, width] :
       {std::pair("hidden_size", config.hidden_size), std::pair("the query heads", config.o_features() / count),
        std::pair("intermediate_size", config.max_dense_mlp_features() / count)}) {
    if (width % piece == 0) continue;
    return absl::UnimplementedError(absl::StrCat("on GPUs widths are multiples of ", piece, " in ",
                                                 DtypeName(options.dtype), ", not ", width, ", which is that of ", name,
                                                 count > 1 ? " on each" : "", ": it runs on CPUs (--device=cpu)"));
  }
  return absl::OkStatus();
}

absl::Status CheckDeviceHeads(const ModelConfig& config) {
  constexpr std::array kHeadDims = {16, 32, 64, 96, 128, 256};
  if (std::find(kHeadDims.begin(), kHeadDims.end(), config.head_dim) == kHeadDims.end()) {
    return absl::UnimplementedError(
        absl::StrCat("on GPUs head_dim is 16, 32, 64, 96, 128 or 256, not ", config.head_dim));
  }
  if (config.group_size() <= 8) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("on GPUs at most 8 query heads share a kv head, not ", config.group_size()));
}

// Keys are read in pieces, and latent attention is one GPU's, with weights of bf16.
absl::Status CheckDeviceLatents(const ModelConfig& config, const DeviceWeightOptions& options) {
  const LatentConfig& latent = *config.latent;
  const LatentShape& shape = latent.shape;
  if (options.parts == WeightParts::kQueryProjections) return NoKernels(config, "queries of latents alone");
  if (config.quantization.format != WeightQuantization::Format::kNone) {
    return NoKernels(config, "latent attention with quantised weights");
  }
  if (shape.rank % device::kLatentPiece != 0 || shape.rope_dim % device::kLatentPiece != 0 ||
      latent.nope_dim % 8 != 0 || latent.query_rank % 8 != 0 || latent.value_dim % 2 != 0) {
    return NoKernels(config, absl::StrCat("latents of ", shape.rank, " and ", shape.rope_dim, ", or heads of ",
                                          latent.nope_dim, " and ", latent.value_dim));
  }
  if (shape.key_dim() > device::kMaxLatentKeyDim) {
    return NoKernels(config, absl::StrCat("latents of more than ", device::kMaxLatentKeyDim, " elements"));
  }
  if (config.num_query_heads > device::kMaxLatentHeads) {
    return NoKernels(config, absl::StrCat("latents of more than ", device::kMaxLatentHeads, " heads"));
  }
  const IndexerConfig& indexer = latent.indexer;
  if (indexer.num_heads > device::kMaxIndexHeads || indexer.head_dim % 8 != 0 ||
      indexer.head_dim > device::kMaxIndexDim) {
    return NoKernels(config, absl::StrCat("an indexer of ", indexer.num_heads, " heads of ", indexer.head_dim,
                                          " (index_n_heads and index_head_dim)"));
  }
  if (options.shard.count > 1) {
    return absl::UnimplementedError("several GPUs cannot share latent attention yet: --tensor-parallel=1");
  }
  if (options.dtype != Dtype::kBf16) {
    return absl::UnimplementedError(absl::StrCat("on GPUs weights of latent attention are bf16, not ",
                                                 DtypeName(options.dtype), ": --compute=bf16"));
  }
  return absl::OkStatus();
}

// GPUs have kernels for grouped and for latent attention with RoPE, and for MLPs without biases.
absl::Status CheckDeviceLayers(const ModelConfig& config) {
  if (config.mlp_bias) return NoKernels(config, "biases of the MLP");
  if (config.attention_softcap > 0) return NoKernels(config, "a cap of attention scores");
  if (config.final_logit_softcap > 0) return NoKernels(config, "a cap of logits");
  // These norms read what products give, to which biases are added later.
  const bool norms_outputs = config.norms != NormPlacement::kBefore;
  if ((config.o_bias && norms_outputs) || (config.qkv_bias && config.qk_norm_projection)) {
    return NoKernels(config, "biases of attention before a norm");
  }
  if (config.rotary_dim % 8 != 0) return NoKernels(config, "heads of which so few elements turn");
  return absl::OkStatus();
}

// Several GPUs add up what products of o and down give, and nothing else.
absl::Status CheckDeviceShards(const ModelConfig& config) {
  const auto refuse = [](std::string_view what) {
    return absl::UnimplementedError(
        absl::StrCat("several GPUs cannot share a model with ", AbslSv(what), " yet: --tensor-parallel=1"));
  };
  if (config.o_bias) return refuse("a bias of o");
  if (config.norms != NormPlacement::kBefore) return refuse("norms after attention and MLP");
  if (config.qk_norm_projection) return refuse("norms of whole projections of queries and keys");
  if (!config.windows.empty()) return refuse("sliding windows");
  return absl::OkStatus();
}

// Experts lie in one GPU in bf16 or as MXFP4, all of one width.
absl::Status CheckDeviceExperts(const ModelConfig& config, const DeviceWeightOptions& options) {
  const MoeConfig& moe = config.moe;
  if (moe.num_experts == 0 || options.parts == WeightParts::kQueryProjections) return absl::OkStatus();
  const auto refuse = [&](const auto&... what) { return NoKernels(config, absl::StrCat(what...)); };
  if (moe.groups > device::kMaxExpertGroups)
    return refuse("more than ", device::kMaxExpertGroups, " groups of experts");
  if (moe.correction && !moe.sigmoid) return refuse("experts chosen by a softmax with a correction");
  if (moe.intermediate_size % 8 != 0 || config.hidden_size % 8 != 0) {
    return refuse("experts whose width is no multiple of 8");
  }
  if (moe.shared_intermediate_size % moe.intermediate_size != 0) {
    return refuse("a shared expert whose width is no multiple of another's");
  }
  const device::ExpertMatrices shape = ExpertShapeOf(config);
  if (shape.num_shared > device::kMaxExpertsPerToken) return refuse("a shared expert as wide as ", shape.num_shared);
  if (shape.num_all() > device::kMaxExperts) return refuse("more than ", device::kMaxExperts, " experts");
  if (moe.experts_per_token > device::kMaxExpertsPerToken) {
    return refuse("more than ", device::kMaxExpertsPerToken, " experts for a token");
  }
  if (options.shard.count > 1) {
    return absl::UnimplementedError("several GPUs cannot share a mixture of experts yet: --tensor-parallel=1");
  }
  if (options.dtype != Dtype::kBf16) {
    return absl::UnimplementedError(
        absl::StrCat("on GPUs experts are held as bf16, not as ", DtypeName(options.dtype), ": --compute=bf16"));
  }
  return absl::OkStatus();
}

}  // namespace

device::GatedActivation ActivationOf(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return device::GatedActivation::kSilu;
    case Activation::kGeluTanh:
      return device::GatedActivation::kGeluTanh;
    case Activation::kClampedSilu:
      return device::GatedActivation::kClampedSilu;
  }
  return device::GatedActivation::kSilu;
}

device::ExpertMatrices ExpertShapeOf(const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  if (moe.num_experts == 0) return {};
  return {.mxfp4 = config.quantization.format == WeightQuantization::Format::kMxfp4,
          .activation = ActivationOf(config.activation),
          .num_experts = moe.num_experts,
          .num_shared = moe.shared_intermediate_size / moe.intermediate_size,
          .shared_gate = moe.shared_gate,
          .hidden_size = config.hidden_size,
          .intermediate_size = moe.intermediate_size,
          .experts_per_token = moe.experts_per_token,
          .sigmoid = moe.sigmoid,
          .normalizes = moe.normalizes,
          .scale = moe.scale,
          .groups = moe.groups,
          .groups_per_token = moe.groups_per_token,
          .group_scores = moe.group_scores};
}

int ProjectedFeatures(const ModelConfig& config) {
  const int index = config.latent ? config.latent->indexer.head_dim + config.latent->indexer.num_heads : 0;
  return config.qkv_features() + index;
}

int QueryUpFeatures(const ModelConfig& config) {
  const LatentConfig& latent = *config.latent;
  return config.num_query_heads * latent.query_dim() + latent.indexer.num_heads * latent.indexer.head_dim;
}

size_t LatentHeadBytes(const ModelConfig& config) {
  if (!config.latent) return 0;
  const size_t width = config.latent->nope_dim + config.latent->value_dim;
  return width * config.num_query_heads * config.latent->shape.rank * DtypeBytes(Dtype::kBf16);
}

size_t ExpertBytes(const device::ExpertMatrices& of) {
  const size_t elements = size_t{3} * of.intermediate_size * of.hidden_size;
  return of.mxfp4 ? elements / 2 + elements / device::kExpertBlock : elements * DtypeBytes(Dtype::kBf16);
}

absl::Status CheckDeviceModel(const ModelConfig& config, const DeviceWeightOptions& options) {
  if (options.dtype != Dtype::kBf16 && options.dtype != Dtype::kF8) {
    return absl::InvalidArgumentError(
        absl::StrCat("GPUs hold weights as bf16 or fp8, not as ", DtypeName(options.dtype)));
  }
  if (config.delta) return NoKernels(config, "layers of linear attention");
  WINNOW_RETURN_IF_ERROR(CheckDeviceLayers(config));
  WINNOW_RETURN_IF_ERROR(config.latent ? CheckDeviceLatents(config, options) : CheckDeviceHeads(config));
  WINNOW_RETURN_IF_ERROR(CheckDeviceExperts(config, options));
  const int count = options.shard.count;
  if (count > 1) WINNOW_RETURN_IF_ERROR(CheckDeviceShards(config));
  if (count < 1 || options.shard.index < 0 || options.shard.index >= count || config.num_kv_heads % count != 0 ||
      config.intermediate_size % count != 0) {
    return absl::InvalidArgumentError(absl::StrCat(count, " GPUs cannot share ", config.num_query_heads,
                                                   " query heads, ", config.num_kv_heads,
                                                   " kv heads and an intermediate size of ", config.intermediate_size,
                                                   ": each of them has to be divisible by ", count));
  }
  return CheckDeviceWidths(config, options);
}

ModelConfig ShardConfig(const ModelConfig& config, WeightShard shard) {
  ModelConfig part = config;
  part.num_query_heads /= shard.count;
  part.num_kv_heads /= shard.count;
  part.intermediate_size /= shard.count;
  return part;
}

size_t DeviceWeightBytes(const device::DeviceTable& table, const ModelConfig& config,
                         const DeviceWeightOptions& options, const Checkpoint* checkpoint) {
  return DeviceWeights(ShardConfig(config, options.shard), options, checkpoint).Carve(table, nullptr);
}

size_t DeviceWeights::Carve(const device::DeviceTable& table, void* region) {
  const bool all = options_.parts == WeightParts::kAll;
  const size_t hidden = config_.hidden_size;
  const size_t qkv = all ? ProjectedFeatures(config_) : config_.q_features();
  layers_.resize(config_.num_layers);
  device::Arena arena(region);
  for (int l = 0; l < config_.num_layers; ++l) {
    DeviceLayerWeights& layer = layers_[static_cast<size_t>(l)];
    if (config_.norms != NormPlacement::kAfter) layer.input_norm = arena.TakeArray<float>(hidden);
    if (config_.qk_norm) layer.q_norm = arena.TakeArray<float>(config_.q_norm_features());
    if (config_.qkv_bias) layer.qkv_bias = arena.TakeArray<float>(qkv);
    if (!all) continue;
    if (config_.norms != NormPlacement::kAfter) layer.post_attention_norm = arena.TakeArray<float>(hidden);
    if (config_.norms != NormPlacement::kBefore) {
      layer.attention_post_norm = arena.TakeArray<float>(hidden);
      layer.mlp_post_norm = arena.TakeArray<float>(hidden);
    }
    if (config_.qk_norm) layer.k_norm = arena.TakeArray<float>(config_.k_norm_features());
    if (config_.attention_sinks) layer.sinks = arena.TakeArray<float>(config_.num_query_heads);
    if (config_.o_bias) layer.o_bias = arena.TakeArray<float>(hidden);
    if (config_.latent) TakeLatentVectors(arena, *config_.latent, layer.latent);
    if (config_.moe.IsSparse(l)) TakeExpertVectors(arena, config_, layer.experts);
  }
  if (all) final_norm_ = arena.TakeArray<float>(hidden);
  vector_bytes_ = arena.used_bytes();
  for (size_t l = 0; l < layers_.size(); ++l) {
    DeviceLayerWeights& layer = layers_[l];
    const LayerForms& forms = forms_.layers[l];
    const auto take = [&](const DeviceForm& form, size_t out, size_t in, device::DeviceMatrix& matrix) {
      TakeMatrix(*table.matmul, arena, form, static_cast<int>(out), static_cast<int>(in), matrix);
    };
    take(forms.qkv, qkv, hidden, layer.qkv);
    if (!all) continue;
    take(forms.o, hidden, config_.o_features(), layer.o);
    if (config_.latent) TakeLatentMatrices(*table.matmul, arena, config_, layer.latent);
    if (layer.is_sparse()) {
      TakeExperts(arena, layer.experts);
      continue;
    }
    take(forms.gate_up, 2 * static_cast<size_t>(config_.intermediate_size), hidden, layer.gate_up);
    take(forms.down, hidden, config_.intermediate_size, layer.down);
  }
  if (all) {
    embedding_ = arena.Take(static_cast<size_t>(config_.vocab_size) * hidden * DtypeBytes(Dtype::kBf16));
    const int head_features = LmHeadFeatures(config_, options_.shard);
    if (ties_tables()) {
      lm_head_ = {.out_features = head_features, .in_features = config_.hidden_size};
      const size_t first = static_cast<size_t>(lm_head_first()) * hidden * DtypeBytes(Dtype::kBf16);
      if (region != nullptr) lm_head_.data = static_cast<std::byte*>(embedding_) + first;
    } else {
      TakeMatrix(*table.matmul, arena, forms_.lm_head, head_features, config_.hidden_size, lm_head_);
    }
  }
  return arena.used_bytes();
}

absl::Status DeviceWeights::Allocate(const device::DeviceTable& table, device::Device& device) {
  const size_t bytes = Carve(table, nullptr);
  absl::StatusOr<std::unique_ptr<device::DeviceMemory>> memory = device.Allocate(bytes);
  if (!memory.ok()) {
    return absl::Status(
        memory.status().code(),
        absl::StrCat("the weights take ", Gigabytes(bytes), " in ", DtypeName(layers_[0].qkv.dtype), ", of ",
                     config_.num_layers, " layers and two tables of ", config_.vocab_size, " x ", config_.hidden_size,
                     "; GPU ", device.ordinal(), ": ", memory.status().message()));
  }
  memory_ = *std::move(memory);
  Carve(table, memory_->data());
  return absl::OkStatus();
}

size_t DeviceWeights::bytes_per_step() const {
  size_t bytes = vector_bytes_ + MatrixBytes(lm_head_);
  for (const DeviceLayerWeights& layer : layers_) {
    for (const device::DeviceMatrix* matrix :
         {&layer.qkv, &layer.latent.query_up, &layer.o, &layer.gate_up, &layer.down}) {
      bytes += MatrixBytes(*matrix);
    }
    bytes += LatentHeadBytes(config_);
  }
  return bytes;
}

size_t DeviceWeights::expert_bytes() const {
  return ExpertBytes(ExpertShapeOf(config_));
}

absl::StatusOr<std::unique_ptr<device::DeviceMemory>> NewStaging(device::Device& device, const DeviceWeights& weights) {
  size_t largest = 0;
  const auto include = [&](const device::DeviceMatrix& matrix) {
    if (matrix.dtype == Dtype::kBf16) return;
    largest = std::max(largest, static_cast<size_t>(matrix.out_features) * matrix.in_features);
  };
  for (int l = 0; l < weights.config().num_layers; ++l) {
    const DeviceLayerWeights& layer = weights.layer(l);
    for (const device::DeviceMatrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) include(*matrix);
  }
  include(weights.lm_head());
  if (largest == 0) return nullptr;
  // Of codes with scales and zeros for each 32 of them at the most there are 37 bytes for each 64, and three arrays.
  return device.Allocate(largest * DtypeBytes(Dtype::kBf16) + 3 * device::Arena::kAlignment);
}

void* StagingOf(const device::DeviceMatrix& matrix, const device::DeviceMemory* staging) {
  return matrix.dtype == Dtype::kBf16 ? const_cast<void*>(matrix.data) : staging->data();
}

absl::StatusOr<std::unique_ptr<DeviceWeights>> DeviceWeights::Synthesize(const device::DeviceTable& table,
                                                                         device::Device& device,
                                                                         const ModelConfig& config, uint64_t seed,
                                                                         bool query_bias,
                                                                         const DeviceWeightOptions& options) {
  WINNOW_RETURN_IF_ERROR(CheckDeviceModel(config, options));
  std::unique_ptr<DeviceWeights> weights(new DeviceWeights(ShardConfig(config, options.shard), options, nullptr));
  if (query_bias) weights->config_.qkv_bias = true;
  WINNOW_RETURN_IF_ERROR(weights->Allocate(table, device));
  WINNOW_RETURN_IF_ERROR(WeightSynthesis(table, device, seed, options.shard).Fill(*weights));
  return weights;
}

absl::StatusOr<std::unique_ptr<DeviceWeights>> DeviceWeights::Load(const device::DeviceTable& table,
                                                                   device::Device& device, const Checkpoint& checkpoint,
                                                                   const ModelConfig& config,
                                                                   const DeviceWeightOptions& options) {
  WINNOW_RETURN_IF_ERROR(CheckDeviceModel(config, options));
  std::unique_ptr<DeviceWeights> weights(new DeviceWeights(ShardConfig(config, options.shard), options, &checkpoint));
  WINNOW_ASSIGN_OR_RETURN(weights->warnings_, ValidateTensors(checkpoint, config));
  WINNOW_RETURN_IF_ERROR(weights->Allocate(table, device));
  WINNOW_RETURN_IF_ERROR(CheckpointUpload(table, device, checkpoint, config.quantization).Fill(*weights));
  return weights;
}

absl::Status DeviceWeights::SetQueryBias(device::Device& device, device::Stream stream,
                                         const std::vector<float>& bias) {
  const size_t features = config_.q_features();
  WINNOW_CHECK(config_.qkv_bias && bias.size() == layers_.size() * features);
  for (size_t l = 0; l < layers_.size(); ++l) {
    device.CopyAsync(const_cast<float*>(layers_[l].qkv_bias), bias.data() + l * features, features * sizeof(float),
                     stream);
  }
  return device.Synchronize(stream);
}

}  // namespace winnow
