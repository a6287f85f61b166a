#pragma once
#include <string_view>

#include "cache_rank/select/host/select_head.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// The model shape that a cache rank serves, from the first Exchange.
struct ServedShape {
  v1::KvShape proto;
  KvLayout layout;
  SelectionModel model;
};

// INVALID_ARGUMENT names what is missing or impossible.
absl::StatusOr<ServedShape> ParseKvShape(const v1::KvShape& shape);

// FAILED_PRECONDITION names the field that differs, and both values: the versions, the shape where one is served
// already, and the model where this rank has loaded weights (else `model_digest` is empty).
absl::Status CheckFingerprint(const v1::Fingerprint& theirs, const ServedShape* served, std::string_view model_digest);

// The fields that a cache rank knows of itself.
v1::Fingerprint CacheRankFingerprint(const ServedShape* served, std::string_view model_digest,
                                     const KernelTable& kernels);

}  // namespace winnow
