#include "common/rpc/caller_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "winnow/v1/admin.grpc.pb.h"
#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/cluster_admin.grpc.pb.h"
#include "winnow/v1/generation.grpc.pb.h"
#include "winnow/v1/membership.grpc.pb.h"
#include "winnow/v1/model.grpc.pb.h"
#include "winnow/v1/rank.grpc.pb.h"
#include "winnow/v1/replication.grpc.pb.h"
#include "winnow/v1/tokenizer.grpc.pb.h"
#include "winnow/v1/transport.grpc.pb.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

// Who may call what: R a router, I an inference rank, C a cache rank, A an administrator, - callers without a role.
const std::map<std::string, std::string> kTable = {
    {"winnow.v1.AdminService.GetServerInfo", "RICA"},
    {"winnow.v1.AdminService.GetLoad", "RA"},
    {"winnow.v1.AdminService.Reach", "R"},
    {"winnow.v1.AdminService.StartTimeline", "A"},
    {"winnow.v1.AdminService.StopTimeline", "A"},
    {"winnow.v1.CacheService.OpenSequence", "I"},
    {"winnow.v1.CacheService.PushPrefix", "I"},
    {"winnow.v1.CacheService.AttachSequence", "I"},
    {"winnow.v1.CacheService.ForkSequence", "I"},
    {"winnow.v1.CacheService.ReleaseSequence", "RI"},
    {"winnow.v1.ClusterAdminService.ListRanks", "A"},
    {"winnow.v1.ClusterAdminService.OrderRank", "A"},
    {"winnow.v1.ClusterAdminService.Reload", "A"},
    {"winnow.v1.GenerationService.Generate", "RICA-"},
    {"winnow.v1.GenerationService.Resume", "RICA-"},
    {"winnow.v1.GenerationService.Fork", "RICA-"},
    {"winnow.v1.GenerationService.Abort", "RICA-"},
    {"winnow.v1.MembershipService.Register", "IC"},
    {"winnow.v1.MembershipService.Heartbeat", "IC"},
    {"winnow.v1.MembershipService.Watch", "RA"},
    {"winnow.v1.MembershipService.Leave", "IC"},
    {"winnow.v1.ModelService.ListModels", "RICA-"},
    {"winnow.v1.RankService.Dispatch", "R"},
    {"winnow.v1.ReplicationService.KeepReplica", "R"},
    {"winnow.v1.ReplicationService.Feed", "C"},
    {"winnow.v1.TokenizerService.Tokenize", "RICA-"},
    {"winnow.v1.TokenizerService.Detokenize", "RICA-"},
    {"winnow.v1.TransportService.Exchange", "I"},
};

constexpr std::pair<char, PeerRole> kRoles[] = {
    {'R', PeerRole::kRouter}, {'I', PeerRole::kInferenceRank}, {'C', PeerRole::kCacheRank}, {'A', PeerRole::kAdmin}};

// Of the generated code, so that no method is forgotten.
std::vector<std::string> AllMethods() {
  std::vector<std::string> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::GetLoadRequest::descriptor()->file(), v1::OpenSequenceRequest::descriptor()->file(),
        v1::ListRanksRequest::descriptor()->file(), v1::GenerateRequest::descriptor()->file(),
        v1::RegisterRequest::descriptor()->file(), v1::ListModelsRequest::descriptor()->file(),
        v1::DispatchRequest::descriptor()->file(), v1::TokenizeRequest::descriptor()->file(),
        v1::ExchangeRequest::descriptor()->file(), v1::FeedRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(file->service(s)->method(m)->full_name());
      }
    }
  }
  return methods;
}

// "/winnow.v1.RankService/Dispatch" of "winnow.v1.RankService.Dispatch".
std::string PathOf(std::string method) {
  method[method.rfind('.')] = '/';
  return "/" + method;
}

TEST(CallerPolicy, EachCallIsForTheRolesOfTheTable) {
  const std::vector<std::string> methods = AllMethods();
  EXPECT_EQ(methods.size(), kTable.size());
  for (const std::string& method : methods) {
    ASSERT_TRUE(kTable.contains(method)) << method;
    const std::string& allowed = kTable.at(method);
    for (const auto& [letter, role] : kRoles) {
      const absl::Status status = CheckCaller(PathOf(method), {role});
      if (allowed.find(letter) != std::string::npos) {
        EXPECT_TRUE(status.ok()) << method << " " << letter;
      } else {
        EXPECT_TRUE(absl::IsPermissionDenied(status)) << method << " " << letter;
      }
    }
    const absl::Status anonymous = CheckCaller(PathOf(method), {});
    EXPECT_EQ(anonymous.code(), allowed.ends_with('-') ? absl::StatusCode::kOk : absl::StatusCode::kUnauthenticated)
        << method;
  }
}

TEST(CallerPolicy, RefusalsSayWhoMay) {
  const absl::Status status = CheckCaller("/winnow.v1.CacheService/ReleaseSequence", {PeerRole::kAdmin});
  EXPECT_EQ(status.message(),
            "/winnow.v1.CacheService/ReleaseSequence needs a certificate of spiffe://winnow/router or "
            "spiffe://winnow/inference-rank; the caller's is of spiffe://winnow/admin");
}

TEST(CallerPolicy, WhatIsNotKnownIsForNobody) {
  for (const char* method : {"/winnow.v1.NewService/Do", "", "/", "/winnow.v1.RankServiceX/Dispatch"}) {
    for (const auto& [letter, role] : kRoles) EXPECT_FALSE(CheckCaller(method, {role}).ok()) << method;
  }
}

TEST(CallerPolicy, HealthAndReflectionAreForEverybody) {
  EXPECT_TRUE(CheckCaller("/grpc.health.v1.Health/Check", {}).ok());
  EXPECT_TRUE(CheckCaller("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {}).ok());
}

TEST(CallerPolicy, RolesAreExactUriNames) {
  EXPECT_TRUE(PeerRolesOf({"spiffe://winnow/router/x", "spiffe://other/router", "router"}).empty());
  EXPECT_EQ(PeerRolesOf({"https://example.org", "spiffe://winnow/cache-rank"}),
            std::vector<PeerRole>{PeerRole::kCacheRank});
}

TEST(CallerPolicy, AServerMustBeAProcessOfACluster) {
  EXPECT_TRUE(CheckServer({PeerRole::kRouter}).ok());
  EXPECT_TRUE(CheckServer({PeerRole::kAdmin, PeerRole::kCacheRank}).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(CheckServer({PeerRole::kAdmin})));
  EXPECT_TRUE(absl::IsUnauthenticated(CheckServer({})));
}

}  // namespace
}  // namespace winnow
