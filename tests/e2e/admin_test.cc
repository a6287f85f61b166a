// What operators do to a cluster at work: nobody who uses it notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"
#include "tests/e2e/winnow_command.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr int kStreams = 8;

struct TwoOfEach {
  static Cluster::Options Options() {
    return {.flags = {"--inference-ranks=2", "--cache-ranks=2", "--budget=128", "--max-context=4096"}};
  }
};

// A rank hears of a moved request's end a moment after the router has told the operator.
bool RunsNothing(const Cluster& cluster, const std::string& rank) {
  return WaitUntil(milliseconds(20'000),
                   [&] { return cluster.MetricsOf(rank).Value("winnow_num_requests_running") == 0; });
}

class Admin : public SharedCluster<TwoOfEach> {
 protected:
  static Outcome Run(const std::string& arguments) { return RunWinnow(cluster_->grpc_address(), "admin " + arguments); }
  static Outcome RunOk(const std::string& arguments) {
    Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 0) << arguments << ": " << outcome.output;
    return outcome;
  }

  // What the router says of a rank; null when it is not listed.
  static Json Rank(const std::string& name) {
    const Json list = Json::parse(RunOk("list --json").output, nullptr, /*allow_exceptions=*/false);
    if (list.is_discarded()) return nullptr;
    for (const Json& rank : list["routers"][0]["ranks"]) {
      if (rank["rank"] == name) return rank;
    }
    return nullptr;
  }
  static std::string StateOf(const std::string& name) {
    const Json rank = Rank(name);
    return rank.is_null() ? "" : rank["state"].get<std::string>();
  }

  static double RouterValue(const char* name, const MetricsText::Labels& labels = {}) {
    return cluster_->MetricsOf("router-0").Value(name, labels);
  }
  // Tokens of prompts that inference ranks have taken up, computed or from a prefix cache.
  static double PromptTokens() {
    double sum = 0;
    for (const char* rank : {"inference-0", "inference-1"}) {
      const Metrics metrics = cluster_->MetricsOf(rank);
      sum += metrics.Value("winnow_rank_prompt_tokens_total") + metrics.Value("winnow_rank_cached_prompt_tokens_total");
    }
    return sum;
  }

  // Which process is which rank: in the order of start at first; later the one that was not there before.
  static std::map<std::string, pid_t>& KnownPids() {
    static std::map<std::string, pid_t> pids;
    if (pids.empty()) {
      const std::vector<pid_t> inference = cluster_->Pids("inference-rank"), cache = cluster_->Pids("cache-rank");
      pids = {{"inference-0", inference.at(0)},
              {"inference-1", inference.at(1)},
              {"cache-0", cache.at(0)},
              {"cache-1", cache.at(1)}};
    }
    return pids;
  }
  // SIGTERM, and the wait for the process that takes its place, which is cordoned, too.
  static void RestartCordoned(const std::string& rank) {
    pid_t& pid = KnownPids().at(rank);
    const pid_t before = pid;
    const std::string role = rank.starts_with("cache") ? "cache-rank" : "inference-rank";
    ASSERT_EQ(kill(before, SIGTERM), 0);
    ASSERT_TRUE(WaitUntil(milliseconds(60'000),
                          [&] {
                            for (const pid_t each : cluster_->Pids(role)) {
                              const bool known = std::any_of(KnownPids().begin(), KnownPids().end(),
                                                             [&](const auto& k) { return k.second == each; });
                              if (!known) pid = each;
                            }
                            return pid != before;
                          }))
        << rank << " was not started again";
    ASSERT_TRUE(WaitUntil(milliseconds(60'000), [&] { return StateOf(rank) == "cordoned"; })) << StateOf(rank);
  }

  static Json Request(size_t i, int tokens) { return GreedyRequest(DemoText(150 + 30 * i, 31 * i), tokens); }
};

// The requests of one round, all at once.
class Streams {
 public:
  Streams(const HttpClient& http, const std::vector<Json>& requests) : completions_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) {
      threads_.emplace_back([this, i, http, request = requests[i]] {
        completions_[i] = StreamCompletion(http, request, [this, begun = false](size_t tokens) mutable {
          if (tokens >= 3 && !begun) {
            begun = true;
            ++begun_;
          }
          return true;
        });
        ++ended_;
      });
    }
  }
  ~Streams() { Join(); }
  // All of them generate.
  bool AwaitBegun() {
    return WaitUntil(milliseconds(120'000), [this] { return begun_ == static_cast<int>(threads_.size()); });
  }
  int ended() const { return ended_; }
  const std::vector<Completion>& Join() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    return completions_;
  }

 private:
  std::vector<Completion> completions_;
  std::atomic<int> begun_{0}, ended_{0};
  std::vector<std::thread> threads_;
};

TEST_F(Admin, ListsRanks) {
  const std::string table = RunOk("list").output;
  for (const char* word : {"inference-0", "inference-1", "cache-0", "cache-1", "serving", "inference-rank"}) {
    EXPECT_THAT(table, HasSubstr(word));
  }
  const Json rank = Rank("cache-1");
  EXPECT_EQ(rank["role"], "cache-rank");
  EXPECT_EQ(rank["state"], "serving");
  EXPECT_EQ(rank["weight"], 1);
  EXPECT_GT(rank["total_bytes"], 0);
}

TEST_F(Admin, ADrainedRankIsEmptyAndCanBeStoppedUnnoticed) {
  std::vector<Json> requests;
  for (int i = 0; i < kStreams; ++i) requests.push_back(Request(i, 600));
  const std::vector<Completion> undisturbed = Streams(cluster_->http(), requests).Join();

  const double prompts = PromptTokens(), moved = RouterValue("winnow_router_moved_requests_total");
  Streams streams(cluster_->http(), requests);
  ASSERT_TRUE(streams.AwaitBegun());
  const double on_first = Rank("inference-0")["requests"].get<double>();
  ASSERT_GE(on_first, 1) << "there is nothing to move";
  const Outcome drained = RunOk("drain inference-0 --timeout=60s");
  EXPECT_THAT(drained.output, HasSubstr("inference-0 is empty"));
  EXPECT_THAT(drained.output, HasSubstr("winnow admin uncordon inference-0"));
  EXPECT_EQ(StateOf("inference-0"), "cordoned");
  EXPECT_TRUE(RunsNothing(*cluster_, "inference-0"));
  EXPECT_LT(streams.ended(), kStreams) << "it was drained too late to matter";
  EXPECT_GE(RouterValue("winnow_router_moved_requests_total"), moved + 1);
  EXPECT_EQ(RouterValue("winnow_router_ranks_by_state", {{"kind", "inference"}, {"state", "cordoned"}}), 1);
  double prompt_tokens = 0;
  for (const Json& request : requests) prompt_tokens += static_cast<double>(request["prompt"].size());
  EXPECT_EQ(PromptTokens() - prompts, prompt_tokens) << "each prompt goes through once";

  RestartCordoned("inference-0");
  const std::vector<Completion>& disturbed = streams.Join();
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(undisturbed[i].ok()) << undisturbed[i].error;
    ASSERT_TRUE(disturbed[i].ok()) << disturbed[i].error;
    EXPECT_EQ(disturbed[i].ids, undisturbed[i].ids) << "stream " << i;
  }
  EXPECT_EQ(RouterValue("winnow_failovers_total", {{"mode", "reattach"}}), 0);
  EXPECT_EQ(RouterValue("winnow_failovers_total", {{"mode", "recompute"}}), 0);
  EXPECT_EQ(RouterValue("winnow_router_mismatched_tokens_total"), 0);

  // Its next start is cordoned, until it is told otherwise.
  EXPECT_TRUE(Complete(cluster_->http(), Request(1, 4)).ok());
  EXPECT_EQ(cluster_->MetricsOf("inference-0").Value("winnow_rank_prompt_tokens_total"), 0);
  RunOk("uncordon inference-0");
  EXPECT_EQ(StateOf("inference-0"), "serving");
  Streams again(cluster_->http(), requests);
  EXPECT_TRUE(WaitUntil(milliseconds(60'000), [] { return Rank("inference-0")["requests"] > 0; }));
}

TEST_F(Admin, ACordonedRankGetsNothingNew) {
  RunOk("cordon inference-1");
  EXPECT_EQ(StateOf("inference-1"), "cordoned");
  {
    std::vector<Json> requests;
    for (int i = 0; i < kStreams; ++i) requests.push_back(Request(i, 60));
    Streams streams(cluster_->http(), requests);
    ASSERT_TRUE(streams.AwaitBegun());
    EXPECT_EQ(Rank("inference-1")["requests"], 0);
    for (const Completion& completion : streams.Join()) EXPECT_TRUE(completion.ok()) << completion.error;
  }
  RunOk("uncordon inference-1");
}

TEST_F(Admin, WeightsShiftWork) {
  EXPECT_THAT(RunOk("weights inference-0=100 inference-1=0.01").output, HasSubstr("inference-0      100"));
  {
    std::vector<Json> requests;
    for (int i = 0; i < kStreams; ++i) requests.push_back(Request(i, 60));
    Streams streams(cluster_->http(), requests);
    ASSERT_TRUE(streams.AwaitBegun());
    EXPECT_EQ(Rank("inference-1")["requests"], 0);
  }
  RunOk("weights inference-0=1 inference-1=1");
  const Outcome zero = Run("weights inference-0=0");
  EXPECT_EQ(zero.code, 1);
  EXPECT_THAT(zero.output, HasSubstr("a weight is a number from 0.01 to 100, not 0"));
  EXPECT_EQ(Run("weights inference-0").code, 2);
}

TEST_F(Admin, RanksThatAreNotThereAreNamed) {
  for (const char* command : {"drain inference-9", "cordon inference-9", "uncordon inference-9"}) {
    const Outcome refused = Run(command);
    EXPECT_EQ(refused.code, 1) << command;
    EXPECT_THAT(refused.output, HasSubstr("there is no rank \"inference-9\"; there are cache-0, cache-1, inference-0, "
                                          "inference-1"));
  }
  EXPECT_EQ(Run("drain").code, 2);
  // One of two routers is not there: nothing is ordered at the other one.
  EXPECT_EQ(Run("cordon inference-0 --server=" + cluster_->grpc_address() + ",127.0.0.1:1").code, 1);
  EXPECT_EQ(StateOf("inference-0"), "serving");
  EXPECT_THAT(RunOk("reload").output, HasSubstr("neither API keys nor certificates"));
}

// Neither --timeout nor Ctrl-C leaves it unclear how the rank is.
TEST_F(Admin, ADrainThatIsGivenUpLeavesTheRankCordoned) {
  std::vector<Json> requests;
  for (int i = 0; i < kStreams; ++i) requests.push_back(Request(i, 400));
  Streams streams(cluster_->http(), requests);
  ASSERT_TRUE(streams.AwaitBegun());
  const std::string busy = Rank("cache-0")["requests"] > 0 ? "cache-0" : "cache-1";
  const Outcome late = Run("drain " + busy + " --timeout=200ms");
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.output, HasSubstr("whose KV it holds, so that they end there. It stays cordoned"));
  EXPECT_EQ(StateOf(busy), "cordoned");
  for (const Completion& completion : streams.Join()) EXPECT_TRUE(completion.ok()) << completion.error;
  RunOk("drain " + busy + " --timeout=60s");
  RunOk("uncordon " + busy);
}

TEST_F(Admin, EveryRankIsRestartedUnderLoadWithoutAFailedRequest) {
  constexpr int kClients = 6;
  std::vector<TokenIds> expected;
  for (int i = 0; i < kClients; ++i) expected.push_back(Complete(cluster_->http(), Request(i, 60)).ids);
  std::atomic<bool> stop{false};
  std::atomic<int> answers{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      while (!stop) {
        const Completion completion = StreamCompletion(cluster_->http(), Request(i, 60));
        EXPECT_TRUE(completion.ok()) << completion.status << ": " << completion.error;
        EXPECT_EQ(completion.ids, expected[i]);
        ++answers;
      }
    });
  }
  for (const char* rank : {"inference-0", "inference-1", "cache-0", "cache-1"}) {
    SCOPED_TRACE(rank);
    const int before = answers;
    RunOk(std::string("drain --timeout=120s ") + rank);
    RestartCordoned(rank);
    RunOk(std::string("uncordon ") + rank);
    EXPECT_TRUE(WaitUntil(milliseconds(60'000), [&] { return answers >= before + kClients; }));
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(RouterValue("winnow_failovers_total", {{"mode", "reattach"}}), 0);
  EXPECT_EQ(RouterValue("winnow_failovers_total", {{"mode", "recompute"}}), 0);
}

// Where the KV lies in the rank's own process nobody else can take a request over.
TEST(AdminOfRanksWithTheirOwnKv, RequestsEndWhereTheyAreAndTheDrainSaysHowLongThatTook) {
  auto started =
      Cluster::Start({.flags = {"--transport=inproc", "--inference-ranks=2", "--budget=128", "--max-context=4096"}});
  ASSERT_TRUE(started.ok()) << started.status().message();
  const Cluster& cluster = **started;
  std::vector<Json> requests;
  for (int i = 0; i < kStreams; ++i) requests.push_back(GreedyRequest(DemoText(150 + 30 * i, 31 * i), 400));
  const std::vector<Completion> undisturbed = Streams(cluster.http(), requests).Join();
  const auto admin = [&](const std::string& arguments) {
    return RunWinnow(cluster.grpc_address(), "admin " + arguments);
  };

  Streams streams(cluster.http(), requests);
  ASSERT_TRUE(streams.AwaitBegun());
  const Outcome late = admin("drain inference-0 --timeout=200ms");
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.output,
              ContainsRegex("inference-0 still has [0-9]+ requests? after [0-9.]+ s, whose KV it holds, so "
                            "that they end there. It stays cordoned"));
  const Outcome drained = admin("drain inference-0 --timeout=120s");
  EXPECT_EQ(drained.code, 0) << drained.output;
  EXPECT_THAT(drained.output, ContainsRegex("inference-0 is empty after [0-9.]+ s: of [0-9]+ requests? 0 went on on "
                                            "other ranks, [0-9]+ ended"));
  EXPECT_TRUE(RunsNothing(cluster, "inference-0"));
  EXPECT_EQ(cluster.MetricsOf("router-0").Value("winnow_router_moved_requests_total"), 0);
  const std::vector<Completion>& disturbed = streams.Join();
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(disturbed[i].ok()) << disturbed[i].error;
    EXPECT_EQ(disturbed[i].ids, undisturbed[i].ids) << "stream " << i;
  }
  // What is new goes to the other one.
  EXPECT_TRUE(Complete(cluster.http(), requests[0]).ok());
  EXPECT_EQ(admin("uncordon inference-0").code, 0);
}

}  // namespace
}  // namespace winnow::e2e
