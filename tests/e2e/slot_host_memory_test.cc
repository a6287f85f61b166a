// Rows in host memory behind the slots of a GPU, here one made of host memory (tests/support/host_gpu): more sequences
// and longer ones than its memory holds, and the answers of a rank that has room for all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <vector>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

Process::Environment HostGpus() {
  return {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}};
}

// A token of the demo model has 4 KiB of rows: 1,536 tokens lie in front of 6,144.
constexpr const char* kSparse = "winnow,budget=64,pool_factor=2,recent=32";

std::vector<std::string> Flags(std::vector<std::string> more) {
  std::vector<std::string> flags = {"--device=cuda:0", "--selection=winnow,budget=128,pool_factor=2,recent=32",
                                    "--select-in-place=on", "--max-context=2048", "--max-running=10"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

struct Tiered {
  static Cluster::Options Options() {
    return {.flags = Flags({"--slot-memory=6MiB", "--slot-host-memory=24MiB"}), .environment = HostGpus()};
  }
};

class SlotHostMemory : public SharedCluster<Tiered> {
 protected:
  static double Rank(const char* metric) { return cluster_->MetricsOf("inference-0").Value(metric); }
  static double HostPagesUsed() {
    return cluster_->MetricsOf("inference-0").Value("winnow_host_slot_pages", {{"state", "used"}});
  }
  // Answers of a rank with all rows in the GPU's memory.
  static TokenIds Expected(const Json& request) {
    static const auto* const roomy = StartOrFail(Flags({}), HostGpus()).release();
    const Completion completion = Complete(roomy->http(), request);
    EXPECT_TRUE(completion.ok()) << completion.error;
    return completion.ids;
  }
  static void ExpectNothingIsUsed() {
    EXPECT_TRUE(WaitUntil(milliseconds(20'000), [] {
      return HostPagesUsed() == 0 &&
             cluster_->MetricsOf("inference-0").Value("winnow_slot_pages", {{"state", "used"}}) == 0;
    }));
  }
};

Json Request(size_t prompt_tokens, int max_tokens, const char* selection, size_t from) {
  Json request = GreedyRequest(DemoText(prompt_tokens, from), max_tokens);
  request["winnow"] = {{"selection", selection}};
  return request;
}

// Greatest number of host pages seen while `requests` run together; their answers are those expected.
template <typename Seen>
double RunTogether(const HttpClient& http, const std::vector<Json>& requests, const std::vector<TokenIds>& expected,
                   const Seen& seen) {
  std::vector<std::future<Completion>> together;
  for (const Json& request : requests) {
    together.push_back(std::async(std::launch::async, [&] { return Complete(http, request); }));
  }
  double most = 0;
  for (size_t i = 0; i < together.size(); ++i) {
    while (together[i].wait_for(milliseconds(10)) != std::future_status::ready) most = std::max(most, seen());
    const Completion completion = together[i].get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, expected[i]) << "request " << i;
  }
  return most;
}

TEST_F(SlotHostMemory, AnswersAreThoseOfRowsInTheGpusMemory) {
  const char* const selections[] = {kSparse,
                                    "winnow,budget=100",
                                    "exact-token,budget=64",
                                    "dense",
                                    "winnow,predictor=depth,budget=64",
                                    "winnow,epsilon=0.2,budget=128"};
  std::vector<Json> requests;
  std::vector<TokenIds> expected;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(Request(800 + 61 * i, 30 + 7 * i, selections[i], 100 * i));
    expected.push_back(Expected(requests.back()));
    ASSERT_FALSE(expected.back().empty());
  }
  const double lookups = Rank("winnow_selection_lookups_total"), hits = Rank("winnow_selection_hits_total");
  EXPECT_GT(RunTogether(cluster_->http(), requests, expected, HostPagesUsed), 0);
  EXPECT_GT(Rank("winnow_local_steps_total"), 0);
  // Rows that are selected again are where the steps before have put them.
  const double more_lookups = Rank("winnow_selection_lookups_total") - lookups;
  EXPECT_GT(Rank("winnow_selection_hits_total") - hits, 0.2 * more_lookups);
  EXPECT_LT(Rank("winnow_selection_hits_total") - hits, more_lookups);
  ExpectNothingIsUsed();
}

TEST_F(SlotHostMemory, SequencesThatReadEveryRowWaitForTheGpusMemory) {
  std::vector<Json> requests;
  std::vector<TokenIds> expected;
  for (int i = 0; i < 6; ++i) {
    const char* const selection = i % 2 == 0 ? "dense" : "exact-token,budget=64";
    requests.push_back(Request(800 + 20 * i, 30, selection, 50 * i));
    expected.push_back(Expected(requests.back()));
  }
  EXPECT_EQ(RunTogether(cluster_->http(), requests, expected, HostPagesUsed), 0);
}

// 1,800 tokens, of which 1,536 could be there at most.
TEST_F(SlotHostMemory, OneThatItCouldNeverHoldIsServedAllTheSame) {
  for (const char* const selection : {"dense", kSparse}) {
    const Json request = Request(1800, 30, selection, 7);
    const std::vector<TokenIds> expected = {Expected(request)};
    EXPECT_GT(RunTogether(cluster_->http(), {request}, expected, HostPagesUsed), 0) << selection;
  }
  ExpectNothingIsUsed();
}

// What reads every row gets them into the GPU's memory although they lie in the host's already.
TEST_F(SlotHostMemory, RowsThatLieThereAreNotSharedWithSequencesThatReadAllOfThem) {
  Json request = Request(1300, 12, kSparse, 5000);
  EXPECT_GT(RunTogether(cluster_->http(), {request}, {Expected(request)}, HostPagesUsed), 0);
  ExpectNothingIsUsed();
  request["winnow"] = {{"selection", "dense"}};
  request["max_tokens"] = 60;
  EXPECT_EQ(RunTogether(cluster_->http(), {request}, {Expected(request)}, HostPagesUsed), 0);
}

TEST_F(SlotHostMemory, WhatStaysThereIsFoundAgain) {
  const Json request = Request(1700, 12, kSparse, 900), other = Request(1700, 12, kSparse, 3000);
  const TokenIds expected = Expected(request);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Complete(cluster_->http(), request).ids, expected);
    EXPECT_EQ(Complete(cluster_->http(), other).ids, Expected(other));
  }
  EXPECT_GE(Rank("winnow_resident_prefix_hits_total"), 1);
}

TEST(SlotHostMemoryOfManySequences, PreemptionChangesNoAnswer) {
  const auto tiered = StartOrFail(
      Flags({"--slot-memory=4MiB", "--slot-host-memory=6MiB", "--age-bound=100ms", "--max-context=1024"}), HostGpus());
  const auto roomy = StartOrFail(Flags({}), HostGpus());
  ASSERT_TRUE(tiered != nullptr && roomy != nullptr);
  std::vector<Json> requests;
  std::vector<TokenIds> expected;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(Request(700 + i, 60, kSparse, 10 * i));
    expected.push_back(Complete(roomy->http(), requests.back()).ids);
  }
  const auto preempted = [&] {
    return tiered->MetricsOf("inference-0").Value("winnow_rank_sequences_total", {{"outcome", "preempted"}});
  };
  for (int round = 0; round < 10 && preempted() < 4; ++round) {
    RunTogether(tiered->http(), requests, expected, preempted);
  }
  EXPECT_GE(preempted(), 4);
}

TEST(SlotHostMemoryAtStart, WhatIsNotBuiltIsRefusedByName) {
  struct Case {
    std::vector<std::string> flags;
    const char* says;
  };
  for (const Case& wrong : {Case{{"--device=cpu"}, "computes on the CPU"},
                            Case{{"--device=cuda:0", "--select-in-place=off"}, "--select-in-place=off"},
                            Case{{"--device=cuda", "--tensor-parallel=2"}, "--tensor-parallel"},
                            Case{{"--device=cuda:0", "--slot-memory=1MiB", "--max-context=2048"}, "cannot hold one"}}) {
    std::vector<std::string> command = {WinnowBinary(), "inference-rank", "--model=" + DemoModel(),
                                        "--router=127.0.0.1:1", "--slot-host-memory=64MiB"};
    command.insert(command.end(), wrong.flags.begin(), wrong.flags.end());
    Process rank(command, HostGpus());
    EXPECT_EQ(rank.Wait(milliseconds(20'000)), 1);
    EXPECT_THAT(rank.Log(), HasSubstr("--slot-"));
    EXPECT_THAT(rank.Log(), HasSubstr(wrong.says));
  }
}

}  // namespace
}  // namespace winnow::e2e
