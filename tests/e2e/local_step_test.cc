// Dense decoding on a GPU, here one made of host memory (tests/support/host_gpu): steps run ahead of the host, and
// nothing but the metrics tells.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <vector>

#include "tests/e2e/disturbed_answers.h"
#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

Process::Environment HostGpus() {
  return {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}};
}

struct OneGpu {
  static Cluster::Options Options() {
    return {.flags = {"--device=cuda:0", "--selection=dense", "--budget=4096", "--max-context=4096", "--max-running=12",
                      "--prefix-cache=false"},
            .environment = HostGpus()};
  }
};

class LocalSteps : public SharedCluster<OneGpu> {
 protected:
  static double Count(const char* metric) { return cluster_->MetricsOf("inference-0").Value(metric); }
  static bool NothingIsLeft() {
    return WaitUntil(milliseconds(20'000), [] {
      return Count("winnow_num_requests_running") == 0 && Count("winnow_local_sequences") == 0 &&
             cluster_->MetricsOf("inference-0").Value("winnow_slot_pages", {{"state", "used"}}) == 0 &&
             cluster_->MetricsOf("cache-0").Value("winnow_kv_blocks", {{"state", "used"}}) == 0;
    });
  }
};

Json Request(size_t prompt_tokens, int max_tokens) {
  return GreedyRequest(DemoText(prompt_tokens, prompt_tokens), max_tokens);
}

// The same attended rows by the other way: what a budget covers attends to everything, and goes by frames.
TEST_F(LocalSteps, AnswersAreThoseOfStepsByFrames) {
  for (const size_t prompt : {1u, 40u, 700u}) {
    for (const double temperature : {0.0, 1.3}) {
      Json request = Request(prompt, 100);
      request["temperature"] = temperature;
      request["seed"] = 5;
      const double before = Count("winnow_local_steps_total");
      const Completion local = Complete(cluster_->http(), request);
      ASSERT_TRUE(local.ok()) << local.error;
      EXPECT_EQ(Count("winnow_local_steps_total") - before, 99) << "the first token is the prompt's";
      request["winnow"] = {{"selection", "exact-token,budget=4096"}};
      const Completion by_frames = Complete(cluster_->http(), request);
      ASSERT_TRUE(by_frames.ok()) << by_frames.error;
      EXPECT_EQ(Count("winnow_local_steps_total") - before, 99);
      EXPECT_EQ(local.ids, by_frames.ids) << prompt << " tokens, temperature " << temperature;
      EXPECT_EQ(local.Stat("decode_steps"), by_frames.Stat("decode_steps"));
    }
  }
}

TEST_F(LocalSteps, AnswersAreTheSameAloneOrAmongOthersThatComeAndGo) {
  constexpr int kRequests = 14;  // more than run at a time
  std::vector<Json> requests;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(Request(30 + 97 * i % 800, 20 + 31 * i % 120));
    if (i % 3 == 1) requests.back().update(Json{{"temperature", 1.1}, {"seed", i}});
    if (i % 5 == 2) requests.back()["logprobs"] = 2;                                  // the host chooses
    if (i % 5 == 3) requests.back()["presence_penalty"] = 0.7;                        // likewise
    if (i % 5 == 4) requests.back()["guided_regex"] = "([a-z]{1,5}[ ,]){600}";        // and the next step waits
    if (i % 7 == 4) requests.back()["winnow"] = {{"selection", "winnow,budget=64"}};  // by frames
  }
  std::vector<TokenIds> alone;
  for (const Json& request : requests) {
    const Completion completion = Complete(cluster_->http(), request);
    ASSERT_TRUE(completion.ok()) << completion.error;
    ASSERT_EQ(completion.ids.size(), request.at("max_tokens").get<size_t>());
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
  EXPECT_TRUE(NothingIsLeft());
}

// Long prompts that arrive one after the other beside answers of all kinds of draws.
TEST_F(LocalSteps, AnswersGoOnBesidePromptsAndStayWhatTheyAreAlone) {
  std::vector<Json> answers, prompts;
  for (int i = 0; i < 4; ++i) answers.push_back(Request(50 + 40 * i, 400));
  answers[1].update(Json{{"temperature", 1.2}, {"seed", 3}});
  answers[2]["presence_penalty"] = 0.7;                  // the host chooses
  answers[3]["guided_regex"] = "([a-z]{1,5}[ ,]){600}";  // and the next step's draw waits
  for (int i = 0; i < 3; ++i) prompts.push_back(Request(2500 + i, 2));
  std::vector<TokenIds> alone;
  for (const auto* requests : {&answers, &prompts}) {
    for (const Json& request : *requests) {
      const Completion completion = Complete(cluster_->http(), request);
      ASSERT_TRUE(completion.ok()) << completion.error;
      alone.push_back(completion.ids);
    }
  }
  const double before = Count("winnow_local_steps_beside_prompts_total");
  std::vector<std::future<Completion>> together;
  for (const auto* requests : {&answers, &prompts}) {
    for (const Json& request : *requests) {
      together.push_back(std::async(std::launch::async, [&] { return Complete(cluster_->http(), request); }));
    }
  }
  for (size_t i = 0; i < together.size(); ++i) {
    const Completion completion = together[i].get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, alone[i]) << "request " << i;
  }
  EXPECT_GT(Count("winnow_local_steps_beside_prompts_total"), before);
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(LocalSteps, AConstrainedOutputIsThatOfStepsByFrames) {
  Json request = Request(200, 150);
  request["guided_regex"] = "([a-z]{1,6}[ ,.]){20,40}";
  request["temperature"] = 1.2;
  request["seed"] = 8;
  const Completion local = Complete(cluster_->http(), request);
  ASSERT_TRUE(local.ok()) << local.error;
  EXPECT_GT(local.ids.size(), 20u);
  request["winnow"] = {{"selection", "exact-token,budget=4096"}};
  const Completion by_frames = Complete(cluster_->http(), request);
  EXPECT_EQ(local.ids, by_frames.ids);
  EXPECT_EQ(local.text, by_frames.text);
}

TEST_F(LocalSteps, AStopTokenEndsAnAnswerThoughTheNextStepHasBegun) {
  v1::GenerateRequest request = SamplesOf("", DemoText(300), 1, 60);
  GenerationClient client(*cluster_);
  const Answer whole = client.Generate(request)->Finish();
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  const TokenIds& ids = whole.ids();
  size_t end = 20;  // of a token that has not come before
  while (end + 5 < ids.size() && std::find(ids.begin(), ids.begin() + end, ids[end]) != ids.begin() + end) ++end;
  ASSERT_LT(end + 5, ids.size());
  const double dropped = Count("winnow_local_rows_dropped_total");
  request.add_stop_token_ids(ids[end]);
  const Answer stopped = client.Generate(request)->Finish();
  ASSERT_TRUE(stopped.status.ok()) << stopped.status.error_message();
  EXPECT_EQ(stopped.outputs.at(0).reason, v1::FINISH_REASON_STOP);
  EXPECT_EQ(stopped.usage.completion_tokens(), end + 1);
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] { return Count("winnow_local_rows_dropped_total") == dropped + 1; }))
      << "the row that followed the stop token";
}

TEST_F(LocalSteps, WhatIsCancelledInFlightLeavesNothingBehind) {
  const Json request = Request(200, 400);
  std::vector<std::future<Completion>> cut;
  for (size_t i = 0; i < 5; ++i) {
    cut.push_back(std::async(std::launch::async, [&, i] {
      return StreamCompletion(cluster_->http(), request, [i](size_t tokens) { return tokens < 3 + 5 * i; });
    }));
  }
  const Completion beside = Complete(cluster_->http(), Request(90, 150));
  for (auto& completion : cut) completion.get();
  EXPECT_TRUE(NothingIsLeft());
  EXPECT_EQ(Complete(cluster_->http(), Request(90, 150)).ids, beside.ids);
}

TEST_F(LocalSteps, SamplesAndForksAreThoseOfSequencesOnTheirOwn) {
  constexpr uint32_t kSamples = 5;
  v1::GenerateRequest request = SamplesOf("", DemoText(500, 70), kSamples, 40);
  GenerationClient client(*cluster_);
  const Answer together = client.Generate(request)->Finish();
  ASSERT_TRUE(together.status.ok()) << together.status.error_message();
  ExpectSamplesAreThoseAlone(client, request, together);

  request.set_n(1);
  request.mutable_sampling()->set_sample_index(0);
  request.set_max_tokens(300);
  const Answer undisturbed = client.Generate(request)->Finish();
  ASSERT_TRUE(undisturbed.status.ok());
  request.set_request_id("source");
  const auto source = client.Generate(request);
  ASSERT_TRUE(source->ReadUntil(10));
  v1::ForkRequest fork;
  fork.set_source_request_id(request.request_id());
  fork.set_sample_index(0);
  const Answer twin = client.Fork(fork)->Finish();
  ASSERT_TRUE(twin.status.ok()) << twin.status.error_message();
  EXPECT_EQ(source->Finish().ids(), undisturbed.ids());
  TokenIds joined(undisturbed.ids().begin(), undisturbed.ids().begin() + twin.accepted.forked_tokens());
  joined.insert(joined.end(), twin.ids().begin(), twin.ids().end());
  EXPECT_EQ(joined, undisturbed.ids()) << "the same random numbers from token " << twin.accepted.forked_tokens()
                                       << " on";
}

// With slices so short that answers lose their slots again and again.
TEST(LocalStepsOfManySequences, PreemptionAtAnyStepChangesNoAnswer) {
  const auto cluster =
      StartOrFail({"--device=cuda:0", "--selection=dense", "--max-context=1024", "--max-running=2", "--age-bound=30ms"},
                  HostGpus());
  ASSERT_NE(cluster, nullptr);
  const std::vector<Json> requests = {Request(300, 120), Request(301, 120), Request(302, 120), Request(303, 120)};
  ExpectPreemptionChangesNothing(*cluster, requests, IdsAlone(*cluster, requests));
  const auto sequences = [&](const char* outcome) {
    return cluster->MetricsOf("inference-0").Value("winnow_rank_sequences_total", {{"outcome", outcome}});
  };
  EXPECT_EQ(sequences("failed"), 0);
  EXPECT_EQ(sequences("fenced"), 0) << "a sequence was preempted while frames of it were under way";
}

TEST(LocalStepsOfTwoRanks, AKilledRankLeavesNoTraceInAnAnswer) {
  const auto cluster =
      StartOrFail({"--device=cuda", "--selection=dense", "--inference-ranks=2", "--max-context=2048"}, HostGpus());
  ASSERT_NE(cluster, nullptr);
  AnswerOfAKilledRank answer;
  ASSERT_NO_FATAL_FAILURE(KillARankInMidAnswer(*cluster, Request(600, 400), "winnow_local_sequences", &answer));
  EXPECT_LT(answer.tokens_at_kill, 350u) << "it was killed too late to matter";
  EXPECT_GE(answer.disturbed.Stat("reattach_count"), 1);
  const Metrics router = cluster->MetricsOf("router-0");
  EXPECT_EQ(router.Value("winnow_failovers_total", {{"mode", "reattach"}}), 1);
  EXPECT_EQ(router.Value("winnow_router_mismatched_tokens_total"), 0);
}

}  // namespace
}  // namespace winnow::e2e
