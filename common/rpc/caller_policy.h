#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// What the certificate of a process says that it is, by a URI name: "spiffe://winnow/router" and so on.
enum class PeerRole { kRouter, kInferenceRank, kCacheRank, kAdmin };

std::string_view PeerRoleUri(PeerRole role);
// Of the URI names of a certificate, those that are roles.
std::vector<PeerRole> PeerRolesOf(const std::vector<std::string>& uri_names);

// Whether a caller may make a gRPC call, "/winnow.v1.RankService/Dispatch". The API of clients, health and reflection
// are for everybody who connects; each other call is for the roles that a cluster needs it for. UNAUTHENTICATED for
// callers without a role, PERMISSION_DENIED for those with another one. Methods that are not known are for nobody.
absl::Status CheckCaller(std::string_view method, const std::vector<PeerRole>& roles);

// Whether a process may answer calls: clients of the cluster have certificates, too. UNAUTHENTICATED.
absl::Status CheckServer(const std::vector<PeerRole>& roles);

}  // namespace winnow
