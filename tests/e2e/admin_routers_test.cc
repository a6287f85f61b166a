// Operators of a cluster with two routers: what an order reaches, and who says so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/e2e/golden.h"
#include "tests/e2e/resuming_client.h"
#include "tests/e2e/winnow_command.h"
#include "tests/support/etcd_server.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

class AdminOfRouters : public testing::Test {
 protected:
  void StartPair(const std::vector<std::string>& router_flags = {}) {
    auto started = RouterPair::Start({}, router_flags);
    ASSERT_TRUE(started.ok()) << started.status().message();
    routers_ = *std::move(started);
  }
  void TearDown() override {
    if (HasFailure() && routers_ != nullptr) GTEST_LOG_(INFO) << routers_->Logs();
  }
  std::string Address(int router) const { return routers_->grpc_address(router); }
  std::string Both() const { return Address(0) + "," + Address(1); }
  std::string RunOk(const std::string& servers, const std::string& command) const {
    const Outcome outcome = RunWinnow(servers, command);
    EXPECT_EQ(outcome.code, 0) << command << ": " << outcome.output;
    return outcome.output;
  }
  // As that router has it; empty while it does not answer, or has no such rank.
  std::string StateAt(int router, const std::string& name) const {
    const Outcome outcome = RunWinnow(Address(router), "admin list --json");
    const Json list = Json::parse(outcome.output, nullptr, /*allow_exceptions=*/false);
    if (list.is_discarded()) return "";
    for (const Json& rank : list["routers"][0]["ranks"]) {
      if (rank["rank"] == name) return rank["state"];
    }
    return "";
  }
  bool AwaitState(int router, const std::string& name, const std::string& state) const {
    return WaitUntil(milliseconds(30'000), [&] { return StateAt(router, name) == state; });
  }

  std::unique_ptr<RouterPair> routers_;
};

TEST_F(AdminOfRouters, WithoutARegistryAnOrderIsOfThoseThatAreNamed) {
  ASSERT_NO_FATAL_FAILURE(StartPair());
  EXPECT_THAT(RunOk(Both(), "admin cordon inference-0"),
              HasSubstr("Taken by router-0 at " + Address(0) + ", router-1 at " + Address(1) + ", until they end."));
  for (const int router : {0, 1}) EXPECT_EQ(StateAt(router, "inference-0"), "cordoned");
  EXPECT_THAT(RunOk(Address(0), "admin uncordon inference-0"),
              HasSubstr("Taken by router-0 at " + Address(0) + ", until it ends."));
  EXPECT_EQ(StateAt(0, "inference-0"), "serving");
  EXPECT_EQ(StateAt(1, "inference-0"), "cordoned") << "nobody told it";
  RunOk(Both(), "admin uncordon inference-0");
  // What is wrong is wrong for all of them, and for none halfway.
  const Outcome bad = RunWinnow(Both(), "admin weights inference-0=2 inference-9=2");
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.output, HasSubstr("there is no rank \"inference-9\"; there are cache-0, inference-0, inference-1"));
  EXPECT_THAT(RunOk(Both(), "admin weights"), Not(HasSubstr("inference-0      2")));
}

TEST_F(AdminOfRouters, ADrainEmptiesARankOfTheRequestsOfBoth) {
  ASSERT_NO_FATAL_FAILURE(StartPair());
  constexpr size_t kStreams = 6;
  constexpr int kTokens = 1500;  // more than are generated while orders are given
  const auto request = [](size_t i) { return GreedyRequest(DemoText(200 + 30 * i, 31 * i), kTokens); };
  std::vector<std::unique_ptr<ResumingClient>> undisturbed, clients;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kStreams; ++i) {
    undisturbed.push_back(std::make_unique<ResumingClient>(*routers_, request(i)));
    undisturbed.back()->Read();
    clients.push_back(std::make_unique<ResumingClient>(*routers_, request(i), i % 2));
  }
  RunOk(Both(), "admin cordon inference-1");  // so that all of them begin on the other one
  for (auto& client : clients) threads.emplace_back([&client] { client->Read(); });
  EXPECT_TRUE(WaitUntil(milliseconds(60'000),
                        [&] { return routers_->InferenceMetrics(0).Value("winnow_num_requests_running") >= 2; }));
  RunOk(Both(), "admin uncordon inference-1");
  const std::string drained = RunOk(Both(), "admin drain inference-0 --timeout=120s");
  EXPECT_THAT(drained, HasSubstr("inference-0 is empty"));
  EXPECT_TRUE(WaitUntil(milliseconds(20'000),
                        [&] { return routers_->InferenceMetrics(0).Value("winnow_num_requests_running") == 0; }));
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kStreams; ++i) {
    EXPECT_TRUE(clients[i]->done()) << clients[i]->error();
    EXPECT_EQ(clients[i]->ids(), undisturbed[i]->ids());
  }
  RunOk(Both(), "admin uncordon inference-0");
}

TEST_F(AdminOfRouters, InARegistryAnOrderHoldsAtAllOfThemAndForThoseToCome) {
  if (!EtcdServer::IsInstalled()) GTEST_SKIP() << "there is no etcd";
  EtcdServer etcd;
  ASSERT_NO_FATAL_FAILURE(StartPair({"--registry=" + etcd.url().ToString(), "--registry-lease=3s"}));
  const auto ranks = [&](int router) { return routers_->http(router).Get("/ranks").body; };
  for (const int router : {0, 1}) {
    EXPECT_TRUE(WaitUntil(milliseconds(30'000), [&] {
      const Json registry = Json::parse(ranks(router))["registry"];
      return registry.is_object() && registry["connected"] == true && registry["routers"].size() == 2;
    })) << ranks(router);
  }

  EXPECT_THAT(RunOk(Address(0), "admin cordon inference-0"),
              HasSubstr("Taken by router-0 at " + Address(0) + " for all routers: the registry keeps it."));
  EXPECT_EQ(StateAt(0, "inference-0"), "cordoned");
  EXPECT_TRUE(AwaitState(1, "inference-0", "cordoned"));
  EXPECT_THAT(RunOk(Address(1), "admin weights inference-1=2"), HasSubstr("for all routers"));
  // One is asked, and all answer.
  const std::string list = RunOk(Address(0), "admin list");
  EXPECT_THAT(list, HasSubstr("router-0 at " + Address(0)));
  EXPECT_THAT(list, HasSubstr("router-1 at " + Address(1)));
  EXPECT_THAT(RunOk(Address(0), "admin reload"), HasSubstr("router at " + Address(1)));

  routers_->KillRouter(1);
  routers_->RestartRouter(1);
  EXPECT_TRUE(WaitUntil(milliseconds(30'000), [&] { return routers_->IsReady(1); }));
  EXPECT_TRUE(AwaitState(1, "inference-0", "cordoned")) << "an order outlives the routers that took it";
  EXPECT_THAT(RunOk(Address(1), "admin weights"), HasSubstr("inference-1      2"));

  const std::string status = RunOk(routers_->metrics_address(0), "status --interval=100ms");
  EXPECT_THAT(status, HasSubstr("registry      connected; routers: "));
  EXPECT_THAT(status, HasSubstr(Address(1)));

  etcd.Kill();
  const std::string away = RunOk(Address(0), "admin uncordon inference-0");
  EXPECT_THAT(away, HasSubstr("which publish it when they can: the registry is away"));
  for (const int router : {0, 1}) EXPECT_EQ(StateAt(router, "inference-0"), "serving") << "it holds all the same";
  EXPECT_TRUE(WaitUntil(milliseconds(30'000), [&] {
    return RunOk(routers_->metrics_address(0), "status --interval=100ms").find("registry      away for") !=
           std::string::npos;
  }));

  // Back without its data it is told by those who know.
  etcd.LoseData();
  etcd.Start();
  EXPECT_TRUE(WaitUntil(milliseconds(30'000), [&] { return etcd.Values("winnow/local/orders/").size() == 2; }));
  routers_->KillRouter(0);
  routers_->RestartRouter(0);
  EXPECT_TRUE(WaitUntil(milliseconds(30'000), [&] { return routers_->IsReady(0); }));
  EXPECT_TRUE(AwaitState(0, "inference-0", "serving"));
  EXPECT_THAT(RunOk(Address(0), "admin weights"), HasSubstr("inference-1      2"));
}

}  // namespace
}  // namespace winnow::e2e
