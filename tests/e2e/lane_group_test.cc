// Decode steps that rows of several cache ranks share: one inference rank on one GPU with lanes to GPUs of two or three
// cache ranks, all made of host memory (tests/support/host_gpu).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <future>
#include <numeric>

#include "tests/e2e/cluster.h"
#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using testing::Each;
using testing::Gt;
using testing::HasSubstr;

constexpr int kSeats = 6;

std::unique_ptr<Cluster> StartLanes(const std::string& selection, int cache_ranks, std::vector<std::string> flags = {},
                                    Process::Environment environment = {}, int inference_gpus = 1) {
  flags.insert(flags.end(), {"--device=cuda", "--transport=p2p", "--budget=256", "--max-context=4096",
                             "--max-running=" + std::to_string(kSeats), "--selection=" + selection,
                             "--cache-device=cuda:" + std::to_string(inference_gpus),
                             "--cache-ranks=" + std::to_string(cache_ranks)});
  environment.emplace_back("WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN);
  return StartOrFail(std::move(flags), environment);
}

Completion AnswerOf(const Cluster& cluster, const TokenIds& prompt, int tokens) {
  Completion completion = Complete(cluster.http(), GreedyRequest(prompt, tokens));
  EXPECT_TRUE(completion.ok()) << completion.error;
  return completion;
}
std::vector<TokenIds> AloneBy(const Cluster& cluster, const std::vector<TokenIds>& prompts, int tokens) {
  std::vector<TokenIds> answers;
  for (const TokenIds& prompt : prompts) answers.push_back(AnswerOf(cluster, prompt, tokens).ids);
  return answers;
}
std::vector<std::future<Completion>> Begin(const Cluster& cluster, const std::vector<TokenIds>& prompts, int tokens) {
  std::vector<std::future<Completion>> answers;
  for (const TokenIds& prompt : prompts) {
    answers.push_back(std::async(std::launch::async, [&, tokens] { return AnswerOf(cluster, prompt, tokens); }));
  }
  return answers;
}
std::vector<TokenIds> Prompts(size_t count, size_t first_tokens, size_t step) {
  std::vector<TokenIds> prompts;
  for (size_t i = 0; i < count; ++i) prompts.push_back(DemoText(first_tokens + step * i, i));
  return prompts;
}

double ValueOf(const Cluster& cluster, const char* name) {
  return cluster.MetricsOf("inference-0").Value(name);
}
double Failovers(const Cluster& cluster, const char* mode) {
  return cluster.MetricsOf("router-0").Value("winnow_failovers_total", {{"mode", mode}});
}
// Of each cache rank.
std::vector<double> PlansOf(const Cluster& cluster, int cache_ranks) {
  std::vector<double> plans;
  for (int i = 0; i < cache_ranks; ++i) {
    plans.push_back(cluster.MetricsOf("cache-" + std::to_string(i)).Value("winnow_lane_plans_total"));
  }
  return plans;
}
double ActiveOn(const Cluster& cluster, const std::string& cache_rank) {
  return cluster.MetricsOf(cache_rank).Value("winnow_sequences", {{"state", "active"}});
}
// Until all of them decode.
bool AwaitSeats(const Cluster& cluster, double sequences) {
  return WaitUntil(std::chrono::milliseconds(30'000),
                   [&] { return ValueOf(cluster, "winnow_lane_sequences") == sequences; });
}

class LaneGroup : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(CacheRanks, LaneGroup, testing::Values(2, 3));

TEST_P(LaneGroup, AStepServesTheSequencesOfAllCacheRanks) {
  constexpr int kTokens = 40;
  const std::vector<TokenIds> prompts = Prompts(kSeats, 100, 300);
  for (const char* selection : {"depth", "exact-token", "async-token"}) {
    std::vector<TokenIds> by_one;
    {
      const auto cluster = StartLanes(selection, 1);
      ASSERT_NE(cluster, nullptr);
      by_one = AloneBy(*cluster, prompts, kTokens);
    }
    const auto cluster = StartLanes(selection, GetParam());
    ASSERT_NE(cluster, nullptr);
    EXPECT_EQ(AloneBy(*cluster, prompts, kTokens), by_one) << selection;
    const double alone_steps = ValueOf(*cluster, "winnow_lane_steps_total");
    const std::vector<double> alone_plans = PlansOf(*cluster, GetParam());
    EXPECT_EQ(alone_steps, kSeats * (kTokens - 1)) << selection;
    EXPECT_EQ(std::accumulate(alone_plans.begin(), alone_plans.end(), 0.0), alone_steps)
        << selection << ": a cache rank without rows has no plan";

    auto together = Begin(*cluster, prompts, kTokens);
    for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together[i].get().ids, by_one[i]) << selection << ' ' << i;
    const double steps = ValueOf(*cluster, "winnow_lane_steps_total") - alone_steps;
    std::vector<double> plans = PlansOf(*cluster, GetParam());
    for (size_t i = 0; i < plans.size(); ++i) plans[i] -= alone_plans[i];
    EXPECT_THAT(plans, Each(Gt(0))) << selection;
    EXPECT_LT(steps, std::accumulate(plans.begin(), plans.end(), 0.0)) << selection;
    EXPECT_EQ(ValueOf(*cluster, "winnow_decode_steps_total"), alone_steps + steps) << selection;
    EXPECT_EQ(ValueOf(*cluster, "winnow_lanes_failed_total"), 0) << selection;
  }
}

// More requests than seats, of different lengths, some of which are given up: seats pass from one cache rank's
// sequences to another's.
TEST_P(LaneGroup, SequencesComeAndGo) {
  const auto cluster = StartLanes("winnow", GetParam());
  ASSERT_NE(cluster, nullptr);
  const std::vector<TokenIds> prompts = Prompts(2 * kSeats, 100, 130);
  const auto tokens = [](size_t i) { return 6 + 4 * static_cast<int>(i); };
  std::vector<TokenIds> alone;
  for (size_t i = 0; i < prompts.size(); ++i) alone.push_back(AnswerOf(*cluster, prompts[i], tokens(i)).ids);
  std::vector<std::future<Completion>> together;
  for (size_t i = 0; i < prompts.size(); ++i) {
    together.push_back(std::async(std::launch::async, [&, i] { return AnswerOf(*cluster, prompts[i], tokens(i)); }));
  }
  const auto given_up = std::async(std::launch::async, [&] {
    StreamCompletion(cluster->http(), GreedyRequest(DemoText(300, 20), 200), [](size_t tokens) { return tokens < 5; });
  });
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together[i].get().ids, alone[i]) << i;
  given_up.wait();
  EXPECT_EQ(ValueOf(*cluster, "winnow_lanes_failed_total"), 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

TEST_P(LaneGroup, PreemptionChangesNoAnswer) {
  const auto cluster = StartLanes("winnow", GetParam(), {"--age-bound=20ms"});
  ASSERT_NE(cluster, nullptr);
  const std::vector<TokenIds> prompts = Prompts(2 * kSeats, 300, 60);
  const std::vector<TokenIds> alone = AloneBy(*cluster, prompts, 30);
  auto together = Begin(*cluster, prompts, 30);
  double preemptions = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Completion completion = together[i].get();
    EXPECT_EQ(completion.ids, alone[i]) << i;
    preemptions += completion.Stat("preempted_count");
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(ValueOf(*cluster, "winnow_lanes_failed_total"), 0);
  EXPECT_EQ(ValueOf(*cluster, "winnow_lane_steps_total"), ValueOf(*cluster, "winnow_decode_steps_total"));
}

// Beside sequences of other cache ranks.
TEST_P(LaneGroup, SamplesAndForksAreThoseOfRequestsOfTheirOwn) {
  constexpr uint32_t kSamples = 3, kTokens = 60;
  const auto cluster = StartLanes("winnow", GetParam());
  ASSERT_NE(cluster, nullptr);
  GenerationClient client(*cluster);
  v1::GenerateRequest request = SamplesOf("", DemoText(700, 300), kSamples, kTokens);
  std::vector<TokenIds> alone;
  request.set_n(1);
  for (uint32_t i = 0; i < kSamples; ++i) {
    request.mutable_sampling()->set_sample_index(i);
    alone.push_back(client.Generate(request)->Finish().ids());
  }
  const std::vector<TokenIds> others = Prompts(GetParam() - 1, 400, 100);
  const std::vector<TokenIds> others_alone = AloneBy(*cluster, others, 80);
  auto beside = Begin(*cluster, others, 80);
  ASSERT_TRUE(AwaitSeats(*cluster, GetParam() - 1));
  request.set_n(kSamples);
  request.mutable_sampling()->set_sample_index(0);
  request.set_request_id("source");
  const auto samples = client.Generate(request);
  ASSERT_TRUE(samples->ReadUntil(10));
  v1::ForkRequest fork;
  fork.set_source_request_id("source");
  fork.set_sample_index(0);
  const auto twin = client.Fork(fork);
  const Answer together = samples->Finish(), forked = twin->Finish();
  ASSERT_TRUE(together.status.ok() && forked.status.ok()) << together.status.error_message();
  for (uint32_t i = 0; i < kSamples; ++i) EXPECT_EQ(together.ids(i), alone[i]) << i;
  TokenIds of_twin(alone[0].begin(), alone[0].begin() + forked.accepted.forked_tokens());
  of_twin.insert(of_twin.end(), forked.ids().begin(), forked.ids().end());
  EXPECT_EQ(of_twin, alone[0]);
  for (size_t i = 0; i < others.size(); ++i) EXPECT_EQ(beside[i].get().ids, others_alone[i]) << i;
  EXPECT_EQ(ValueOf(*cluster, "winnow_lanes_failed_total"), 0);
}

// Its sequences are recomputed on another one; nobody else notices.
TEST_P(LaneGroup, OthersGoOnAfterACacheRankIsKilledInTheMiddleOfSteps) {
  constexpr int kTokens = 150;
  const auto cluster = StartLanes("depth", GetParam());
  ASSERT_NE(cluster, nullptr);
  const std::vector<TokenIds> prompts = Prompts(kSeats, 200, 100);
  const std::vector<TokenIds> alone = AloneBy(*cluster, prompts, kTokens);
  auto together = Begin(*cluster, prompts, kTokens);
  ASSERT_TRUE(AwaitSeats(*cluster, kSeats));
  const double lost = ActiveOn(*cluster, "cache-1");
  ASSERT_GT(lost, 0);
  ASSERT_LT(lost, kSeats);
  kill(cluster->Pids("cache-rank")[1], SIGKILL);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together[i].get().ids, alone[i]) << i;
  EXPECT_EQ(Failovers(*cluster, "recompute"), lost);
  EXPECT_EQ(Failovers(*cluster, "reattach"), 0) << "sequences of other cache ranks had to be attached again";
  EXPECT_LE(ValueOf(*cluster, "winnow_lanes_failed_total"), 1);
}

// The sequences of one cache rank go by frames from then on, in steps of their own.
TEST_P(LaneGroup, OthersStayOnTheirLanesAfterACacheRanksGpuHasFailed) {
  constexpr int kTokens = 150;
  const TempDir folder;
  const std::string fault = folder.path() + "/fault";
  const auto cluster = StartLanes("depth", GetParam(), {}, {{"WINNOW_HOST_GPU_FAULT", fault}});
  ASSERT_NE(cluster, nullptr);
  const std::vector<TokenIds> prompts = Prompts(kSeats, 200, 100);
  const std::vector<TokenIds> alone = AloneBy(*cluster, prompts, kTokens);
  auto together = Begin(*cluster, prompts, kTokens);
  ASSERT_TRUE(AwaitSeats(*cluster, kSeats));
  const double hit = ActiveOn(*cluster, "cache-1");
  ASSERT_GT(hit, 0);
  ASSERT_LT(hit, kSeats);
  std::ofstream(fault) << cluster->Pids("cache-rank")[1];
  double reattached = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Completion completion = together[i].get();
    EXPECT_EQ(completion.ids.size(), static_cast<size_t>(kTokens)) << i;
    reattached += completion.Stat("reattach_count") > 0;
    // By frames rows whose scores differ by their roundings may be selected in another order.
    if (completion.Stat("reattach_count") > 0) continue;
    EXPECT_EQ(completion.ids, alone[i]) << i;
  }
  EXPECT_EQ(reattached, hit);
  EXPECT_EQ(Failovers(*cluster, "reattach"), hit);
  EXPECT_EQ(Failovers(*cluster, "recompute"), 0);
  EXPECT_EQ(ValueOf(*cluster, "winnow_lanes_failed_total"), 1);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("go by frames from now on: the lane has failed"));
}

TEST_P(LaneGroup, ARankDecodesWhatAnotherHasPrefilled) {
  constexpr int kTokens = 40;
  const std::vector<TokenIds> prompts = Prompts(kSeats, 200, 200);
  std::vector<TokenIds> alone;
  {
    const auto cluster = StartLanes("depth", 1);
    ASSERT_NE(cluster, nullptr);
    alone = AloneBy(*cluster, prompts, kTokens);
  }
  const auto cluster =
      StartLanes("depth", GetParam(), {"--prefill-ranks=1", "--decode-ranks=1"}, {}, /*inference_gpus=*/2);
  ASSERT_NE(cluster, nullptr);
  auto together = Begin(*cluster, prompts, kTokens);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together[i].get().ids, alone[i]) << i;
  const Metrics metrics = cluster->MetricsOf("decode-0");
  EXPECT_EQ(metrics.Value("winnow_lane_steps_total"), metrics.Value("winnow_decode_steps_total"));
  EXPECT_EQ(metrics.Value("winnow_lanes_failed_total"), 0);
  const std::vector<double> plans = PlansOf(*cluster, GetParam());
  EXPECT_THAT(plans, Each(Gt(0)));
  EXPECT_LT(metrics.Value("winnow_lane_steps_total"), std::accumulate(plans.begin(), plans.end(), 0.0));
}

}  // namespace
}  // namespace winnow::e2e
