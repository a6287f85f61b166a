#pragma once
#include <grpcpp/server_context.h>

#include "router/keys/caller.h"

namespace winnow {

// Whose call it is by its metadata `authorization`. Without an authenticator TenantOf tells callers apart.
absl::StatusOr<Caller> CallerOfCall(const grpc::CallbackServerContext& context, const Authenticator& authenticate);

}  // namespace winnow
