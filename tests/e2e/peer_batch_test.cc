// Decode steps that rows of several cache ranks share: one inference rank on one GPU with peer links to GPUs of two or
// three cache ranks, all made of host memory (tests/support/host_gpu).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <map>
#include <numeric>

#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/peer_cluster.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using testing::Each;
using testing::Gt;
using testing::HasSubstr;

constexpr int kBatchRows = 6;

std::unique_ptr<Cluster> StartPeers(const std::string& selection, int cache_ranks, std::vector<std::string> flags = {},
                                    Process::Environment environment = {}, int inference_gpus = 1) {
  flags.insert(flags.end(),
               {"--transport=p2p", "--selection=" + selection, Flag("--max-running", kBatchRows),
                "--cache-device=cuda:" + std::to_string(inference_gpus), Flag("--cache-ranks", cache_ranks)});
  return StartOnHostGpus(std::move(flags), std::move(environment));
}

const std::vector<TokenIds>& GroupPrompts() {
  static const std::vector<TokenIds> prompts = Prompts(kBatchRows, 100, 300);
  return prompts;
}
// The answers to these where there is one cache rank.
const std::vector<TokenIds>& AnswersByOne(const std::string& selection) {
  static std::map<std::string, std::vector<TokenIds>> by_selection;
  std::vector<TokenIds>& answers = by_selection[selection];
  if (answers.empty()) {
    const auto cluster = StartPeers(selection, 1);
    if (cluster != nullptr) answers = AnswersAlone(*cluster, GroupPrompts());
  }
  return answers;
}

// Long enough that all of them decode at once.
constexpr int kLong = 40;
void ExpectToBeginAs(const std::vector<TokenIds>& short_ones, const std::vector<TokenIds>& long_ones) {
  ASSERT_EQ(long_ones.size(), short_ones.size());
  for (size_t i = 0; i < long_ones.size(); ++i) {
    ASSERT_EQ(long_ones[i].size(), static_cast<size_t>(kLong));
    EXPECT_EQ(TokenIds(long_ones[i].begin(), long_ones[i].begin() + kTokens), short_ones[i]) << i;
  }
}

double Failovers(const Cluster& cluster, const char* mode) {
  return cluster.MetricsOf("router-0").Value("winnow_failovers_total", {{"mode", mode}});
}
// Of each cache rank.
std::vector<double> PlansOf(const Cluster& cluster, int cache_ranks) {
  std::vector<double> plans;
  for (int i = 0; i < cache_ranks; ++i) {
    plans.push_back(cluster.MetricsOf("cache-" + std::to_string(i)).Value("winnow_peer_plans_total"));
  }
  return plans;
}

// Six answers that decode together, of which some are on cache-1.
class Beside {
 public:
  static constexpr int kAnswerTokens = 150;

  explicit Beside(const Cluster& cluster)
      : cluster_(cluster),
        prompts_(Prompts(kBatchRows, 200, 100)),
        undisturbed_(AnswersTogether(cluster, prompts_, kAnswerTokens)),
        answers_(Begin(cluster, prompts_, kAnswerTokens)) {}
  // Until all have batch rows; 0 when that fails.
  double AwaitThoseOnCache1() const {
    const double there = AwaitBatchRows(cluster_, kBatchRows) ? ActiveOn(cluster_, "cache-1") : 0;
    return there < kBatchRows ? there : 0;
  }
  Completion Answer(size_t i) { return answers_[i].get(); }
  const TokenIds& undisturbed(size_t i) const { return undisturbed_[i]; }

 private:
  const Cluster& cluster_;
  const std::vector<TokenIds> prompts_;
  const std::vector<TokenIds> undisturbed_;
  std::vector<std::future<Completion>> answers_;
};

class PeerBatches : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(CacheRanks, PeerBatches, testing::Values(2, 3));

TEST_P(PeerBatches, AStepServesTheSequencesOfAllCacheRanks) {
  for (const char* selection : {"depth", "exact-token", "async-token"}) {
    const std::vector<TokenIds>& by_one = AnswersByOne(selection);
    const auto cluster = StartPeers(selection, GetParam());
    ASSERT_NE(cluster, nullptr);
    // Before any prompt has a prefix that it would follow, so that all cache ranks get some.
    ExpectToBeginAs(by_one, AnswersTogether(*cluster, GroupPrompts(), kLong));
    const double steps = ValueOf(*cluster, "winnow_peer_steps_total");
    const std::vector<double> plans = PlansOf(*cluster, GetParam());
    EXPECT_THAT(plans, Each(Gt(0))) << selection;
    EXPECT_LT(steps, std::accumulate(plans.begin(), plans.end(), 0.0)) << selection;

    EXPECT_EQ(AnswersAlone(*cluster, GroupPrompts()), by_one) << selection;
    const double alone_steps = ValueOf(*cluster, "winnow_peer_steps_total") - steps;
    std::vector<double> alone_plans = PlansOf(*cluster, GetParam());
    for (size_t i = 0; i < plans.size(); ++i) alone_plans[i] -= plans[i];
    EXPECT_EQ(alone_steps, kBatchRows * (kTokens - 1)) << selection;
    EXPECT_EQ(std::accumulate(alone_plans.begin(), alone_plans.end(), 0.0), alone_steps)
        << selection << ": a cache rank without rows has no plan";
    EXPECT_EQ(ValueOf(*cluster, "winnow_decode_steps_total"), steps + alone_steps) << selection;
    EXPECT_EQ(ValueOf(*cluster, "winnow_peer_links_failed_total"), 0) << selection;
  }
}

// More requests than batch rows, of different lengths, some of which are given up: batch rows pass from one cache
// rank's sequences to another's.
TEST_P(PeerBatches, SequencesComeAndGo) {
  const auto cluster = StartPeers("winnow", GetParam());
  ASSERT_NE(cluster, nullptr);
  const std::vector<TokenIds> prompts = Prompts(2 * kBatchRows, 100, 130);
  const auto tokens = [](size_t i) { return 6 + 2 * static_cast<int>(i); };
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
  EXPECT_EQ(ValueOf(*cluster, "winnow_peer_links_failed_total"), 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

TEST_P(PeerBatches, PreemptionChangesNoAnswer) {
  const auto cluster = StartPeers("winnow", GetParam(), {"--age-bound=20ms"});
  ASSERT_NE(cluster, nullptr);
  ExpectThatPreemptionChangesNoAnswer(*cluster, Prompts(2 * kBatchRows, 300, 60), kBatchRows);
}

// Beside sequences of other cache ranks.
TEST_P(PeerBatches, SamplesAndForksAreThoseOfRequestsOfTheirOwn) {
  constexpr uint32_t kSamples = 3, kSampleTokens = 60;
  const auto cluster = StartPeers("winnow", GetParam());
  ASSERT_NE(cluster, nullptr);
  GenerationClient client(*cluster);
  v1::GenerateRequest request = SamplesOf("", DemoText(700, 300), kSamples, kSampleTokens);
  std::vector<TokenIds> alone;
  request.set_n(1);
  for (uint32_t i = 0; i < kSamples; ++i) {
    request.mutable_sampling()->set_sample_index(i);
    alone.push_back(client.Generate(request)->Finish().ids());
  }
  const std::vector<TokenIds> others = Prompts(GetParam() - 1, 400, 100);
  const std::vector<TokenIds> others_alone = AnswersAlone(*cluster, others, 80);
  auto beside = Begin(*cluster, others, 80);
  ASSERT_TRUE(AwaitBatchRows(*cluster, GetParam() - 1));
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
  EXPECT_EQ(ValueOf(*cluster, "winnow_peer_links_failed_total"), 0);
}

// Its sequences are recomputed on another one; nobody else notices.
TEST_P(PeerBatches, OthersGoOnAfterACacheRankIsKilledInTheMiddleOfSteps) {
  const auto cluster = StartPeers("depth", GetParam());
  ASSERT_NE(cluster, nullptr);
  Beside beside(*cluster);
  const double lost = beside.AwaitThoseOnCache1();
  ASSERT_GT(lost, 0);
  kill(cluster->Pids("cache-rank")[1], SIGKILL);
  for (size_t i = 0; i < kBatchRows; ++i) EXPECT_EQ(beside.Answer(i).ids, beside.undisturbed(i)) << i;
  EXPECT_EQ(Failovers(*cluster, "recompute"), lost);
  EXPECT_EQ(Failovers(*cluster, "reattach"), 0) << "sequences of other cache ranks had to be attached again";
  EXPECT_LE(ValueOf(*cluster, "winnow_peer_links_failed_total"), 1);
}

// The sequences of one cache rank go by frames from then on, in steps of their own.
TEST_P(PeerBatches, OthersStayOnTheirPeerLinksAfterACacheRanksGpuHasFailed) {
  const TempDir folder;
  const std::string fault = folder.path() + "/fault";
  const auto cluster = StartPeers("depth", GetParam(), {}, {{"WINNOW_HOST_GPU_FAULT", fault}});
  ASSERT_NE(cluster, nullptr);
  Beside beside(*cluster);
  const double hit = beside.AwaitThoseOnCache1();
  ASSERT_GT(hit, 0);
  std::ofstream(fault) << cluster->Pids("cache-rank")[1];
  double reattached = 0;
  for (size_t i = 0; i < kBatchRows; ++i) {
    const Completion completion = beside.Answer(i);
    EXPECT_EQ(completion.ids.size(), beside.undisturbed(i).size()) << i;
    reattached += completion.Stat("reattach_count") > 0;
    // By frames rows whose scores differ by their roundings may be selected in another order.
    if (completion.Stat("reattach_count") > 0) continue;
    EXPECT_EQ(completion.ids, beside.undisturbed(i)) << i;
  }
  EXPECT_EQ(reattached, hit);
  EXPECT_EQ(Failovers(*cluster, "reattach"), hit);
  EXPECT_EQ(Failovers(*cluster, "recompute"), 0);
  EXPECT_EQ(ValueOf(*cluster, "winnow_peer_links_failed_total"), 1);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("go by frames from now on: the peer link has failed"));
}

// Prompts reach the decoding rank one after the other. Its answers go on until sequences of two cache ranks have shared
// a step, however slow prompts are beside steps; then their clients go away.
TEST_P(PeerBatches, ARankDecodesWhatAnotherHasPrefilled) {
  constexpr int kAnswerTokens = 2'400;
  const auto cluster =
      StartPeers("depth", GetParam(), {"--prefill-ranks=1", "--decode-ranks=1"}, {}, /*inference_gpus=*/2);
  ASSERT_NE(cluster, nullptr);
  std::atomic<bool> enough = false;
  std::vector<std::future<Completion>> answers;
  for (const TokenIds& prompt : GroupPrompts()) {
    answers.push_back(std::async(std::launch::async, [&] {
      return StreamCompletion(cluster->http(), GreedyRequest(prompt, kAnswerTokens),
                              [&](size_t tokens) { return tokens < kLong || !enough; });
    }));
  }
  const auto plans_exceed_steps = [&] {
    // Plans are read first: steps that come in between can only hide the difference.
    const std::vector<double> plans = PlansOf(*cluster, GetParam());
    return std::accumulate(plans.begin(), plans.end(), 0.0) >
           cluster->MetricsOf("decode-0").Value("winnow_peer_steps_total");
  };
  EXPECT_TRUE(WaitUntil(std::chrono::milliseconds(60'000), plans_exceed_steps));
  enough = true;
  std::vector<TokenIds> beginnings;
  for (std::future<Completion>& future : answers) {
    const Completion answer = future.get();
    EXPECT_EQ(answer.error, "");
    const size_t tokens = std::min<size_t>(answer.ids.size(), kLong);
    beginnings.emplace_back(answer.ids.begin(), answer.ids.begin() + tokens);
  }
  ExpectToBeginAs(AnswersByOne("depth"), beginnings);
  ASSERT_TRUE(AwaitBatchRows(*cluster, 0, "decode-0"));
  const Metrics metrics = cluster->MetricsOf("decode-0");
  EXPECT_EQ(metrics.Value("winnow_peer_steps_total"), metrics.Value("winnow_decode_steps_total"));
  EXPECT_EQ(metrics.Value("winnow_peer_links_failed_total"), 0);
  EXPECT_THAT(PlansOf(*cluster, GetParam()), Each(Gt(0)));
  EXPECT_TRUE(plans_exceed_steps()) << "no step had sequences of two cache ranks";
}

}  // namespace
}  // namespace winnow::e2e
