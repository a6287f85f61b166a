// Routers and ranks are restarted one after the other, and no client that does what docs/api.md says notices.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/e2e/golden.h"
#include "tests/e2e/resuming_client.h"
#include "tests/e2e/winnow_command.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

Json Request(size_t i, int tokens = 120) {
  Json request = GreedyRequest(DemoText(200 + 40 * i, 31 * i), tokens);
  if (i % 2 == 1) {
    request["temperature"] = 1.1;
    request["seed"] = i;
  }
  return request;
}

double Resumed(const Metrics& router, const char* mode) {
  return router.Value("winnow_router_resumed_outputs_total", {{"mode", mode}});
}

class RouterRestart : public testing::Test {
 protected:
  void SetUp() override {
    // Shorter than answers take.
    auto started = RouterPair::Start({}, {"--stop-grace=100ms"});
    ASSERT_TRUE(started.ok()) << started.status().message();
    routers_ = *std::move(started);
  }
  void TearDown() override {
    if (HasFailure() && routers_ != nullptr) GTEST_LOG_(INFO) << routers_->Logs();
  }
  TokenIds Undisturbed(size_t i, int tokens = 120) {
    ResumingClient client(*routers_, Request(i, tokens));
    client.Read();
    EXPECT_TRUE(client.done()) << client.error();
    return client.ids();
  }
  void Admin(const std::string& command) {
    const std::string servers = routers_->grpc_address(0) + "," + routers_->grpc_address(1);
    const Outcome outcome = RunWinnow(servers, "admin " + command);
    EXPECT_EQ(outcome.code, 0) << command << ": " << outcome.output;
  }

  std::unique_ptr<RouterPair> routers_;
};

// Clients that ask one question after the other until they are told to stop.
class Load {
 public:
  Load(const RouterPair& routers, std::vector<TokenIds> expected) : expected_(std::move(expected)) {
    for (size_t i = 0; i < expected_.size(); ++i) {
      threads_.emplace_back([this, &routers, i] {
        for (int round = 0; !stop_; ++round) {
          ResumingClient client(routers, Request(i), static_cast<int>(i + round) % RouterPair::kRouters);
          client.Read();
          EXPECT_TRUE(client.done()) << client.error();
          EXPECT_EQ(client.ids(), expected_[i]);
          EXPECT_EQ(client.finishes(), 1);
          ++answers_;
        }
      });
    }
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  // As many as there are clients, from now on.
  [[nodiscard]] bool AwaitAnswers() const {
    const int before = answers_;
    return WaitUntil(milliseconds(90'000), [&] { return answers_ >= before + static_cast<int>(threads_.size()); });
  }

 private:
  const std::vector<TokenIds> expected_;
  std::atomic<bool> stop_{false};
  std::atomic<int> answers_{0};
  std::vector<std::thread> threads_;
};

TEST_F(RouterRestart, OneProcessAfterTheOtherUnderLoad) {
  std::vector<TokenIds> expected;
  for (size_t i = 0; i < 6; ++i) expected.push_back(Undisturbed(i));
  const Load load(*routers_, expected);
  ASSERT_TRUE(load.AwaitAnswers());
  double resumed = 0, mismatched = 0;
  for (const int router : {0, 1}) {
    SCOPED_TRACE(router);
    routers_->StopRouter(router);
    EXPECT_EQ(routers_->RouterExit(router), 0);
    EXPECT_TRUE(load.AwaitAnswers()) << "the other one serves";
    const Metrics other = routers_->RouterMetrics(1 - router);
    resumed += Resumed(other, "attach");
    mismatched += other.Value("winnow_router_mismatched_tokens_total");
    routers_->RestartRouter(router);
    ASSERT_TRUE(routers_->AwaitReady());
    EXPECT_TRUE(load.AwaitAnswers());
  }
  EXPECT_GT(resumed, 0) << "no answer was cut off";
  EXPECT_EQ(mismatched, 0);
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    const std::string name = absl::StrCat("inference-", rank);
    Admin("drain --timeout=120s " + name);
    routers_->StopInferenceRank(rank);
    routers_->RestartInferenceRank(rank);
    Admin("uncordon " + name);
    ASSERT_TRUE(routers_->AwaitReady());
    EXPECT_TRUE(load.AwaitAnswers());
  }
  for (const int router : {0, 1}) {
    for (const char* mode : {"reattach", "recompute"}) {
      EXPECT_EQ(routers_->RouterMetrics(router).Value("winnow_failovers_total", {{"mode", mode}}), 0) << mode;
    }
  }
}

// There is nobody else to ask: the client asks the same address until the next start answers there.
TEST_F(RouterRestart, ARouterAloneIsResumedAtItsNextStart) {
  constexpr int kTokens = 1500;
  const TokenIds undisturbed = Undisturbed(1, kTokens);
  ResumingClient client(*routers_, Request(1, kTokens));
  const auto tokens = [&] { return routers_->RouterMetrics(0).Value("winnow_generation_tokens_total"); };
  const double before = tokens();
  std::thread reading([&] { client.Read(SIZE_MAX, /*stay=*/true); });
  EXPECT_TRUE(WaitUntil(milliseconds(30'000), [&] { return tokens() > before + 10; }));
  routers_->StopRouter(0);
  EXPECT_EQ(routers_->RouterExit(0), 0);
  EXPECT_FALSE(client.done()) << "it was over before";
  routers_->RestartRouter(0);
  reading.join();
  EXPECT_TRUE(client.done()) << client.error();
  EXPECT_EQ(client.ids(), undisturbed);
  EXPECT_EQ(client.finishes(), 1);
  // From the rank that had it, or, where that one was long in coming, from the beginning.
  const Metrics router = routers_->RouterMetrics(0);
  EXPECT_EQ(Resumed(router, "attach") + Resumed(router, "recompute"), 1);
}

}  // namespace
}  // namespace winnow::e2e
