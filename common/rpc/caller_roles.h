#pragma once
#include <optional>
#include <vector>

#include "common/rpc/caller_policy.h"

namespace grpc {
class AuthContext;
}

namespace winnow {

// What the certificate of a peer says that it is; absent where the connection is not encrypted, or there is none
// (null), so that nobody knows.
std::optional<std::vector<PeerRole>> RolesOfPeer(const grpc::AuthContext* peer);

}  // namespace winnow
