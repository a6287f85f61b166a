// `winnow up` with the demo model: real processes.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

#include "cmd/up/http_probe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cmd/up_cluster.h"

namespace winnow {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

TEST(Up, TheFirstRequestAfterTheReadyLineSucceedsAndSigtermEndsEverything) {
  UpCluster cluster;
  ASSERT_TRUE(cluster.ready()) << cluster.line() << cluster.process().errors();
  EXPECT_EQ(cluster.Ask(), 0) << cluster.answer();
  EXPECT_THAT(ChildrenOf(cluster.process().pid()), SizeIs(3));
  std::istringstream metrics(cluster.address("metrics"));
  int served = 0;
  for (std::string address; std::getline(metrics, address, ',');) {
    const auto answer = HttpGet(address, "/metrics", std::chrono::seconds(5));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_THAT(answer->body, HasSubstr("winnow_build_info"));
    ++served;
  }
  EXPECT_EQ(served, 3);
  const std::vector<ProcessInfo> children = ChildrenOf(cluster.process().pid());
  cluster.process().Signal(SIGTERM);
  EXPECT_EQ(cluster.process().Wait(), 0) << cluster.process().errors();
  EXPECT_EQ(cluster.process().output(), cluster.line() + "\n");
  for (const ProcessInfo& child : children) EXPECT_NE(kill(child.pid, 0), 0) << child.command;
}

TEST(Up, EveryRoleIsReplacedWhenItDies) {
  UpCluster cluster;
  ASSERT_TRUE(cluster.ready()) << cluster.line() << cluster.process().errors();
  for (const char* role : {"inference-rank", "cache-rank", "router"}) {
    const pid_t victim = cluster.Child(role);
    ASSERT_GT(victim, 0) << role;
    kill(victim, SIGKILL);
    // Back when another process has the role and the router, wherever it is now, finds every rank again.
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < limit &&
           (cluster.Child(role) == victim || cluster.Child(role) < 0 || !cluster.RouterIsReady())) {
      usleep(20'000);
    }
    EXPECT_EQ(cluster.Ask(), 0) << role << ": " << cluster.answer() << cluster.process().errors();
  }
}

TEST(Up, HostsTheCacheRankInsideTheInferenceProcess) {
  UpCluster cluster({"--transport=inproc"});
  ASSERT_TRUE(cluster.ready()) << cluster.line() << cluster.process().errors();
  EXPECT_THAT(ChildrenOf(cluster.process().pid()), SizeIs(2));
  EXPECT_EQ(cluster.Ask(), 0) << cluster.answer();
}

TEST(Up, NothingSurvivesItsKilling) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // orphans come to this process, which can wait for their end
  std::vector<ProcessInfo> children;
  {
    UpCluster cluster;
    ASSERT_TRUE(cluster.ready()) << cluster.line() << cluster.process().errors();
    children = ChildrenOf(cluster.process().pid());
    cluster.process().Signal(SIGKILL);
    EXPECT_EQ(cluster.process().Wait(), 128 + SIGKILL);
  }
  EXPECT_THAT(children, SizeIs(3));
  for (const ProcessInfo& child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child.pid, &status, 0), child.pid);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << child.command;
  }
}

TEST(Up, ARankThatCannotStartEndsItWithTheReason) {
  WinnowProcess process(UpArguments({"--cache-memory=100TiB"}));
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_EQ(process.output(), "");
  const std::string errors = process.errors();
  const size_t last = errors.rfind('\n', errors.size() - 2);
  EXPECT_THAT(errors.substr(last + 1),
              HasSubstr("winnow up: cache-0 ended with exit code 1: winnow cache-rank: memory does "
                        "not fit: 102400.00 GiB for KV blocks of "));
  EXPECT_THAT(errors.substr(last + 1), HasSubstr("ask for less with --cache-memory"));
  EXPECT_THAT(errors, HasSubstr("winnow up: the last lines of cache-0:\n    "));
}

}  // namespace
}  // namespace winnow
