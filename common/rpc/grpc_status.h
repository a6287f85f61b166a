#pragma once
#include <chrono>

#include "common/base/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace winnow {

// The codes of the two are the same; only code and message are carried over.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// The other side has answered, if only by an error: it was reached, and in time. Without an answer another call may
// have one.
bool HasAnswer(const grpc::Status& status);

// Limits a call: it fails with DEADLINE_EXCEEDED after `timeout`.
void SetTimeout(grpc::ClientContext& context, std::chrono::microseconds timeout);

}  // namespace winnow
