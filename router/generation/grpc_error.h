#pragma once
#include <grpcpp/support/status.h>

#include "common/base/status.h"

namespace winnow {

// The status of a call of the clients' API: code, message and, in the trailer grpc-status-details-bin, what HTTP says
// in the body and headers of the same error: ErrorInfo, BadRequest where a field is to blame, and RetryInfo.
grpc::Status ToRichGrpc(const absl::Status& status);

}  // namespace winnow
