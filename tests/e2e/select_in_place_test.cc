// Selection where rows are computed, on a GPU that has all of them, here one made of host memory
// (tests/support/host_gpu): the answers are those of the specification, whoever decodes beside, and whatever happens.
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "tests/e2e/disturbed_answers.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

Process::Environment HostGpus() {
  return {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}};
}

constexpr const char* kSparse = "winnow,budget=128";
constexpr const char* kSelection = "--selection=winnow,budget=128,recent=32";

struct InPlace {
  static Cluster::Options Options() {
    return {.flags = {"--device=cuda:0", "--selection=winnow,budget=1024,recent=32", "--select-in-place=on",
                      "--max-context=2048", "--max-running=10", "--prefix-cache=false"},
            .environment = HostGpus()};
  }
};

class SelectInPlace : public SharedCluster<InPlace> {
 protected:
  static double Count(const char* metric) { return cluster_->MetricsOf("inference-0").Value(metric); }
};

Json Request(size_t prompt_tokens, int max_tokens, const char* selection = nullptr) {
  Json request = GreedyRequest(DemoText(prompt_tokens, prompt_tokens), max_tokens);
  if (selection != nullptr) request["winnow"] = {{"selection", selection}};
  return request;
}

TEST_F(SelectInPlace, NothingIsStreamedAndMassesAreReported) {
  const double before = Count("winnow_local_steps_total");
  const Completion answer = Complete(cluster_->http(), Request(600, 60, kSparse));
  ASSERT_TRUE(answer.ok()) << answer.error;
  EXPECT_EQ(Count("winnow_local_steps_total") - before, 59);
  EXPECT_EQ(answer.Stat("streamed_rows"), 0);
  EXPECT_GT(answer.Stat("captured_mass_mean"), 0.3);
  EXPECT_LT(answer.Stat("captured_mass_mean"), 1.0);
}

// What a budget covers is everything, in the same order: the bits of dense attention.
TEST_F(SelectInPlace, ABudgetThatCoversTheContextGivesDenseAnswers) {
  for (const size_t prompt : {2u, 60u, 500u}) {
    const Completion dense = Complete(cluster_->http(), Request(prompt, 80, "dense"));
    ASSERT_TRUE(dense.ok()) << dense.error;
    for (const char* selection : {"winnow,budget=1024", "exact-token,budget=1024", "depth,budget=1024"}) {
      const Completion selected = Complete(cluster_->http(), Request(prompt, 80, selection));
      ASSERT_TRUE(selected.ok()) << selected.error;
      EXPECT_EQ(selected.ids, dense.ids) << selection << ", " << prompt << " tokens";
    }
  }
}

TEST_F(SelectInPlace, AnswersAreTheSameAloneOrAmongOthersOfOtherSpecifications) {
  const char* const selections[] = {kSparse,
                                    "exact-token,budget=64",
                                    "dense",
                                    "winnow,budget=96",
                                    "depth,budget=100",
                                    "async-token,budget=64",  // looks back: the cache rank selects
                                    "winnow,epsilon=0.2,budget=128"};
  constexpr int kRequests = 14;  // more than run at a time
  std::vector<Json> requests;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(Request(40 + 131 * i % 700, 20 + 29 * i % 90, selections[i % 7]));
    if (i % 3 == 1) requests.back().update(Json{{"temperature", 1.1}, {"seed", i}});
    if (i % 5 == 2) requests.back()["logprobs"] = 2;  // the host chooses
  }
  std::vector<TokenIds> alone;
  for (const Json& request : requests) {
    const Completion completion = Complete(cluster_->http(), request);
    ASSERT_TRUE(completion.ok()) << completion.error;
    alone.push_back(completion.ids);
  }
  std::vector<std::future<Completion>> together;
  for (const Json& request : requests) {
    together.push_back(std::async(std::launch::async, [&] { return Complete(cluster_->http(), request); }));
  }
  for (int i = 0; i < kRequests; ++i) {
    const Completion completion = together[i].get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, alone[i]) << "request " << i;
  }
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [] {
    return Count("winnow_local_sequences") == 0 &&
           cluster_->MetricsOf("inference-0").Value("winnow_slot_pages", {{"state", "used"}}) == 0 &&
           cluster_->MetricsOf("cache-0").Value("winnow_kv_blocks", {{"state", "used"}}) == 0;
  }));
}

TEST(SelectInPlaceOfManySequences, PreemptionAtAnyStepChangesNoAnswer) {
  const auto cluster = StartOrFail({"--device=cuda:0", kSelection, "--select-in-place=on", "--max-context=1024",
                                    "--max-running=2", "--age-bound=100ms"},
                                   HostGpus());
  ASSERT_NE(cluster, nullptr);
  const std::vector<Json> requests = {Request(250, 60), Request(251, 60), Request(252, 60), Request(253, 60)};
  ExpectPreemptionChangesNothing(*cluster, requests, IdsAlone(*cluster, requests));
}

TEST(SelectInPlaceOfTwoRanks, AKilledRankLeavesNoTraceInAnAnswer) {
  const auto cluster = StartOrFail(
      {"--device=cuda", kSelection, "--select-in-place=on", "--inference-ranks=2", "--max-context=2048"}, HostGpus());
  ASSERT_NE(cluster, nullptr);
  AnswerOfAKilledRank answer;
  ASSERT_NO_FATAL_FAILURE(KillARankInMidAnswer(*cluster, Request(600, 300), "winnow_local_sequences", &answer));
  EXPECT_LT(answer.tokens_at_kill, 250u) << "it was killed too late to matter";
  EXPECT_GE(answer.disturbed.Stat("reattach_count"), 1);
  EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_router_mismatched_tokens_total"), 0);
}

}  // namespace
}  // namespace winnow::e2e
