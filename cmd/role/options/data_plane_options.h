#pragma once
#include "common/base/status.h"
#include "common/config/fields.h"
#include "transport/seal/protection.h"

namespace winnow {

// Of ranks, and of `winnow up`, which passes it on: how frames between them are protected.
void DeclareDataPlane(Fields& fields, DataPlaneMode* mode);

// FAILED_PRECONDITION for encryption with keys that would travel in plain.
absl::Status CheckDataPlane(DataPlaneMode mode, bool has_tls);

}  // namespace winnow
