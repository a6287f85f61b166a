// `winnow up` as a program: what it says, how it ends, and that it leaves nothing running.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <regex>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kQuickly{10'000};

// A port that somebody listens on.
class TakenPort {
 public:
  TakenPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    socklen_t size = sizeof address;
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { close(fd_); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  const int fd_;
  int port_ = 0;
};

std::vector<std::string> Up(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {WinnowBinary(), "up"});
  return flags;
}

TEST(Up, SaysWhereItServesAndEndsInGoodOrder) {
  Process up(Up({"--model=" + DemoModel(), "--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0"}), {});
  const std::optional<std::string> line = up.ReadLine(milliseconds(60'000));
  ASSERT_TRUE(line) << up.Log();
  // One metrics address per process: router, inference rank, cache rank.
  static const std::regex ready(
      R"(ready http=127\.0\.0\.1:(\d+) grpc=127\.0\.0\.1:\d+ metrics=127\.0\.0\.1:\d+,127\.0\.0\.1:\d+,127\.0\.0\.1:\d+)");
  std::smatch match;
  ASSERT_TRUE(std::regex_match(*line, match, ready)) << *line;
  // Ready means that the first request succeeds.
  const Completion completion =
      Complete(HttpClient("127.0.0.1:" + match[1].str()), GreedyRequest({1000, 1001, 1002}, 2));
  EXPECT_TRUE(completion.ok()) << completion.error;

  const std::vector<pid_t> children = ChildrenOf(up.pid());
  EXPECT_EQ(children.size(), 3u);
  up.Signal(SIGTERM);
  EXPECT_EQ(up.Wait(kQuickly), 0) << up.Log();
  for (const pid_t child : children) EXPECT_FALSE(IsAlive(child));
}

TEST(Up, KilledTakesItsChildrenWithIt) {
  const absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start({.flags = {"--cache-ranks=2"}});
  ASSERT_TRUE(cluster.ok()) << cluster.status().message();
  const std::vector<pid_t> children = ChildrenOf((*cluster)->process().pid());
  ASSERT_EQ(children.size(), 4u);
  (*cluster)->process().Signal(SIGKILL);
  EXPECT_EQ((*cluster)->process().Wait(kQuickly), 128 + SIGKILL);
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] {
    return std::none_of(children.begin(), children.end(), [](pid_t child) { return IsAlive(child); });
  }));
}

TEST(Up, RefusesAPortInUse) {
  const TakenPort taken;
  for (const char* option : {"--http", "--grpc", "--metrics"}) {
    std::vector<std::string> flags = {"--model=" + DemoModel(), "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
                                      "--metrics=127.0.0.1:0"};
    flags.push_back(std::string(option) + "=" + taken.address());
    Process up(Up(flags), {});
    EXPECT_EQ(up.Wait(kQuickly), 1) << option;
    EXPECT_THAT(up.Log(), testing::AllOf(HasSubstr(option), HasSubstr(taken.address())));
  }
}

TEST(Up, RefusesWhatItCannotServe) {
  const TempDir broken;
  broken.Write("config.json", R"({"architectures": ["MambaForCausalLM"]})");
  const struct {
    std::vector<std::string> flags;
    int code;
    std::string message;
  } cases[] = {
      {{}, 2, "--model"},
      {{"--model=/nowhere/at/all"}, 2, "/nowhere/at/all"},
      {{"--model=" + DemoModel(), "--selection=best"}, 2, "async-token"},
      {{"--model=" + DemoModel(), "--budgets=3"}, 2, "budget"},
      {{"--model=" + DemoModel(), "--max-running=0"}, 2, "max-running"},
      {{"--model=" + broken.path()}, 1, "MambaForCausalLM"},
      {{"--model=" + DemoModel(), "--cache-memory=4000GiB"}, 1, "memory"},
  };
  for (const auto& item : cases) {
    std::vector<std::string> flags = {"--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0"};
    flags.insert(flags.end(), item.flags.begin(), item.flags.end());
    SCOPED_TRACE(item.flags.empty() ? "no flags" : item.flags.back());
    Process up(Up(flags), {});
    EXPECT_EQ(up.Wait(milliseconds(20'000)), item.code) << up.Log();
    EXPECT_THAT(up.Log(), HasSubstr(item.message));
    EXPECT_EQ(up.ReadLine(kQuickly), std::nullopt) << "it must not claim to be ready";
  }
}

}  // namespace
}  // namespace winnow::e2e
