#pragma once
#include <chrono>
#include <string>

#include "common/base/status.h"
#include "common/rpc/credentials.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// Connects to the address of `target`, which is said to be its process's, and asks who answers there. OK: that very
// start of that process, or, where `hosted_by` is not empty, the process of that inference rank, which hosts it.
// UNAVAILABLE says why not. Blocks for up to `timeout`; not for gRPC's own threads.
absl::Status Dial(const v1::Identity& target, const std::string& hosted_by, std::chrono::milliseconds timeout,
                  const Credentials& credentials = {});

}  // namespace winnow
