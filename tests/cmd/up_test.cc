// `winnow up` with the demo model: real processes.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <sstream>

#include "cmd/up/http_probe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cmd/winnow_process.h"

namespace winnow {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

std::vector<std::string> UpArguments(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {
      "up",           "--model=deploy/models/demo", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0",
      "--budget=256", "--cache-memory=512MiB"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A cluster from its ready line to its end.
class Cluster {
 public:
  explicit Cluster(std::vector<std::string> more = {}) : process_(UpArguments(std::move(more))) {
    line_ = process_.ReadLine();
    std::istringstream words(line_);
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      if (equals != std::string::npos) addresses_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }

  bool ready() const { return line_.rfind("ready http=", 0) == 0; }
  const std::string& line() const { return line_; }
  std::string address(const std::string& key) const { return addresses_.at(key); }
  WinnowProcess& process() { return process_; }

  pid_t Child(const std::string& role) {
    for (const ProcessInfo& child : ChildrenOf(process_.pid())) {
      if (child.command.find(" " + role + " ") != std::string::npos) return child.pid;
    }
    return -1;
  }

  // Exit code of the demo's one question: 0 when the answer is right.
  int Ask() {
    WinnowProcess demo({"demo", "--once", "--grpc=" + address("grpc")});
    const int code = demo.Wait();
    answer_ = demo.output() + demo.errors();
    return code;
  }
  const std::string& answer() const { return answer_; }

  bool RouterIsReady() const {
    const auto answer = HttpGet(address("http"), "/ready", std::chrono::seconds(5));
    return answer.ok() && answer->status == 200;
  }

 private:
  WinnowProcess process_;
  std::string line_;
  std::map<std::string, std::string> addresses_;
  std::string answer_;
};

TEST(Up, TheFirstRequestAfterTheReadyLineSucceedsAndSigtermEndsEverything) {
  Cluster cluster;
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
  Cluster cluster;
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
  Cluster cluster({"--transport=inproc"});
  ASSERT_TRUE(cluster.ready()) << cluster.line() << cluster.process().errors();
  EXPECT_THAT(ChildrenOf(cluster.process().pid()), SizeIs(2));
  EXPECT_EQ(cluster.Ask(), 0) << cluster.answer();
}

TEST(Up, NothingSurvivesItsKilling) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // orphans come to this process, which can wait for their end
  std::vector<ProcessInfo> children;
  {
    Cluster cluster;
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
}

}  // namespace
}  // namespace winnow
