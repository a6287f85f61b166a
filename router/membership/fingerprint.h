#pragma once
#include "common/base/status.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// FAILED_PRECONDITION names the first field in which `actual` differs from `expected`, and both values. Numerics may
// differ: sequences may move between them, which is counted where it happens.
absl::Status CompareModelFingerprints(const v1::Fingerprint& expected, const v1::Fingerprint& actual);

// The same for the fields that do not depend on the model (block_tokens, row_layout, selector_version, wire_version).
absl::Status CompareVersions(const v1::Fingerprint& expected, const v1::Fingerprint& actual);

}  // namespace winnow
