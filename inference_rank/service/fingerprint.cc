#include "inference_rank/service/fingerprint.h"

#include "common/selection/selection_spec.h"
#include "transport/wire/wire.h"

namespace winnow {

v1::Fingerprint InferenceFingerprint(const std::string& model_digest, const KvLayout& layout, const Forward& forward,
                                     const std::string& numerics) {
  v1::Fingerprint fingerprint;
  fingerprint.set_model_digest(model_digest);
  v1::KvShape* shape = fingerprint.mutable_kv_shape();
  shape->set_num_layers(layout.num_layers);
  shape->set_num_query_heads(layout.num_query_heads);
  shape->set_num_kv_heads(layout.num_kv_heads);
  shape->set_head_dim(layout.head_dim);
  shape->set_value_is_key(layout.row.value_is_key);
  shape->set_index_dim(layout.row.index_dim);
  shape->set_num_index_heads(layout.num_index_heads);
  shape->set_kv_dtype(layout.dtype == Dtype::kF32  ? v1::KV_DTYPE_F32
                      : layout.dtype == Dtype::kI8 ? v1::KV_DTYPE_INT8
                                                   : v1::KV_DTYPE_BF16);
  for (float frequency : forward.rope().inv_freq) shape->add_rope_inv_freq(frequency);
  shape->set_rope_attention_factor(forward.rope().attention_factor);
  shape->set_attention_scale(forward.attention_scale());
  fingerprint.set_block_tokens(kBlockTokens);
  fingerprint.set_row_layout(1);
  fingerprint.set_selector_version(kSelectorVersion);
  fingerprint.set_wire_version(wire::kVersion);
  fingerprint.set_numerics(numerics);
  return fingerprint;
}

}  // namespace winnow
