#pragma once
#include <string>

#include "common/base/kv_layout.h"
#include "model/forward.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// What cache ranks compare with their own: the shape of the KV that `forward` writes, versions, and `numerics`
// (kernel set and dtypes), which decides whether another rank can go on bit for bit.
v1::Fingerprint InferenceFingerprint(const std::string& model_digest, const KvLayout& layout, const Forward& forward,
                                     const std::string& numerics);

}  // namespace winnow
