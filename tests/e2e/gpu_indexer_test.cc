// Models that bring an indexer of their own, on a GPU, here one made of host memory (tests/support/host_gpu): its
// selections, made in the step's graph, are those that a cache rank makes of the same queries, and what a cluster does
// with a sequence changes none of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/completion.h"
#include "tests/e2e/generation_calls.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::e2e {
namespace {

constexpr int kTopK = 48;  // of tiny checkpoints

class GpuIndexer : public testing::TestWithParam<ModelFamily> {
 protected:
  void SetUp() override {
    WriteTinyCheckpoint({.family = GetParam(),
                         .num_layers = 3,
                         .hidden_size = 96,
                         .max_position_embeddings = 2048,
                         .extra_fields = {{"index_n_heads", 19}}},
                        directory_.path());
  }
  std::unique_ptr<Cluster> Start(const std::vector<std::string>& flags = {}) const {
    Cluster::Options options{.model = directory_.path(),
                             .flags = {"--device=cuda:0", "--max-context=1024", "--max-running=6"},
                             .environment = {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}}};
    options.flags.insert(options.flags.end(), flags.begin(), flags.end());
    absl::StatusOr<std::unique_ptr<Cluster>> started = Cluster::Start(options);
    EXPECT_TRUE(started.ok()) << started.status().message();
    return started.ok() ? *std::move(started) : nullptr;
  }
  static Json Request(uint32_t prompt_tokens, uint32_t seed, const Json& selection, int max_tokens = 24) {
    TokenIds prompt;
    for (uint32_t i = 0; i < prompt_tokens; ++i) prompt.push_back((seed + i * i * 7 + i / 3) % 96);
    Json request = GreedyRequest(prompt, max_tokens);
    request["logprobs"] = 1;
    if (!selection.is_null()) request["winnow"] = selection;
    return request;
  }
  static Completion Ask(const Cluster& cluster, const Json& request) {
    Completion completion = Complete(cluster.http(), request);
    EXPECT_TRUE(completion.ok()) << completion.error;
    return completion;
  }
  static Json LogProbs(const Completion& completion) {
    return completion.ok() ? completion.choice.at("logprobs").at("token_logprobs") : Json();
  }

  const TempDir directory_;
};

const Json kNative = {{"selection", "native"}}, kFewer = {{"selection", "native"}, {"budget", 16}},
           kDense = {{"selection", "dense"}};

// Prompts end before, at and behind the number of positions that is selected.
TEST_P(GpuIndexer, SelectsInPlaceWhatACacheRankSelects) {
  const auto in_place = Start(), layered = Start({"--prefill=layered"}), by_frames = Start({"--select-in-place=off"});
  ASSERT_TRUE(in_place != nullptr && layered != nullptr && by_frames != nullptr);
  for (const uint32_t prompt : {3u, 30u, 47u, 48u, 400u, 700u}) {
    for (const Json& selection : {Json(), kNative, kFewer, kDense}) {
      SCOPED_TRACE(selection.dump() + " behind " + std::to_string(prompt));
      const Json request = Request(prompt, prompt, selection);
      const Completion here = Ask(*in_place, request), there = Ask(*by_frames, request);
      EXPECT_EQ(here.ids, there.ids);
      EXPECT_EQ(LogProbs(here), LogProbs(there));
      EXPECT_EQ(LogProbs(Ask(*layered, request)), LogProbs(here));
      EXPECT_EQ(here.Stat("streamed_rows"), 0);
      EXPECT_EQ(there.Stat("streamed_rows") > 0, selection != kDense && prompt > kTopK);
    }
  }
  EXPECT_GT(in_place->MetricsOf("inference-0").Value("winnow_local_steps_total"), 0);
  for (const auto* cluster : {&in_place, &layered, &by_frames}) EXPECT_TRUE((*cluster)->Stop().ok());
}

TEST_P(GpuIndexer, WhatStepsDoNotServeGoesByFrames) {
  for (const char* selection : {"native,dense_below_tokens=200", "native,reuse_interval=3"}) {
    const auto cluster = Start({std::string("--selection=") + selection});
    ASSERT_NE(cluster, nullptr);
    EXPECT_GT(Ask(*cluster, Request(400, 3, nullptr)).Stat("streamed_rows"), 0) << selection;
    EXPECT_TRUE(cluster->Stop().ok());
  }
}

TEST_P(GpuIndexer, AnswersAreTheSameAloneOrAmongOthers) {
  const auto cluster = Start();
  ASSERT_NE(cluster, nullptr);
  std::vector<Json> requests;
  for (uint32_t i = 0; i < 9; ++i) {
    requests.push_back(Request(10 + 60 * i, i, i % 3 == 0 ? kNative : i % 3 == 1 ? kDense : kFewer, 20 + 5 * i));
  }
  std::vector<Completion> alone;
  for (const Json& request : requests) alone.push_back(Ask(*cluster, request));
  std::vector<std::future<Completion>> together;
  for (const Json& request : requests) {
    together.push_back(std::async(std::launch::async, [&] { return Ask(*cluster, request); }));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const Completion answer = together[i].get();
    EXPECT_EQ(answer.ids, alone[i].ids) << "request " << i;
    EXPECT_EQ(LogProbs(answer), LogProbs(alone[i])) << "request " << i;
  }
  EXPECT_NE(LogProbs(Ask(*cluster, Request(400, 1, kNative))), LogProbs(Ask(*cluster, Request(400, 1, kDense))));
  EXPECT_TRUE(cluster->Stop().ok());
}

TEST_P(GpuIndexer, PreemptionChangesNoAnswer) {
  const auto cluster = Start({"--max-running=1", "--age-bound=20ms"});
  ASSERT_NE(cluster, nullptr);
  const auto request = [](uint32_t i) { return Request(200, 20 + i, kNative, 200); };
  const Completion alone[] = {Ask(*cluster, request(0)), Ask(*cluster, request(1))};
  double preempted = 0;
  for (int attempt = 0; attempt < 10 && preempted == 0; ++attempt) {
    std::future<Completion> other = std::async(std::launch::async, [&] { return Ask(*cluster, request(1)); });
    const Completion together[] = {Ask(*cluster, request(0)), other.get()};
    for (const int i : {0, 1}) {
      preempted += together[i].Stat("preempted_count");
      EXPECT_EQ(LogProbs(together[i]), LogProbs(alone[i])) << "request " << i;
    }
  }
  EXPECT_GT(preempted, 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

INSTANTIATE_TEST_SUITE_P(All, GpuIndexer, testing::Values(ModelFamily::kDeepseekV32, ModelFamily::kGlmMoeDsa),
                         [](const auto& info) { return std::string(ModelFamilyName(info.param)); });

}  // namespace
}  // namespace winnow::e2e
