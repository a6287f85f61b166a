#pragma once
#include "common/base/status.h"
#include "common/selection/spec_text.h"
#include "router/generation/served_model.h"

namespace winnow {

// What a request may change of the server's selection; the same for HTTP and gRPC.
//
// Fields marked per_request (spec_fields.cc) may change: the budget up to the server's largest, its growth up to the
// server's. All others are fixed when the server starts, and naming one is an error unless its value is the server's.
// Of a preset that the request names, the fields that may change are taken, the budget cut to what is allowed; the
// others stay the server's. Without a head profile on the server nothing can be taken from one: where profile_use is
// not none, by the request's field or its preset, it is refused.
//
// INVALID_ARGUMENT names the field (SpecErrorField); UNIMPLEMENTED says what this version does not do yet.
absl::StatusOr<SelectionSpec> ResolveSelection(const SpecChanges& asked, const ServedModel& model);

}  // namespace winnow
