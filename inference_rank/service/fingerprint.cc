#include "inference_rank/service/fingerprint.h"

#include "common/rpc/kv_shape.h"
#include "common/selection/selection_spec.h"
#include "transport/wire/wire.h"

namespace winnow {

v1::Fingerprint InferenceFingerprint(const std::string& model_digest, const KvLayout& layout, const Forward& forward,
                                     const std::string& numerics) {
  v1::Fingerprint fingerprint;
  fingerprint.set_model_digest(model_digest);
  v1::KvShape* shape = fingerprint.mutable_kv_shape();
  DescribeKvLayout(layout, shape);
  for (float frequency : forward.rope().inv_freq) shape->add_rope_inv_freq(frequency);
  shape->set_rope_attention_factor(forward.rope().attention_factor);
  shape->set_attention_scale(forward.attention_scale());
  shape->set_attention_softcap(forward.attention_softcap());
  fingerprint.set_block_tokens(kBlockTokens);
  fingerprint.set_row_layout(kRowLayout);
  fingerprint.set_selector_version(kSelectorVersion);
  fingerprint.set_wire_version(wire::kVersion);
  fingerprint.set_numerics(numerics);
  return fingerprint;
}

}  // namespace winnow
