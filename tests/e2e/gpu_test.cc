// Clusters whose inference ranks compute on GPUs, here GPUs made of host memory (tests/support/host_gpu), with cache
// ranks on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <future>
#include <map>
#include <utility>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"
#include "tests/support/quantized_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// As for the CPU in golden_test.cc, and as much again because what enters a matrix is rounded to bf16, too.
constexpr double kLogitTolerance = 0.2;

Process::Environment HostGpus() {
  return {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}};
}

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags, Process::Environment environment = HostGpus()) {
  return StartOrFail(std::move(flags), std::move(environment));
}

// One GPU, or two that hold the model together.
struct Gpus {
  const char* device;
  const char* description;
};
class Gpu : public testing::TestWithParam<Gpus> {
 protected:
  static std::string Device() { return std::string("--device=") + GetParam().device; }
};
INSTANTIATE_TEST_SUITE_P(Devices, Gpu,
                         testing::Values(Gpus{"cuda", "computes on GPU 0"},
                                         Gpus{"cuda:0,1", "computes on GPUs 0 and 1"}),
                         [](const auto& gpus) { return gpus.index == 0 ? "One" : "TensorParallel"; });

TEST_P(Gpu, DenseAnswersAreThoseOfTheReference) {
  const auto cluster = StartCluster({Device(), "--selection=dense", "--max-running=4"});
  ASSERT_NE(cluster, nullptr);
  EXPECT_THAT(cluster->process().Log(), HasSubstr(GetParam().description));
  for (const GoldenCase& golden : DemoGolden()) {
    const Completion completion =
        Complete(cluster->http(), GreedyRequest(golden.prompt, static_cast<int>(golden.greedy.size())));
    ASSERT_TRUE(completion.ok()) << golden.name << ": " << completion.error;
    for (size_t step = 0; step < golden.greedy.size() && golden.margin[step] > 2 * kLogitTolerance; ++step) {
      ASSERT_EQ(completion.ids.at(step), golden.greedy[step]) << golden.name << ", step " << step;
    }
  }
}

// A selection, a query head's own lists, the guard's corrections: everything that a step waits for in host memory.
TEST_P(Gpu, AnswersAreTheSameAloneOrInABatch) {
  const auto cluster = StartCluster({Device(), "--budget=256", "--max-context=8192"});
  ASSERT_NE(cluster, nullptr);
  const auto request = [](const char* selection) {
    Json request = GreedyRequest(DemoCaseOfAtLeast(2000).prompt, 24);
    request["winnow"] = {{"selection", selection}};
    return request;
  };
  const char* const kSelections[] = {"winnow", "async-token", "lserve,profile_use=none,budget=256",
                                     "winnow,min_captured_mass=0.95"};
  std::vector<std::future<Completion>> together;
  std::map<std::string, TokenIds> alone;
  for (const char* selection : kSelections) {
    const Completion completion = Complete(cluster->http(), request(selection));
    if (completion.status == 400) continue;  // not a specification of this version
    ASSERT_TRUE(completion.ok()) << selection << ": " << completion.error;
    ASSERT_GT(completion.Stat("streamed_rows"), 0) << selection;
    alone[selection] = completion.ids;
  }
  for (const auto& [selection, ids] : alone) {
    together.push_back(std::async(std::launch::async,
                                  [&, name = selection] { return Complete(cluster->http(), request(name.c_str())); }));
  }
  size_t i = 0;
  for (const auto& [selection, ids] : alone) {
    const Completion completion = together[i++].get();
    EXPECT_EQ(completion.ids, ids) << selection << completion.error;
    // Rows of the prompt's first run come back into the GPU's memory, but not where heads stream.
    if (selection.starts_with("lserve")) continue;
    EXPECT_GT(completion.usage.at("prompt_tokens_details").at("cached_tokens").get<uint32_t>(), 1000u) << selection;
  }
}

// Weights that GPUs keep as stored, by groups of inputs, which a prompt and steps read differently.
TEST_P(Gpu, AnswersOfQuantisedWeightsAreTheSameAloneOrInABatch) {
  TinyModel model = QuantizableModel();
  model.head_dim = 64;
  model.max_position_embeddings = 2048;
  for (const QuantizedForm& form : QuantizedForms()) {
    if (form.name != std::string("Fp8Blocks") && form.name != std::string("Awq")) continue;
    const TempDir quantized, plain;
    WriteQuantizedCheckpoint(model, form, quantized.path(), plain.path());
    const absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(
        {.model = quantized.path(), .flags = {Device(), "--selection=dense"}, .environment = HostGpus()});
    ASSERT_TRUE(cluster.ok()) << form.name << ": " << cluster.status().message();
    std::vector<Json> requests;
    for (uint32_t first = 1; first <= 3; ++first) {
      TokenIds prompt(200 + 10 * first);
      for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<uint32_t>((first + i * i * 7) % 90);
      requests.push_back(GreedyRequest(prompt, 16));
    }
    std::vector<TokenIds> alone;
    for (const Json& request : requests) {
      const Completion completion = Complete((*cluster)->http(), request);
      ASSERT_TRUE(completion.ok()) << form.name << ": " << completion.error;
      alone.push_back(completion.ids);
    }
    std::vector<std::future<Completion>> together;
    for (const Json& request : requests) {
      together.push_back(std::async(std::launch::async, [&] { return Complete((*cluster)->http(), request); }));
    }
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(together[i].get().ids, alone[i]) << form.name << ", " << i;
  }
}

// With log probabilities the logits come to the host, which then draws; without them the GPU does.
TEST_P(Gpu, DrawsTheTokensThatTheHostWouldDraw) {
  const auto cluster = StartCluster({Device(), "--max-context=4096"});
  ASSERT_NE(cluster, nullptr);
  for (const Json& sampling : {Json{{"temperature", 1.2}}, Json{{"temperature", 2.0}, {"top_p", 0.9}},
                               Json{{"temperature", 1.5}, {"top_k", 7}}, Json{{"temperature", 1.5}, {"min_p", 0.02}},
                               Json{{"temperature", 0.0}}}) {
    Json request = GreedyRequest(DemoText(60), 40);
    request.update(sampling);
    request["seed"] = 11;
    const Completion drawn = Complete(cluster->http(), request);
    request["logprobs"] = 1;
    const Completion sampled = Complete(cluster->http(), request);
    ASSERT_TRUE(drawn.ok() && sampled.ok()) << drawn.error << sampled.error;
    EXPECT_EQ(drawn.ids, sampled.ids) << sampling.dump();
  }
}

TEST(GpuCluster, AFailedGpuEndsItsRankAndItsRequestsGoOnElsewhere) {
  const TempDir folder;
  const std::string fault = folder.path() + "/fault";
  Process::Environment environment = HostGpus();
  environment.emplace_back("WINNOW_HOST_GPU_FAULT", fault);
  const auto cluster =
      StartCluster({"--device=cuda", "--inference-ranks=2", "--budget=256", "--max-context=8192"}, environment);
  ASSERT_NE(cluster, nullptr);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("computes on GPU 1")) << "a GPU each";
  const Json request = GreedyRequest(DemoCaseOfAtLeast(1600).prompt, 60);
  const Completion undisturbed = Complete(cluster->http(), request);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.error;

  const std::vector<pid_t> ranks = cluster->Pids("inference-rank");
  ASSERT_EQ(ranks.size(), 2u);
  int failed = -1;
  const Completion disturbed = StreamCompletion(cluster->http(), request, [&](size_t tokens) {
    if (tokens < 10 || failed >= 0) return true;
    for (int rank = 0; rank < 2; ++rank) {
      if (cluster->MetricsOf("inference-" + std::to_string(rank)).Value("winnow_num_requests_running") > 0)
        failed = rank;
    }
    if (failed >= 0) std::ofstream(fault) << ranks[failed];
    return true;
  });
  ASSERT_GE(failed, 0) << "no rank was caught at work";
  EXPECT_TRUE(disturbed.ok()) << disturbed.error;
  EXPECT_EQ(disturbed.ids, undisturbed.ids);
  EXPECT_GE(disturbed.Stat("reattach_count"), 1);
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] { return !IsAlive(ranks[failed]); }));
  const std::string log = cluster->process().Log();
  EXPECT_THAT(log, HasSubstr("GPU failure"));
  EXPECT_THAT(log, HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_THAT(log, HasSubstr("last work: decode of 1 rows"));
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] { return cluster->Pids("inference-rank").size() == 2; }))
      << "it has not been started again";
}

// Two tiers are the cache rank's affair: beside a GPU that computes, with a GPU of its own, and in the same process.
TEST(Gpu, FastMemoryOfACacheRankChangesNoAnswer) {
  const std::vector<std::string> kPlacements[] = {
      {"--selection=winnow", "--cache-device=cpu", "--transport=ucx"},
      {"--selection=depth", "--cache-device=cuda:1", "--transport=p2p"},
      {"--selection=sparseserve", "--transport=inproc"},
  };
  const Json request = GreedyRequest(DemoCaseOfAtLeast(2000).prompt, 24);
  for (const std::vector<std::string>& placement : kPlacements) {
    TokenIds one_tier;
    for (const char* fast_memory : {"0", "6MiB"}) {
      std::vector<std::string> flags = placement;
      flags.insert(flags.end(), {"--device=cuda", "--select-in-place=off", "--budget=256", "--max-context=4096",
                                 std::string("--fast-memory=") + fast_memory});
      const auto cluster = StartCluster(flags);
      ASSERT_NE(cluster, nullptr) << placement[1];
      const Completion completion = Complete(cluster->http(), request);
      ASSERT_TRUE(completion.ok()) << placement[1] << ": " << completion.error;
      const double peer_steps = cluster->MetricsOf("inference-0").Value("winnow_peer_steps_total");
      ASSERT_GT(completion.Stat("streamed_rows") + peer_steps, 0) << placement[1];
      if (one_tier.empty()) {
        one_tier = completion.ids;
      } else {
        EXPECT_EQ(completion.ids, one_tier) << placement[1];
      }
    }
  }
}

// What `winnow up` says before it ends: with 1 as a process of it failed, with 2 for options that cannot be.
std::string FailureOf(std::vector<std::string> flags, const Process::Environment& environment, int code = 1) {
  std::vector<std::string> arguments = {WinnowBinary(),           "up",
                                        "--model=" + DemoModel(), "--http=127.0.0.1:0",
                                        "--grpc=127.0.0.1:0",     "--metrics=127.0.0.1:0"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  Process up(arguments, environment);
  EXPECT_EQ(up.Wait(milliseconds(20'000)), code);
  return up.Log();
}

TEST(GpuCluster, WhatIsAskedForAndCannotBeIsSaid) {
  const Process::Environment none = {{"WINNOW_CUDA_PLUGIN", "/no/such/plugin.so"}};
  EXPECT_THAT(FailureOf({"--device=cuda"}, none),
              HasSubstr("--device=cuda: no CUDA: there is no file /no/such/plugin.so"));
  EXPECT_THAT(FailureOf({"--device=cuda:7"}, HostGpus()), HasSubstr("GPU 7 was asked for, and there are 6"));
  EXPECT_THAT(FailureOf({"--device=cuda", "--kv-dtype=f32"}, HostGpus(), /*code=*/2),
              HasSubstr("--kv-dtype=f32: on GPUs KV rows are bf16 or int8"));
  EXPECT_THAT(FailureOf({"--device=cuda", "--compute=f32"}, HostGpus()), HasSubstr("on GPUs weights are bf16 or fp8"));
  EXPECT_THAT(FailureOf({"--device=cuda:5", "--tensor-parallel=2"}, HostGpus()),
              HasSubstr("--tensor-parallel=2: GPU 6 was asked for, and there are 6"));
  EXPECT_THAT(FailureOf({"--device=cuda", "--tensor-parallel=4"}, HostGpus()),
              HasSubstr(DemoModel() + ": 4 GPUs cannot share 4 query heads, 2 kv heads"));
  EXPECT_THAT(FailureOf({"--tensor-parallel=2"}, none), HasSubstr("no CUDA")) << "CPUs do not stand in for two GPUs";
}

// The KV of a sequence does not depend on how many GPUs hold the model; the last bits of what they compute do.
TEST(GpuCluster, ARankOfOneGpuGoesOnForOneOfTwoAndSaysThatBitsMayDiffer) {
  const auto cluster = StartCluster({"--device=cuda:0,1", "--budget=256", "--max-context=8192"});
  ASSERT_NE(cluster, nullptr);
  Process other({WinnowBinary(), "inference-rank", "--model=" + DemoModel(), "--router=" + cluster->grpc_address(),
                 "--rank=inference-of-one", "--device=cuda:2", "--budget=256", "--max-context=8192"},
                HostGpus());
  ASSERT_TRUE(WaitUntil(milliseconds(30'000), [&] {
    return cluster->MetricsOf("router-0").Value("winnow_router_ranks", {{"kind", "inference"}}) == 2;
  })) << other.Log();
  const Json request = GreedyRequest(DemoCaseOfAtLeast(1600).prompt, 60);
  bool killed = false;
  const Completion completion = StreamCompletion(cluster->http(), request, [&](size_t tokens) {
    if (tokens < 20 || std::exchange(killed, true)) return true;
    const bool two = cluster->MetricsOf("inference-0").Value("winnow_num_requests_running") > 0;
    kill(two ? cluster->Pids("inference-rank").at(0) : other.pid(), SIGKILL);
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_TRUE(killed);
  EXPECT_EQ(completion.ids.size(), 60u);
  EXPECT_GE(completion.Stat("reattach_count"), 1);
  EXPECT_TRUE(completion.usage.at("winnow").at("not_identical").get<bool>());
  EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_router_not_identical_total"), 1);
}

TEST(GpuCluster, WhatDoesNotFitIsAddedUpBeforeAnythingIsLoaded) {
  Process rank({WinnowBinary(), "inference-rank", "--model=" + DemoModel(), "--device=cuda", "--slot-memory=20GiB"},
               HostGpus());
  EXPECT_EQ(rank.Wait(milliseconds(20'000)), 1);
  EXPECT_THAT(rank.Log(),
              HasSubstr("--device=cuda: the model does not fit: weights 14.0 MiB + resident KV 20480.0 MiB"));
  EXPECT_THAT(rank.Log(), HasSubstr("of 7168.0 MiB of the memory of GPU 0 available"));
}

TEST(GpuCluster, AutoComputesOnTheCpuAndSaysWhy) {
  const auto cluster = StartCluster({}, {{"WINNOW_CUDA_PLUGIN", "/no/such/plugin.so"}});
  ASSERT_NE(cluster, nullptr);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("(--device=auto: no CUDA: there is no file /no/such/plugin.so"));
  const auto other = StartCluster({"--kv-dtype=f32"});
  ASSERT_NE(other, nullptr);
  EXPECT_THAT(other->process().Log(), HasSubstr("kernels (--device=auto: --kv-dtype=f32: on GPUs KV rows are bf16"));
}

}  // namespace
}  // namespace winnow::e2e
