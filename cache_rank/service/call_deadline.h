#pragma once
#include <grpcpp/server_context.h>

#include <algorithm>
#include <chrono>

namespace winnow {

// When an RPC has to be answered: its client's deadline, at most `timeout` from now.
inline std::chrono::system_clock::time_point CallDeadline(const grpc::ServerContext& context,
                                                          std::chrono::milliseconds timeout) {
  return std::min(context.deadline(), std::chrono::system_clock::now() + timeout);
}

}  // namespace winnow
