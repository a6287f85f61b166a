// What `winnow up` does about children that end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr milliseconds kLong{60'000};

bool Logged(Cluster& cluster, const std::string& text) {
  return WaitUntil(kLong, [&] { return cluster.process().Log().find(text) != std::string::npos; });
}

TEST(Restart, ARankThatCannotStartAgainLeavesTheOthersServingUntilItCan) {
  const TempDir model;
  for (const auto& file : fs::directory_iterator(DemoModel())) {
    fs::create_symlink(fs::absolute(file.path()), fs::path(model.path()) / file.path().filename());
  }
  const fs::path weights = fs::path(model.path()) / "model.safetensors", away = fs::path(model.path()) / "away";
  Cluster::Options options;
  options.model = model.path();
  options.flags = {"--inference-ranks=2", "--budget=256", "--max-context=4096"};
  absl::StatusOr<std::unique_ptr<Cluster>> started = Cluster::Start(options);
  ASSERT_TRUE(started.ok()) << started.status().message();
  Cluster& cluster = **started;

  fs::rename(weights, away);
  kill(cluster.Pids("inference-rank").at(1), SIGKILL);
  EXPECT_TRUE(Logged(cluster, "winnow up: inference-1 was killed by signal 9 (Killed): "));
  // The reason stands in the line that says when the next try is.
  EXPECT_TRUE(Logged(cluster, "no model.safetensors")) << cluster.process().Log();
  EXPECT_TRUE(Logged(cluster, "; restart 7 in ")) << cluster.process().Log();
  const Completion completion = Complete(cluster.http(), GreedyRequest(DemoText(64), 4));
  EXPECT_TRUE(completion.ok()) << completion.error;

  fs::rename(away, weights);
  EXPECT_TRUE(Logged(cluster, "winnow up: inference-1 is ready again")) << cluster.process().Log();
  EXPECT_TRUE(WaitUntil(kLong, [&] {
    return cluster.MetricsOf("router-0").Value("winnow_router_ranks", {{"kind", "inference"}}) == 2;
  }));
  const absl::Status stopped = cluster.Stop();
  EXPECT_TRUE(stopped.ok()) << stopped.message();
}

TEST(Restart, AKilledRouterEndsOpenRequestsAndComesBackAtTheSameAddresses) {
  const std::unique_ptr<Cluster> cluster = StartOrFail({"--budget=256"});
  ASSERT_NE(cluster, nullptr);
  const pid_t router = cluster->Pids("router").at(0);
  const Completion broken = StreamCompletion(cluster->http(), GreedyRequest(DemoText(64), 30'000), [&](size_t tokens) {
    if (tokens == 1) kill(router, SIGKILL);
    return true;
  });
  EXPECT_EQ(broken.status, 0) << "the client is told that the connection broke";
  EXPECT_TRUE(Logged(*cluster, "winnow up: router-0 is ready again")) << cluster->process().Log();
  EXPECT_TRUE(WaitUntil(kLong, [&] { return cluster->http().Get("/ready").status == 200; }));
  const Completion completion = Complete(cluster->http(), GreedyRequest(DemoText(64), 4));
  EXPECT_TRUE(completion.ok()) << completion.error;
}

TEST(Restart, ARankThatIsToldToEndIsStartedAgain) {
  const std::unique_ptr<Cluster> cluster = StartOrFail({"--budget=256", "--inference-ranks=2"});
  ASSERT_NE(cluster, nullptr);
  kill(cluster->Pids("inference-rank").at(0), SIGTERM);
  EXPECT_TRUE(Logged(*cluster, "winnow up: inference-0 ended with exit code 0")) << cluster->process().Log();
  EXPECT_TRUE(Logged(*cluster, "winnow up: inference-0 is ready again")) << cluster->process().Log();
}

}  // namespace
}  // namespace winnow::e2e
