// What traces say of a whole cluster whose cache ranks each hold a part of the KV (docs/api.md#traces).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <future>
#include <numeric>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

constexpr int kParts = 64, kTokens = 40, kBudget = 64;
constexpr int kLists = 16;                    // of the demo model: 8 layers of 2 kv heads
constexpr int kAlways = 4 + 95;               // sinks, and the recent window at its longest
constexpr uint32_t kPromptTokens = 600;       // more than the budget holds
constexpr uint32_t kShortPromptTokens = 150;  // lists attend to everything at first, and then no more

struct ShardedServer {
  static Cluster::Options Options() {
    return {
        .flags = {"--budget=64", "--max-context=2048", "--inference-ranks=2", "--cache-ranks=2", "--cache-shards=2"}};
  }
};

class Traces : public SharedCluster<ShardedServer> {
 protected:
  static Json Request(uint32_t prompt_tokens, Json winnow) {
    Json request = GreedyRequest(DemoText(prompt_tokens), kTokens);
    request["winnow"] = std::move(winnow);
    return request;
  }

  static uint64_t Sum(const Json& counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0},
                           [](uint64_t sum, const Json& n) { return sum + n.get<uint64_t>(); });
  }

  // What must hold of every trace, and that moved rows are those that usage counts.
  static void Check(const Completion& answer, uint32_t prompt_tokens) {
    ASSERT_TRUE(answer.ok()) << answer.error;
    const Json& traces = answer.choice["winnow"]["trace"];
    ASSERT_EQ(traces.size(), kTokens - 1) << "the first token ends the prompt";
    uint64_t moved = 0;
    for (size_t i = 0; i < traces.size(); ++i) {
      const Json& trace = traces[i];
      EXPECT_EQ(trace["token_index"], i + 1);
      EXPECT_EQ(trace["context_tokens"], prompt_tokens + i + 1);
      EXPECT_EQ(trace["lists"], kLists);
      const auto context = trace["context_tokens"].get<uint64_t>();
      for (const char* name : {"attended", "resident", "moved"}) ASSERT_EQ(trace[name].size(), kParts);
      for (uint64_t part = 0; part < kParts; ++part) {
        const uint64_t positions =
            ((part + 1) * context + kParts - 1) / kParts - (part * context + kParts - 1) / kParts;
        EXPECT_LE(trace["attended"][part], trace["resident"][part]) << "what is attended to is there";
        EXPECT_LE(trace["resident"][part], positions * kLists);
      }
      moved += Sum(trace["moved"]);
    }
    EXPECT_EQ(moved, answer.Stat("streamed_rows"));
  }
};

TEST_F(Traces, SayWhatASparseStepAttendsToAndChangeNothing) {
  const Completion traced = Complete(cluster_->http(), Request(kPromptTokens, {{"trace", kParts}}));
  Check(traced, kPromptTokens);
  for (const Json& trace : traced.choice["winnow"]["trace"]) {
    EXPECT_LE(Sum(trace["attended"]), kLists * (kBudget + kAlways));
    EXPECT_EQ(trace["attended"][kParts - 1], trace["resident"][kParts - 1]) << "the recent window";
    EXPECT_GT(Sum(trace["resident"]), Sum(trace["attended"]));
    if (!trace.contains("captured_mass")) continue;
    EXPECT_GT(trace["captured_mass"], 0.2);
    EXPECT_LE(trace["captured_mass"], 1);
    EXPECT_EQ(trace["mass_token_index"], trace["token_index"].get<int>() - 1);
  }
  const Completion plain = Complete(cluster_->http(), Request(kPromptTokens, Json::object()));
  ASSERT_TRUE(plain.ok()) << plain.error;
  EXPECT_EQ(plain.ids, traced.ids);
  EXPECT_FALSE(plain.choice.contains("winnow"));
}

TEST_F(Traces, FollowListsFromWhereTheyAttendToEverything) {
  const Completion traced = Complete(cluster_->http(), Request(kShortPromptTokens, {{"trace", kParts}}));
  Check(traced, kShortPromptTokens);
  const Json& first = traced.choice["winnow"]["trace"][0];
  EXPECT_EQ(Sum(first["attended"]), (kShortPromptTokens + 1) * kLists);
  EXPECT_EQ(first["captured_mass"], 1);
  const Json& last = traced.choice["winnow"]["trace"][kTokens - 2];
  EXPECT_LT(Sum(last["attended"]), last["context_tokens"].get<uint64_t>() * kLists);
}

TEST_F(Traces, OfDenseAttentionHoldEverything) {
  const Completion traced =
      Complete(cluster_->http(), Request(kPromptTokens, {{"trace", kParts}, {"selection", "dense"}}));
  Check(traced, kPromptTokens);
  for (const Json& trace : traced.choice["winnow"]["trace"]) {
    EXPECT_EQ(Sum(trace["attended"]), trace["context_tokens"].get<uint64_t>() * kLists);
    EXPECT_EQ(trace["attended"], trace["resident"]);
    EXPECT_EQ(trace["captured_mass"], 1);
    EXPECT_EQ(trace["mass_token_index"], trace["token_index"]);
  }
}

TEST_F(Traces, TellMassesOfEachStepThatIsVerified) {
  const Json guard = {{"trace", kParts}, {"min_captured_mass", 0.01}};
  const Completion traced = Complete(cluster_->http(), Request(kPromptTokens, guard));
  Check(traced, kPromptTokens);
  for (const Json& trace : traced.choice["winnow"]["trace"]) {
    ASSERT_TRUE(trace.contains("captured_mass"));
    EXPECT_EQ(trace["mass_token_index"], trace["token_index"]) << "verifications come with their step";
  }
}

// A rank that goes on finds empty pools: what is attended to stays the same, what has to move does not.
TEST_F(Traces, AttendToTheSameRowsAfterAFailover) {
  constexpr int kLong = 800;
  Json request = GreedyRequest(DemoText(kPromptTokens), kLong);
  request["winnow"] = {{"trace", kParts}};
  const Completion undisturbed = Complete(cluster_->http(), request);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.error;
  const auto tokens_of = [&](size_t rank) {
    const std::string name = rank == 0 ? "inference-0" : "inference-1";
    return cluster_->MetricsOf(name).Value("winnow_rank_generation_tokens_total");
  };
  const double before[] = {tokens_of(0), tokens_of(1)};
  auto disturbed = std::async(std::launch::async, [&] { return Complete(cluster_->http(), request); });
  size_t busy = 0;
  ASSERT_TRUE(WaitUntil(std::chrono::seconds(30), [&] {
    for (busy = 0; busy < 2; ++busy) {
      if (tokens_of(busy) > before[busy] + 50) return true;
    }
    return false;
  }));
  kill(cluster_->Pids("inference-rank")[busy], SIGKILL);
  const Completion answer = disturbed.get();
  ASSERT_TRUE(answer.ok()) << answer.error;
  ASSERT_EQ(answer.Stat("reattach_count"), 1) << "the rank must have been killed in mid-answer";
  EXPECT_EQ(answer.ids, undisturbed.ids);
  const Json& traces = answer.choice["winnow"]["trace"];
  ASSERT_EQ(traces.size(), kLong - 1);
  for (size_t i = 0; i < traces.size(); ++i) {
    EXPECT_EQ(traces[i]["attended"], undisturbed.choice["winnow"]["trace"][i]["attended"]) << i;
  }
}

}  // namespace
}  // namespace winnow::e2e
