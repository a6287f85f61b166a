// KV rows of int8 in the slots of a GPU, here one made of host memory (tests/support/host_gpu): an answer depends on
// its request alone, whatever decodes beside it and wherever its rows come from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/e2e/disturbed_answers.h"
#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr const char* kSelection = "--selection=winnow,budget=128,recent=32";
constexpr int kTokens = 40;

Process::Environment HostGpus() {
  return {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}};
}

std::unique_ptr<Cluster> StartWith(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--kv-dtype=int8", "--max-context=2048"});
  return StartOrFail(std::move(flags), HostGpus());
}

Json Request(size_t prompt_tokens, int max_tokens, const char* selection = nullptr) {
  Json request = GreedyRequest(DemoText(prompt_tokens, prompt_tokens), max_tokens);
  if (selection != nullptr) request["winnow"] = {{"selection", selection}};
  return request;
}

struct OneGpu {
  static Cluster::Options Options() {
    return {.flags = {"--device=cuda:0", "--kv-dtype=int8", "--max-context=2048", "--max-running=10",
                      "--select-in-place=on", kSelection},
            .environment = HostGpus()};
  }
};

// What is selected where it lies, by every scorer, what a cache rank selects, and what is attended to whole.
const std::vector<const char*> kSelections = {"dense",
                                              "winnow,budget=128,recent=32",
                                              "exact-token,budget=64",
                                              "depth,budget=100",
                                              "winnow,key_copy=none,budget=96",
                                              "async-token,budget=64",
                                              "winnow,min_captured_mass=0.9,budget=64"};

class Int8RowsOnAGpu : public SharedCluster<OneGpu> {
 protected:
  static double Count(const char* metric) { return cluster_->MetricsOf("inference-0").Value(metric); }
};

TEST_F(Int8RowsOnAGpu, AreAttendedToAndSelectedWhereTheyLie) {
  for (const char* selection : {"dense", "winnow,budget=128,recent=32"}) {
    const double before = Count("winnow_local_steps_total");
    const Completion answer = Complete(cluster_->http(), Request(700, 60, selection));
    ASSERT_TRUE(answer.ok()) << answer.error;
    EXPECT_EQ(Count("winnow_local_steps_total") - before, 59) << selection;
    EXPECT_EQ(answer.Stat("streamed_rows"), 0) << selection;
  }
}

TEST_F(Int8RowsOnAGpu, GiveTheSameAnswersAloneInABatchAndFromAPrefix) {
  std::vector<TokenIds> alone;
  for (size_t i = 0; i < kSelections.size(); ++i) {
    const Completion completion = Complete(cluster_->http(), Request(600 + 70 * i, kTokens, kSelections[i]));
    ASSERT_TRUE(completion.ok()) << kSelections[i] << ": " << completion.error;
    alone.push_back(completion.ids);
  }
  // Their prompts are there now, in slots and on the cache rank.
  std::vector<std::future<Completion>> together;
  for (size_t i = 0; i < kSelections.size(); ++i) {
    together.push_back(std::async(std::launch::async, [i] {
      return Complete(cluster_->http(), Request(600 + 70 * i, kTokens, kSelections[i]));
    }));
  }
  for (size_t i = 0; i < kSelections.size(); ++i) {
    const Completion completion = together[i].get();
    ASSERT_TRUE(completion.ok()) << kSelections[i] << ": " << completion.error;
    EXPECT_EQ(completion.ids, alone[i]) << kSelections[i];
    EXPECT_GE(completion.usage.at("prompt_tokens_details").at("cached_tokens").get<int>(), 400) << kSelections[i];
  }
  EXPECT_GT(Count("winnow_resident_prefix_hits_total"), 0);
}

// Prompts cut otherwise, rows that come back from the cache rank, and steps that all go by frames.
TEST_F(Int8RowsOnAGpu, GiveTheSameAnswersWhereverTheyComeFrom) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--device=cuda:0", kSelection, "--select-in-place=off"},
        {"--device=cuda", kSelection, "--select-in-place=on", "--prefill-ranks=1", "--decode-ranks=1"},
        {"--device=cuda:0", kSelection, "--select-in-place=on", "--cache-ranks=2", "--cache-shards=2"}}) {
    SCOPED_TRACE(flags.back());
    const auto other = StartWith(flags);
    ASSERT_NE(other, nullptr);
    for (const char* selection : {"dense", "exact-token,budget=64"}) {
      const Completion here = Complete(cluster_->http(), Request(900, kTokens, selection));
      const Completion there = Complete(other->http(), Request(900, kTokens, selection));
      ASSERT_TRUE(here.ok() && there.ok()) << here.error << there.error;
      EXPECT_EQ(there.ids, here.ids) << selection;
    }
  }
}

TEST_F(Int8RowsOnAGpu, AreForkedWithTheirSequence) {
  GenerationClient client(*cluster_);
  const v1::GenerateRequest request = SamplesOf("winnow", DemoText(700, 300), 3, kTokens);
  const Answer together = client.Generate(request)->Finish();
  ASSERT_TRUE(together.status.ok()) << together.status.error_message();
  ExpectSamplesAreThoseAlone(client, request, together);
}

TEST(Int8RowsOfManySequences, PreemptionAtAnyStepChangesNoAnswer) {
  const auto cluster =
      StartWith({"--device=cuda:0", kSelection, "--select-in-place=on", "--max-running=2", "--age-bound=100ms"});
  ASSERT_NE(cluster, nullptr);
  const std::vector<Json> requests = {Request(250, 60), Request(251, 60), Request(252, 60), Request(253, 60)};
  ExpectPreemptionChangesNothing(*cluster, requests, IdsAlone(*cluster, requests));
}

TEST(Int8RowsOfTwoRanks, AKilledRankLeavesNoTraceInAnAnswer) {
  const auto cluster = StartWith({"--device=cuda", kSelection, "--select-in-place=on", "--inference-ranks=2"});
  ASSERT_NE(cluster, nullptr);
  AnswerOfAKilledRank answer;
  KillARankInMidAnswer(*cluster, Request(600, 300), "winnow_local_sequences", &answer);
}

// Of the same memory twice the sequences, less what rows have beside their codes.
TEST(Int8RowsInSlots, TakeAboutHalfTheSlotsMemory) {
  const auto slot_pages = [](const std::string& kv_dtype) {
    const auto cluster = StartOrFail(
        {"--device=cuda:0", "--selection=dense", "--kv-dtype=" + kv_dtype, "--max-context=2048", "--slot-memory=64MiB"},
        HostGpus());
    if (cluster == nullptr) return 0.0;
    return cluster->MetricsOf("inference-0").Value("winnow_slot_pages", {{"state", "free"}});
  };
  const double bf16 = slot_pages("bf16"), int8 = slot_pages("int8");
  ASSERT_GT(bf16, 0);
  EXPECT_NEAR(int8 / bf16, 256.0 / (128 + 8), 0.01);
}

TEST(Int8RowsOnGpus, AreRefusedByNameWhereTheyCannotBeServed) {
  const auto failure_of = [](std::vector<std::string> flags) {
    std::vector<std::string> arguments = {WinnowBinary(),           "up",
                                          "--model=" + DemoModel(), "--http=127.0.0.1:0",
                                          "--grpc=127.0.0.1:0",     "--metrics=127.0.0.1:0",
                                          "--kv-dtype=int8"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    Process up(arguments, HostGpus());
    EXPECT_EQ(up.Wait(milliseconds(20'000)), 2);
    return up.Log();
  };
  EXPECT_THAT(failure_of({"--device=cuda:0,1"}), HasSubstr("--tensor-parallel has several"));
  EXPECT_THAT(failure_of({"--device=cuda", "--slot-host-memory=1GiB"}), HasSubstr("--slot-host-memory"));
  EXPECT_THAT(failure_of({"--device=cuda:0", "--cache-device=cuda:1"}), HasSubstr("--cache-device"));
}

}  // namespace
}  // namespace winnow::e2e
