// Ranks that join a cluster and are of no use to it: it says so and serves on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/winnow_command.h"
#include "tests/support/free_port.h"
#include "tests/support/temp_dir.h"
#include "winnow/v1/admin.grpc.pb.h"
#include "winnow/v1/membership.grpc.pb.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr milliseconds kLong{60'000};
constexpr char kOdd[] = "odd";

// What `winnow admin list` says of a rank; null when it is not listed.
Json Listed(const Cluster& cluster, const std::string& name) {
  const Outcome outcome = RunWinnow(cluster.grpc_address(), "admin list --json");
  const Json list = Json::parse(outcome.output, nullptr, /*allow_exceptions=*/false);
  if (!list.is_object()) return nullptr;
  for (const Json& rank : list["routers"][0]["ranks"]) {
    if (rank["rank"] == name) return rank;
  }
  return nullptr;
}

std::string StateOfOdd(const Cluster& cluster) {
  const Json rank = Listed(cluster, kOdd);
  return rank.is_null() ? "" : rank["state"].get<std::string>();
}

// An inference rank beside those of the cluster.
std::unique_ptr<Process> StartOdd(const Cluster& cluster, const std::string& model, const std::string& metrics,
                                  const Process::Environment& environment = {}) {
  return std::make_unique<Process>(
      std::vector<std::string>{WinnowBinary(), "inference-rank", absl::StrCat("--rank=", kOdd),
                               "--router=" + cluster.grpc_address(), "--model=" + model, "--metrics=" + metrics,
                               "--grpc=127.0.0.1:0", "--transport=ucx", "--budget=128", "--max-context=1024",
                               "--threads=1"},
      environment);
}

// Its data plane has no way to other processes, as where a network card is broken; its gRPC has.
TEST(OddRanks, OneOnWhichEverythingFailsSaysSoAndIsLeftAlone) {
  const std::unique_ptr<Cluster> cluster =
      StartOrFail({"--transport=ucx", "--budget=128", "--max-context=1024"}, {{"UCX_TLS", "tcp"}});
  ASSERT_NE(cluster, nullptr);
  const Json request = GreedyRequest(DemoText(64), 4);
  const Completion undisturbed = Complete(cluster->http(), request);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.error;

  const std::string metrics = absl::StrCat("127.0.0.1:", FreePort());
  const std::unique_ptr<Process> odd = StartOdd(*cluster, DemoModel(), metrics, {{"UCX_TLS", "self"}});
  ASSERT_TRUE(WaitUntil(kLong, [&] { return StateOfOdd(*cluster) == "serving"; })) << odd->Log();
  // All new work is to go there.
  const Outcome weighted = RunWinnow(cluster->grpc_address(), absl::StrCat("admin weights ", kOdd, "=100"));
  ASSERT_EQ(weighted.code, 0) << weighted.output;
  int answers = 0;
  ASSERT_TRUE(WaitUntil(kLong,
                        [&] {
                          const Completion completion = Complete(cluster->http(), request);
                          EXPECT_TRUE(completion.ok()) << completion.error;
                          EXPECT_EQ(completion.ids, undisturbed.ids);
                          ++answers;
                          return StateOfOdd(*cluster) == "failing";
                        }))
      << answers << " answers\n"
      << odd->Log();
  // The router hears of it with the next heartbeat; the rank looks at itself from time to time.
  EXPECT_TRUE(WaitUntil(kLong, [&] {
    return absl::StrContains(odd->Log(), "of no use, and not serving: every attempt has failed for ");
  })) << odd->Log();

  const HttpClient asked(metrics);
  for (const char* path : {"/live", "/ready"}) {
    const HttpReply reply = asked.Get(path);
    EXPECT_EQ(reply.status, 503) << path;
    EXPECT_THAT(reply.body, HasSubstr("every attempt has failed for ")) << path;
  }
  const auto failing = [&] { return MetricsText(asked.Get("/metrics").body).Value("winnow_rank_failing"); };
  EXPECT_EQ(failing(), 1) << "the alert WinnowRankFailsEverything looks at it";

  // Nobody tries it any more, whatever its weight.
  const auto failures = [&] {
    return cluster->MetricsOf("router-0").Value("winnow_failovers_total", {{"mode", "recompute"}});
  };
  const double before = failures();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Complete(cluster->http(), request).ids, undisturbed.ids);
  EXPECT_EQ(failures(), before);
}

TEST(OddRanks, OneOfAnotherModelIsRefusedByTheFieldAndEnds) {
  const std::unique_ptr<Cluster> cluster = StartOrFail({"--budget=128", "--max-context=1024"});
  ASSERT_NE(cluster, nullptr);
  const TempDir other;
  for (const auto& file : fs::directory_iterator(DemoModel())) {
    if (file.path().filename() == "config.json") continue;
    fs::create_symlink(fs::absolute(file.path()), fs::path(other.path()) / file.path().filename());
  }
  Json config = Json::parse(std::ifstream(DemoModel() + "/config.json"));
  config["rope_parameters"]["rope_theta"] = 5000.0;
  other.Write("config.json", config.dump());
  const std::unique_ptr<Process> odd = StartOdd(*cluster, other.path(), "127.0.0.1:0");
  const std::optional<int> code = odd->Wait(kLong);
  ASSERT_TRUE(code.has_value()) << odd->Log();
  EXPECT_NE(*code, 0);
  EXPECT_THAT(odd->Log(), HasSubstr("refuses this rank: fingerprint."));
  EXPECT_TRUE(Complete(cluster->http(), GreedyRequest(DemoText(64), 4)).ok());
}

// A rank of another build is one that says another version of what goes between ranks.
TEST(OddRanks, OneOfAnotherBuildIsRefusedByTheField) {
  const std::unique_ptr<Cluster> cluster = StartOrFail({"--budget=128", "--max-context=1024"});
  ASSERT_NE(cluster, nullptr);
  const Json cache = Listed(*cluster, "cache-0");
  ASSERT_FALSE(cache.is_null());
  v1::GetServerInfoResponse info;
  {
    grpc::ClientContext context;
    const auto stub = v1::AdminService::NewStub(NewChannel(cache["address"].get<std::string>()));
    ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  }
  v1::RegisterRequest request;
  *request.mutable_identity() = info.identity();
  request.mutable_fingerprint()->set_wire_version(999);
  v1::RegisterResponse response;
  grpc::ClientContext context;
  const grpc::Status refused =
      v1::MembershipService::NewStub(NewChannel(cluster->grpc_address()))->Register(&context, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("fingerprint.wire_version is \"999\", but the cluster has \""));
  EXPECT_TRUE(Complete(cluster->http(), GreedyRequest(DemoText(64), 4)).ok());
}

}  // namespace
}  // namespace winnow::e2e
