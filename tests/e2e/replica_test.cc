// With --replicas=2 a cache rank that is killed takes nothing with it: no request, no token, no prompt's computation.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cmath>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

constexpr int kTokens = 300;
constexpr milliseconds kPatience{60'000};

double Sum(const Cluster& cluster, const std::string& role, const std::string& name,
           const Metrics::Labels& labels = {}) {
  double sum = 0;
  for (const std::string& rank : cluster.ranks()) {
    if (!rank.starts_with(role)) continue;
    const double value = cluster.MetricsOf(rank).Value(name, labels);
    if (!std::isnan(value)) sum += value;
  }
  return sum;
}

double Computed(const Cluster& cluster) {
  return Sum(cluster, "inference", "winnow_rank_prompt_tokens_total");
}
double Router(const Cluster& cluster, const std::string& name, const Metrics::Labels& labels = {}) {
  return cluster.MetricsOf("router-0").Value(name, labels);
}
// That many sequences have replicas, and these their prompts.
bool AreFed(const Cluster& cluster, double sequences) {
  return Sum(cluster, "cache", "winnow_replicated_sequences", {{"replica", "fed"}}) == sequences;
}
bool NothingIsLeft(const Cluster& cluster) {
  return Sum(cluster, "cache", "winnow_sequences") == 0 && Sum(cluster, "cache", "winnow_replicas") == 0 &&
         Sum(cluster, "cache", "winnow_replicated_sequences") == 0 &&
         Sum(cluster, "cache", "winnow_kv_blocks", {{"state", "used"}}) == 0 &&
         Sum(cluster, "cache", "winnow_kv_blocks", {{"state", "reserved"}}) == 0;
}
// For messages: the same numbers by rank.
std::string WhatIsLeft(const Cluster& cluster) {
  std::string left;
  for (const std::string& rank : cluster.ranks()) {
    if (!rank.starts_with("cache")) continue;
    const Metrics metrics = cluster.MetricsOf(rank);
    for (const char* state : {"active", "detached"}) {
      left += absl::StrCat(rank, " ", state, " ", metrics.Value("winnow_sequences", {{"state", state}}), "; ");
    }
    for (const char* state : {"used", "reserved"}) {
      left += absl::StrCat(state, " blocks ", metrics.Value("winnow_kv_blocks", {{"state", state}}), "; ");
    }
    left += absl::StrCat("replicas ", metrics.Value("winnow_replicas"), ", sequences with one ",
                         metrics.Value("winnow_replicated_sequences"), "\n");
  }
  return left;
}
bool CacheRanksServe(const Cluster& cluster, int count) {
  return Router(cluster, "winnow_router_ranks", {{"kind", "cache"}}) == count;
}

// The one for which that metric is 1; -1: there is none.
int CacheRankWith(const Cluster& cluster, const std::string& metric, const Metrics::Labels& labels = {}) {
  for (int i = 0; i < 3; ++i) {
    if (cluster.MetricsOf("cache-" + std::to_string(i)).Value(metric, labels) == 1) return i;
  }
  return -1;
}

// Greedy and seeded requests, of several ways to predict what will be read.
std::vector<Json> Requests() {
  std::vector<Json> requests;
  for (const char* preset : {"winnow", "depth", "async-token", "dense"}) {
    Json request = GreedyRequest(DemoText(1300 + 50 * requests.size(), 500 * requests.size()), kTokens);
    request["winnow"] = {{"selection", preset}};
    if (requests.size() % 2 == 1) {
      request["temperature"] = 0.9;
      request["seed"] = 7 + requests.size();
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<TokenIds> Undisturbed(const Cluster& cluster, const std::vector<Json>& requests) {
  std::vector<TokenIds> ids;
  for (const Json& request : requests) {
    const Completion completion = Complete(cluster.http(), request);
    EXPECT_TRUE(completion.ok()) << completion.error;
    ids.push_back(completion.ids);
  }
  return ids;
}

// Requests that run together.
class Streams {
 public:
  Streams(const Cluster& cluster, const std::vector<Json>& requests) {
    for (const Json& request : requests) {
      answers_.push_back(std::async(std::launch::async, [this, &cluster, request] {
        bool counted = false;
        return StreamCompletion(cluster.http(), request, [&](size_t tokens) {
          if (tokens >= 3 && !std::exchange(counted, true)) ++decoding_;
          return true;
        });
      }));
    }
  }
  bool AwaitDecoding() {
    return WaitUntil(kPatience, [this] { return decoding_ == static_cast<int>(answers_.size()); });
  }
  void ExpectIds(const std::vector<TokenIds>& expected) {
    for (size_t i = 0; i < answers_.size(); ++i) {
      const Completion completion = answers_[i].get();
      EXPECT_TRUE(completion.ok()) << completion.error;
      EXPECT_EQ(completion.ids, expected[i]) << "request " << i;
    }
  }

 private:
  std::atomic<int> decoding_ = 0;
  std::vector<std::future<Completion>> answers_;
};

TEST(Replica, TakesOverFromACacheRankThatIsKilled) {
  const auto cluster = StartOrFail({"--cache-ranks=2", "--replicas=2", "--budget=256", "--max-context=8192"});
  ASSERT_NE(cluster, nullptr);
  const std::vector<Json> requests = Requests();
  const std::vector<TokenIds> undisturbed = Undisturbed(*cluster, requests);
  EXPECT_EQ(Router(*cluster, "winnow_failovers_total"), 0);
  EXPECT_TRUE(WaitUntil(kPatience, [&] { return NothingIsLeft(*cluster); })) << "replicas go with their sequences";
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(WaitUntil(kPatience, [&] { return CacheRanksServe(*cluster, 2); }));
    const double promotions = Router(*cluster, "winnow_replica_promotions_total");
    Streams streams(*cluster, requests);
    ASSERT_TRUE(streams.AwaitDecoding());
    ASSERT_TRUE(WaitUntil(kPatience, [&] { return AreFed(*cluster, requests.size()); }));
    const double computed = Computed(*cluster);
    const char* const name = round == 0 ? "cache-0" : "cache-1";
    ASSERT_GE(cluster->MetricsOf(name).Value("winnow_sequences", {{"state", "active"}}), 1);
    ASSERT_EQ(kill(cluster->Pids("cache-rank")[0], SIGKILL), 0);
    streams.ExpectIds(undisturbed);
    EXPECT_GE(Router(*cluster, "winnow_replica_promotions_total"), promotions + 1);
    EXPECT_EQ(Computed(*cluster), computed) << "a prompt was computed again";
    EXPECT_EQ(Router(*cluster, "winnow_failovers_total", {{"mode", "recompute"}}), 0);
    EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] { return NothingIsLeft(*cluster); })) << WhatIsLeft(*cluster);
  }
  EXPECT_EQ(Router(*cluster, "winnow_router_mismatched_tokens_total"), 0);
  EXPECT_EQ(Router(*cluster, "winnow_router_not_identical_total"), 0);
}

// Two cache ranks that decode streams, each of which has a complete replica; one of the two is stopped.
class StoppedCacheRank : public testing::Test {
 protected:
  void SetUp() override {
    cluster_ = StartOrFail({"--cache-ranks=2", "--replicas=2", "--budget=256", "--max-context=8192"});
    ASSERT_NE(cluster_, nullptr);
    const std::vector<Json> requests = Requests();
    undisturbed_ = Undisturbed(*cluster_, requests);
    streams_.emplace(*cluster_, requests);
    ASSERT_TRUE(streams_->AwaitDecoding());
    ASSERT_TRUE(WaitUntil(kPatience, [&] { return AreFed(*cluster_, requests.size()); }));
  }
  double Value(const std::string& rank, const std::string& name, const Metrics::Labels& labels = {}) const {
    return cluster_->MetricsOf(rank).Value(name, labels);
  }
  void ExpectNothingIsLeft() const {
    EXPECT_TRUE(WaitUntil(milliseconds(30'000), [&] { return NothingIsLeft(*cluster_); })) << WhatIsLeft(*cluster_);
  }

  std::unique_ptr<Cluster> cluster_;
  std::vector<TokenIds> undisturbed_;
  std::optional<Streams> streams_;
};

// It is lost to its requests as soon as its router misses it. What it does when it goes on is of no consequence: it
// holds sequences that are others' by then.
TEST_F(StoppedCacheRank, IsReplaced) {
  const bool is_first = Value("cache-0", "winnow_sequences", {{"state", "active"}}) >= 1;
  const pid_t pid = cluster_->Pids("cache-rank")[is_first ? 0 : 1];
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  EXPECT_TRUE(WaitUntil(kPatience, [&] { return Router(*cluster_, "winnow_replica_promotions_total") >= 1; }));
  std::this_thread::sleep_for(milliseconds(2'000));
  ASSERT_EQ(kill(pid, SIGCONT), 0);
  streams_->ExpectIds(undisturbed_);
  EXPECT_EQ(Router(*cluster_, "winnow_router_mismatched_tokens_total"), 0);
  EXPECT_EQ(Router(*cluster_, "winnow_router_not_identical_total"), 0);
  ExpectNothingIsLeft();
}

// When it goes on, the requests of which it has replicas have ended, and the cache rank that fed it has closed its
// stream, which it does five seconds after the last of them: with that nobody but the router can tell it.
TEST_F(StoppedCacheRank, KeepsNoReplicasOfRequestsThatEndWithoutIt) {
  ASSERT_GE(Value("cache-1", "winnow_replicas"), 1);
  const pid_t pid = cluster_->Pids("cache-rank")[1];
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  streams_->ExpectIds(undisturbed_);
  std::this_thread::sleep_for(milliseconds(7'000));
  ASSERT_EQ(kill(pid, SIGCONT), 0);
  ExpectNothingIsLeft();
}

TEST(Replica, SamplesOfOnePromptGoOnWithTheirs) {
  const auto cluster = StartOrFail({"--cache-ranks=2", "--replicas=2", "--budget=256", "--max-context=8192"});
  ASSERT_NE(cluster, nullptr);
  constexpr uint32_t kSamples = 4;
  const v1::GenerateRequest request = SamplesOf("", DemoText(1500, 300), kSamples, kTokens);
  GenerationClient client(*cluster);
  const Answer undisturbed = client.Generate(request)->Finish();
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();
  ASSERT_TRUE(WaitUntil(kPatience, [&] { return NothingIsLeft(*cluster); })) << WhatIsLeft(*cluster);
  const auto call = client.Generate(request);
  ASSERT_TRUE(call->ReadUntil(10, kSamples - 1));
  std::atomic<bool> is_read = false;
  std::thread reader([&] {
    call->Finish();
    is_read = true;
  });
  EXPECT_TRUE(WaitUntil(kPatience, [&] { return is_read || AreFed(*cluster, kSamples); }));
  const double computed = Computed(*cluster);
  const bool is_first = cluster->MetricsOf("cache-0").Value("winnow_sequences", {{"state", "active"}}) > 0;
  EXPECT_FALSE(is_read) << "too late to matter";
  EXPECT_EQ(kill(cluster->Pids("cache-rank")[is_first ? 0 : 1], SIGKILL), 0);
  reader.join();
  const Answer& disturbed = call->answer();
  ASSERT_TRUE(disturbed.status.ok()) << disturbed.status.error_message();
  for (uint32_t i = 0; i < kSamples; ++i) {
    EXPECT_EQ(disturbed.ids(i), undisturbed.ids(i)) << "sample " << i;
    EXPECT_FALSE(disturbed.outputs.at(i).has_gaps);
  }
  EXPECT_EQ(Computed(*cluster), computed);
  EXPECT_EQ(Router(*cluster, "winnow_replica_promotions_total"), kSamples);
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] { return NothingIsLeft(*cluster); })) << WhatIsLeft(*cluster);
}

// Also while prompts are computed, while replicas are opened and while they catch up: what is not there is computed
// again, and nobody can tell.
TEST(Replica, KillsAtRandomMomentsLoseNothing) {
  const auto cluster = StartOrFail({"--cache-ranks=3", "--inference-ranks=2", "--replicas=2", "--budget=256",
                                    "--max-context=8192", "--slow-start=0s"});
  ASSERT_NE(cluster, nullptr);
  const std::vector<Json> requests = Requests();
  const std::vector<TokenIds> undisturbed = Undisturbed(*cluster, requests);
  for (const int delay_ms : {5, 60, 200, 450, 900, 1700}) {
    ASSERT_TRUE(WaitUntil(kPatience, [&] { return CacheRanksServe(*cluster, 3); }));
    Streams streams(*cluster, requests);
    std::this_thread::sleep_for(milliseconds(delay_ms));
    ASSERT_EQ(kill(cluster->Pids("cache-rank")[delay_ms % 3], SIGKILL), 0);
    streams.ExpectIds(undisturbed);
    EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] { return NothingIsLeft(*cluster); })) << delay_ms << " ms";
  }
  EXPECT_EQ(Router(*cluster, "winnow_router_mismatched_tokens_total"), 0);
}

TEST(Replica, IsMadeAnewElsewhereWhenItIsLostItself) {
  const auto cluster =
      StartOrFail({"--cache-ranks=3", "--replicas=2", "--budget=256", "--max-context=8192", "--slow-start=0s"});
  ASSERT_NE(cluster, nullptr);
  const std::vector<Json> requests = {GreedyRequest(DemoText(1500, 100), 3 * kTokens)};
  const std::vector<TokenIds> undisturbed = Undisturbed(*cluster, requests);
  ASSERT_TRUE(WaitUntil(kPatience, [&] { return NothingIsLeft(*cluster); })) << WhatIsLeft(*cluster);
  const double computed = Computed(*cluster);
  Streams streams(*cluster, requests);
  ASSERT_TRUE(WaitUntil(kPatience, [&] { return AreFed(*cluster, 1); }));
  ASSERT_TRUE(streams.AwaitDecoding());
  const double of_prompt = Computed(*cluster) - computed;
  const int primary = CacheRankWith(*cluster, "winnow_sequences", {{"state", "active"}});
  const int replica = CacheRankWith(*cluster, "winnow_replicas");
  ASSERT_GE(replica, 0);
  ASSERT_GE(primary, 0);
  const std::vector<pid_t> pids = cluster->Pids("cache-rank");
  ASSERT_EQ(kill(pids[replica], SIGKILL), 0);
  ASSERT_TRUE(WaitUntil(kPatience, [&] { return !IsAlive(pids[replica]); }));
  // On the third one, or on the next process of the one that was killed. What is fed is asked after that: before it, it
  // may be the replica that is gone.
  ASSERT_TRUE(WaitUntil(kPatience, [&] { return CacheRankWith(*cluster, "winnow_replicas") >= 0; }));
  ASSERT_TRUE(WaitUntil(kPatience, [&] { return AreFed(*cluster, 1); }));
  EXPECT_EQ(Router(*cluster, "winnow_failovers_total"), 0) << "nobody notices the loss of a replica";
  ASSERT_EQ(kill(pids[primary], SIGKILL), 0);
  streams.ExpectIds(undisturbed);
  EXPECT_EQ(Router(*cluster, "winnow_replica_promotions_total"), 1);
  EXPECT_EQ(Computed(*cluster) - computed, of_prompt) << "the prompt was computed again";
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] { return NothingIsLeft(*cluster); })) << WhatIsLeft(*cluster);
}

TEST(Replica, WithoutRoomForItRequestsFinishAllTheSame) {
  // Room for one such sequence on each rank: as it is taken by one of the two or by a replica.
  const auto cluster =
      StartOrFail({"--cache-ranks=2", "--replicas=2", "--budget=256", "--max-context=8192", "--cache-memory=20MiB"});
  ASSERT_NE(cluster, nullptr);
  const std::vector<Json> requests = {GreedyRequest(DemoText(2500, 0), kTokens),
                                      GreedyRequest(DemoText(2500, 700), kTokens)};
  const std::vector<TokenIds> undisturbed = Undisturbed(*cluster, requests);
  Streams streams(*cluster, requests);
  streams.ExpectIds(undisturbed);
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] { return NothingIsLeft(*cluster); })) << WhatIsLeft(*cluster);
}

}  // namespace
}  // namespace winnow::e2e
