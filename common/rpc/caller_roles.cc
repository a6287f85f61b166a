#include "common/rpc/caller_roles.h"

#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"

namespace winnow {

std::optional<std::vector<PeerRole>> RolesOfPeer(const grpc::AuthContext* peer) {
  if (peer == nullptr) return std::nullopt;
  const auto security = peer->FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  if (security.empty() || security.front() == "insecure") return std::nullopt;
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : peer->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  return PeerRolesOf(uris);
}

}  // namespace winnow
