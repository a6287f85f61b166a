#pragma once
#include <grpcpp/support/status.h>

#include "common/base/status.h"

namespace winnow {

// The codes are the same numbers.
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace winnow
