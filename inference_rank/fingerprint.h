#pragma once
#include <string>

#include "common/base/kv_layout.h"
#include "inference_rank/model/transformer.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// What cache ranks compare with their own: the shape of the KV that `transformer` writes, versions, and `numerics`
// (kernel set and dtypes), which decides whether another rank can go on bit for bit.
v1::Fingerprint InferenceFingerprint(const std::string& model_digest, const KvLayout& layout,
                                     const Transformer& transformer, const std::string& numerics);

}  // namespace winnow
