#include "cache_rank/select/predictor/query_projection.h"

#include "common/base/check.h"
#include "common/model/checkpoint.h"
#include "common/model/layer_names.h"
#include "common/model/model_tensors.h"
#include "model/weights/matrix_plan.h"
#include "model/weights/vector_loader.h"
#include "model/weights/weights.h"

namespace winnow {
namespace {

size_t VectorFloats(const ModelConfig& config) {
  size_t per_layer = config.norms == NormPlacement::kAfter ? 0 : static_cast<size_t>(config.hidden_size);
  if (config.qkv_bias) per_layer += static_cast<size_t>(config.q_features());
  if (config.qk_norm) per_layer += static_cast<size_t>(config.q_norm_features());
  return per_layer * static_cast<size_t>(config.num_layers);
}

size_t MatrixBytes(const MatrixSource& source, const ModelConfig& config) {
  MatrixPlan plan(source, /*region=*/nullptr);
  for (int i = 0; i < config.num_layers; ++i) PlanQuery(config, LayerNamesOf(config, i), plan);
  return plan.bytes();
}

}  // namespace

absl::StatusOr<size_t> QueryProjection::BytesNeeded(const std::string& model_dir, Dtype compute_dtype) {
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(model_dir));
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(model_dir));
  return MatrixBytes({checkpoint.get(), config.quantization, compute_dtype}, config) +
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
  if (config.latent || config.delta || config.rotary_dim != config.head_dim) {
    return absl::UnimplementedError(
        absl::StrCat("a cache rank projects no queries of latent attention, of hybrid models or of "
                     "heads of which a part turns, as ",
                     ModelFamilyName(config.family), " has them: leave out its --model"));
  }
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(model_dir));
  WINNOW_RETURN_IF_ERROR(ValidateTensors(*checkpoint, config).status());
  std::unique_ptr<QueryProjection> projection(new QueryProjection(config, kernels));
  projection->model_digest_ = checkpoint->Digest();
  projection->layers_.resize(static_cast<size_t>(config.num_layers));

  std::vector<float>& vectors = projection->vectors_;
  vectors.reserve(VectorFloats(config));
  VectorLoader loader(*checkpoint, vectors);
  const float norm_offset = config.norms_add_one ? 1 : 0;
  const MatrixSource source{checkpoint.get(), config.quantization, compute_dtype};
  WINNOW_ASSIGN_OR_RETURN(projection->matrices_, HugePageRegion::Allocate(MatrixBytes(source, config)));
  MatrixPlan plan(source, projection->matrices_.data());
  for (int i = 0; i < config.num_layers; ++i) {
    Layer& layer = projection->layers_[static_cast<size_t>(i)];
    const LayerNames names = LayerNamesOf(config, i);
    layer.input_norm = loader.LoadIfNamed(names.attention_norm, norm_offset);
    if (config.qkv_bias) layer.query_bias = loader.Load(BiasesOf({names.qkv.front()}));
    layer.q_norm = loader.LoadIfNamed(names.q_norm, norm_offset);
    layer.query = PlanQuery(config, names, plan);
  }
  WINNOW_RETURN_IF_ERROR(loader.status());
  WINNOW_RETURN_IF_ERROR(plan.status());
  WINNOW_CHECK(vectors.size() == VectorFloats(config) && plan.bytes() == projection->matrices_.bytes());
  WINNOW_RETURN_IF_ERROR(PackAll(*checkpoint, kernels, plan.jobs(), num_threads));
  return projection;
}

void QueryProjection::Project(Executor& executor, int layer, const float* hidden, int num_rows, float* queries) const {
  WINNOW_CHECK(num_rows >= 1 && num_rows <= kMaxRows);
  const Layer& weights = layers_[static_cast<size_t>(layer)];
  kernels_.decode_matmul(executor,
                         {.x = hidden,
                          .x_stride = config_.hidden_size,
                          .num_rows = num_rows,
                          .transform = weights.input_norm.empty() ? InputTransform::kNone : InputTransform::kRmsNorm,
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
                       .norm_epsilon = config_.rms_norm_eps,
                       .norms_projection = config_.qk_norm_projection});
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
