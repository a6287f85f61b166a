#include "cache_rank/predictor/query_projection.h"

#include <cstring>

#include "common/base/check.h"
#include "common/model/checkpoint.h"
#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"

namespace winnow {
namespace {

size_t VectorFloats(const ModelConfig& config) {
  size_t per_layer = static_cast<size_t>(config.hidden_size);
  if (config.qkv_bias) per_layer += static_cast<size_t>(config.q_features());
  if (config.qk_norm) per_layer += static_cast<size_t>(config.head_dim);
  return per_layer * static_cast<size_t>(config.num_layers);
}

absl::StatusOr<TensorView> FiniteTensor(const Checkpoint& checkpoint, const std::string& name) {
  WINNOW_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Find(name));
  WINNOW_RETURN_IF_ERROR(CheckFinite(tensor, checkpoint.FileOf(name)));
  return tensor;
}

absl::Status Pack(const Checkpoint& checkpoint, const KernelTable& kernels, const std::string& name,
                  const PackedMatrix& matrix, void* destination) {
  WINNOW_ASSIGN_OR_RETURN(const TensorView tensor, FiniteTensor(checkpoint, name));
  const Dtype dtype = *WeightDtype(tensor.dtype);
  const void* weight = tensor.bytes.data();
  std::vector<uint64_t> aligned;
  if (!IsAligned(weight, dtype)) {
    aligned.resize((tensor.bytes.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    std::memcpy(aligned.data(), weight, tensor.bytes.size());
    weight = aligned.data();
  }
  kernels.pack({.weight = weight,
                .dtype = dtype,
                .out_features = matrix.out_features,
                .in_features = matrix.in_features,
                .packed_dtype = matrix.dtype,
                .packed = destination});
  checkpoint.ReleasePages(name);
  return absl::OkStatus();
}

}  // namespace

size_t QueryProjection::BytesNeeded(const ModelConfig& config, Dtype compute_dtype) {
  return static_cast<size_t>(config.num_layers) * PackedBytes(config.q_features(), config.hidden_size, compute_dtype) +
         VectorFloats(config) * sizeof(float);
}

absl::StatusOr<std::unique_ptr<const QueryProjection>> QueryProjection::Load(const std::string& model_dir,
                                                                             const KernelTable& kernels,
                                                                             Dtype compute_dtype, int num_threads) {
  if (compute_dtype != Dtype::kBf16 && compute_dtype != Dtype::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("queries cannot be projected in ", DtypeName(compute_dtype), "; supported are bf16 and f32"));
  }
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(model_dir));
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(model_dir));
  WINNOW_RETURN_IF_ERROR(ValidateTensors(*checkpoint, config).status());
  std::unique_ptr<QueryProjection> projection(new QueryProjection(config, kernels, compute_dtype));
  projection->model_digest_ = checkpoint->Digest();
  projection->layers_.resize(static_cast<size_t>(config.num_layers));

  std::vector<float>& vectors = projection->vectors_;
  vectors.reserve(VectorFloats(config));
  const auto load = [&](int layer, const char* suffix, std::span<const float>* out) {
    WINNOW_ASSIGN_OR_RETURN(const TensorView tensor, FiniteTensor(*checkpoint, LayerTensor(layer, suffix)));
    const size_t begin = vectors.size();
    AppendAsF32(tensor, 0, tensor.shape[0], vectors);
    *out = std::span<const float>(vectors).subspan(begin);
    return absl::OkStatus();
  };
  const size_t matrix_bytes = PackedBytes(config.q_features(), config.hidden_size, compute_dtype);
  WINNOW_ASSIGN_OR_RETURN(projection->matrices_, HugePageRegion::Allocate(matrix_bytes * projection->layers_.size()));
  for (int i = 0; i < config.num_layers; ++i) {
    Layer& layer = projection->layers_[static_cast<size_t>(i)];
    WINNOW_RETURN_IF_ERROR(load(i, "input_layernorm.weight", &layer.input_norm));
    if (config.qkv_bias) WINNOW_RETURN_IF_ERROR(load(i, "self_attn.q_proj.bias", &layer.query_bias));
    if (config.qk_norm) WINNOW_RETURN_IF_ERROR(load(i, "self_attn.q_norm.weight", &layer.q_norm));
    layer.query = {.data = projection->matrices_.data() + static_cast<size_t>(i) * matrix_bytes,
                   .out_features = config.q_features(),
                   .in_features = config.hidden_size,
                   .dtype = compute_dtype};
  }
  WINNOW_CHECK(vectors.size() == VectorFloats(config));

  struct Context {
    const Checkpoint& checkpoint;
    QueryProjection& projection;
    size_t matrix_bytes;
    std::vector<absl::Status> results;
  } context{*checkpoint, *projection, matrix_bytes, std::vector<absl::Status>(projection->layers_.size())};
  const std::unique_ptr<Executor> executor = kernels.new_executor(num_threads);
  kernels.parallel_for(
      *executor, config.num_layers,
      [](void* opaque, int layer, int) {
        auto& context = *static_cast<Context*>(opaque);
        const auto index = static_cast<size_t>(layer);
        context.results[index] =
            Pack(context.checkpoint, context.projection.kernels_, LayerTensor(layer, "self_attn.q_proj.weight"),
                 context.projection.layers_[index].query,
                 context.projection.matrices_.data() + index * context.matrix_bytes);
      },
      &context);
  for (const absl::Status& result : context.results) WINNOW_RETURN_IF_ERROR(result);
  return projection;
}

void QueryProjection::Project(Executor& executor, int layer, const float* hidden, int num_rows, float* queries) const {
  WINNOW_CHECK(num_rows >= 1 && num_rows <= kMaxRows);
  const Layer& weights = layers_[static_cast<size_t>(layer)];
  kernels_.decode_matmul(executor, {.x = hidden,
                                    .x_stride = config_.hidden_size,
                                    .num_rows = num_rows,
                                    .transform = InputTransform::kRmsNorm,
                                    .norm_weight = weights.input_norm.data(),
                                    .norm_epsilon = config_.rms_norm_eps,
                                    .weight = weights.query,
                                    .bias = weights.query_bias.data(),
                                    .y = queries,
                                    .y_stride = config_.q_features()});
  kernels_.query_norm({.q = queries,
                       .num_rows = num_rows,
                       .num_query_heads = config_.num_query_heads,
                       .head_dim = config_.head_dim,
                       .q_norm_weight = weights.q_norm.data(),
                       .norm_epsilon = config_.rms_norm_eps});
}

absl::Status QueryProjection::CheckShape(int num_layers, int num_query_heads, int head_dim) const {
  const auto compare = [](const char* field, int ours, int theirs) {
    if (ours == theirs) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("kv_shape.", field, " is ", theirs, " and the model of the cache rank has ", ours));
  };
  WINNOW_RETURN_IF_ERROR(compare("num_layers", config_.num_layers, num_layers));
  WINNOW_RETURN_IF_ERROR(compare("num_query_heads", config_.num_query_heads, num_query_heads));
  return compare("head_dim", config_.head_dim, head_dim);
}

}  // namespace winnow
