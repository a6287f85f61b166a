#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string>

#include "common/base/status.h"

namespace winnow {

// Canonical codes are the same numbers on both sides.
inline grpc::Status GrpcStatusOf(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message().data(), status.message().size()));
}

// When an RPC has to be answered: its client's deadline, at most `timeout` from now.
inline std::chrono::system_clock::time_point CallDeadline(const grpc::ServerContext& context, std::chrono::milliseconds timeout) {
  return std::min(context.deadline(), std::chrono::system_clock::now() + timeout);
}

}  // namespace winnow
