// Latent attention of DeviceLayers: what surrounds an attention over latents.
#include "common/base/check.h"
#include "model/device/device_layers.h"

namespace winnow {

void DeviceLayers::ProjectLatents(cuda::Stream stream, DevicePhase phase, int layer, int num_rows,
                                  const RopeOutputs& outputs) {
  WINNOW_CHECK(outputs.mirror_regions == nullptr);
  const LatentConfig& latent = *config().latent;
  const DeviceLayerWeights& weights = weights_->layer(layer);
  const int64_t projected = config().qkv_features();
  const int queries = config().query_projection_features(), heads = config().num_query_heads;
  const bool decode = phase == DevicePhase::kDecode;
  cuda::LatentAppendParams append{.heads = qkv_, .heads_stride = projected};
  if (latent.query_rank > 0) {
    table_.elementwise->rms_norm(stream, {.x = qkv_,
                                          .x_stride = projected,
                                          .bias = weights.qkv_bias,
                                          .biased = qkv_,
                                          .num_rows = num_rows,
                                          .hidden_size = latent.query_rank,
                                          .weight = weights.latent.query_norm,
                                          .epsilon = kLatentNormEpsilon,
                                          .out = latent_.query_latents});
    append.heads = latent_.heads;
    append.heads_stride = heads * latent.query_dim();
    Matmul(stream, phase, weights.latent.query_up, latent_.query_latents, num_rows,
           {.y = latent_.heads, .stride = append.heads_stride, .dtype = Dtype::kF32, .accumulate = false});
  }
  append.latents = qkv_ + queries;
  append.latents_stride = projected;
  if (weights.qkv_bias != nullptr) append.latent_bias = weights.qkv_bias + queries;
  append.num_rows = num_rows;
  append.num_heads = heads;
  append.nope_dim = latent.nope_dim;
  append.shape = latent.shape;
  append.interleaved = latent.interleaved;
  append.norm_weight = weights.latent.key_norm;
  append.norm_epsilon = kLatentNormEpsilon;
  append.positions = outputs.positions;
  append.rope_inv_freq = RotationOf(layer).inv_freq;
  append.rope_attention_factor = latent_.key_attention_factor;
  append.nope = latent_.nope;
  append.q = decode ? q_ : nullptr;
  append.q_bf16 = decode ? nullptr : q_bf16_;
  append.q_pre_rope = outputs.q_pre_rope;
  append.kv_destinations = outputs.kv_destinations;
  append.kv_mirror = outputs.kv_mirror;
  append.kv_mirror_stride = outputs.kv_mirror_stride / static_cast<int64_t>(DtypeBytes(Dtype::kBf16));
  WINNOW_CHECK(outputs.q_pre_rope == nullptr || outputs.q_pre_rope_stride == 0 ||
               outputs.q_pre_rope_stride == config().q_features());
  table_.latent->append(stream, append);
  table_.latent->head_products(stream, {.to_latents = true,
                                        .of_prompt = !decode,
                                        .shape = latent.shape,
                                        .width = latent.nope_dim,
                                        .num_rows = num_rows,
                                        .num_heads = heads,
                                        .weight = weights.latent.key_up,
                                        .x = latent_.nope,
                                        .y = append.q,
                                        .y_again = append.q_pre_rope,
                                        .y_bf16 = append.q_bf16});
}

void DeviceLayers::LatentValues(cuda::Stream stream, DevicePhase phase, int layer, int num_rows) {
  const LatentConfig& latent = *config().latent;
  table_.latent->head_products(stream, {.of_prompt = phase == DevicePhase::kPrefill,
                                        .shape = latent.shape,
                                        .width = latent.value_dim,
                                        .num_rows = num_rows,
                                        .num_heads = config().num_query_heads,
                                        .weight = weights_->layer(layer).latent.value_up,
                                        .x = attention_,
                                        .y_bf16 = latent_.values});
}

}  // namespace winnow
