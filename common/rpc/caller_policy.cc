#include "common/rpc/caller_policy.h"

#include <algorithm>
#include <array>

namespace winnow {
namespace {

constexpr std::array<std::string_view, 4> kUris = {"spiffe://winnow/router", "spiffe://winnow/inference-rank",
                                                   "spiffe://winnow/cache-rank", "spiffe://winnow/admin"};

constexpr unsigned Bit(PeerRole role) {
  return 1u << static_cast<unsigned>(role);
}

constexpr unsigned kRouter = Bit(PeerRole::kRouter);
constexpr unsigned kInference = Bit(PeerRole::kInferenceRank);
constexpr unsigned kCache = Bit(PeerRole::kCacheRank);
constexpr unsigned kAdmin = Bit(PeerRole::kAdmin);
constexpr unsigned kEverybody = ~0u;

// The first whose prefix the method begins with.
struct Rule {
  std::string_view prefix;
  unsigned callers;
};
constexpr Rule kRules[] = {
    {"/winnow.v1.GenerationService/", kEverybody},
    {"/winnow.v1.TokenizerService/", kEverybody},
    {"/winnow.v1.ModelService/", kEverybody},
    {"/grpc.health.v1.Health/", kEverybody},
    {"/grpc.reflection.", kEverybody},
    // An inference rank may host a cache rank, and registers it.
    {"/winnow.v1.MembershipService/Watch", kAdmin | kRouter},
    {"/winnow.v1.MembershipService/", kInference | kCache},
    {"/winnow.v1.RankService/", kRouter},
    // Routers free sequences that they have given up.
    {"/winnow.v1.CacheService/ReleaseSequence", kInference | kRouter},
    {"/winnow.v1.CacheService/", kInference},
    {"/winnow.v1.TransportService/", kInference},
    // Routers say where replicas are to be; cache ranks feed them.
    {"/winnow.v1.ReplicationService/KeepReplica", kRouter},
    {"/winnow.v1.ReplicationService/", kCache},
    // Routers dial ranks, and these, asked by a router, other ranks.
    {"/winnow.v1.AdminService/GetServerInfo", kAdmin | kRouter | kInference | kCache},
    {"/winnow.v1.AdminService/GetLoad", kAdmin | kRouter},
    {"/winnow.v1.AdminService/Reach", kRouter},
    {"/winnow.v1.AdminService/", kAdmin},
    {"/winnow.v1.ClusterAdminService/", kAdmin},
};

std::string Names(unsigned callers) {
  std::string names;
  for (size_t i = 0; i < kUris.size(); ++i) {
    if ((callers >> i & 1) != 0) absl::StrAppend(&names, names.empty() ? "" : " or ", AbslSv(kUris[i]));
  }
  return names.empty() ? "nobody's" : names;
}

}  // namespace

std::string_view PeerRoleUri(PeerRole role) {
  return kUris[static_cast<size_t>(role)];
}

std::vector<PeerRole> PeerRolesOf(const std::vector<std::string>& uri_names) {
  std::vector<PeerRole> roles;
  for (size_t i = 0; i < kUris.size(); ++i) {
    if (std::find(uri_names.begin(), uri_names.end(), kUris[i]) != uri_names.end()) {
      roles.push_back(static_cast<PeerRole>(i));
    }
  }
  return roles;
}

absl::Status CheckCaller(std::string_view method, const std::vector<PeerRole>& roles) {
  unsigned allowed = 0, caller = 0;
  for (const Rule& rule : kRules) {
    if (!method.starts_with(rule.prefix)) continue;
    allowed = rule.callers;
    break;
  }
  for (const PeerRole role : roles) caller |= Bit(role);
  if (allowed == kEverybody || (allowed & caller) != 0) return absl::OkStatus();
  const std::string needs = absl::StrCat(AbslSv(method), " needs a certificate of ", Names(allowed));
  if (caller == 0) return absl::UnauthenticatedError(absl::StrCat(needs, "; the caller has none of a role"));
  return absl::PermissionDeniedError(absl::StrCat(needs, "; the caller's is of ", Names(caller)));
}

absl::Status CheckServer(const std::vector<PeerRole>& roles) {
  for (const PeerRole role : roles) {
    if (role != PeerRole::kAdmin) return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      absl::StrCat("the server's certificate is of no process of a cluster: its URI names have none of ",
                   Names(kRouter | kInference | kCache)));
}

}  // namespace winnow
