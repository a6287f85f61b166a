// Mixtures of experts on a GPU, here one made of host memory (tests/support/host_gpu): what the GPU's forward pass does
// with them, and that who else is in a step changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/completion.h"
#include "tests/e2e/generation_calls.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::e2e {
namespace {

struct Model {
  const char* name;
  TinyModel model;
};
void PrintTo(const Model& value, std::ostream* out) {
  *out << value.name;
}

TokenIds Prompt(size_t tokens, uint32_t seed) {
  TokenIds ids;
  for (uint32_t i = 0; i < tokens; ++i) ids.push_back((seed + i * i * 7 + i / 3) % 96);
  return ids;
}

class GpuExperts : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    TinyModel model = GetParam().model;
    model.hidden_size = 96;
    model.head_dim = 64;
    model.max_position_embeddings = 4096;
    WriteTinyCheckpoint(model, directory_.path());
  }
  std::unique_ptr<Cluster> Start(const char* device) {
    absl::StatusOr<std::unique_ptr<Cluster>> started =
        Cluster::Start({.model = directory_.path(),
                        .flags = {std::string("--device=") + device, "--selection=dense", "--budget=2048",
                                  "--max-context=2048", "--max-running=6", "--prefix-cache=false"},
                        .environment = {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}}});
    EXPECT_TRUE(started.ok()) << started.status().message();
    return started.ok() ? *std::move(started) : nullptr;
  }
  static Completion Ask(const Cluster& cluster, const Json& request) {
    Completion completion = Complete(cluster.http(), request);
    EXPECT_TRUE(completion.ok()) << completion.error;
    return completion;
  }

  const TempDir directory_;
};

Json Request(size_t prompt_tokens, uint32_t seed, int max_tokens) {
  return GreedyRequest(Prompt(prompt_tokens, seed), max_tokens);
}

// What enters a matrix is rounded to bf16 here, to f32 there: a few thousandths of each of some dozen sums, of logits
// of the size of one.
TEST_P(GpuExperts, AnswersAreThoseOfTheCpu) {
  constexpr double kTolerance = 0.1;
  const auto cpu = Start("cpu"), gpu = Start("cuda:0");
  ASSERT_TRUE(cpu != nullptr && gpu != nullptr);
  size_t compared = 0;
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    Json request = Request(40 + 60 * seed, seed, 24);
    request["logprobs"] = 1;
    const Completion expected = Ask(*cpu, request), answer = Ask(*gpu, request);
    const Json& want = expected.choice.at("logprobs").at("token_logprobs");
    const Json& got = answer.choice.at("logprobs").at("token_logprobs");
    for (size_t i = 0; i < want.size() && answer.ids.at(i) == expected.ids.at(i); ++i, ++compared) {
      ASSERT_NEAR(got[i].get<double>(), want[i].get<double>(), kTolerance) << "seed " << seed << ", token " << i;
    }
  }
  EXPECT_GE(compared, 24u) << "the answers part at once";
  EXPECT_TRUE(cpu->Stop().ok());
  EXPECT_TRUE(gpu->Stop().ok());
}

TEST_P(GpuExperts, AnswersAreTheSameAloneOrAmongOthers) {
  const auto cluster = Start("cuda:0");
  ASSERT_NE(cluster, nullptr);
  std::vector<Json> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(Request(20 + 70 * i, i, 10 + 9 * i));
    if (i % 3 == 1) requests.back().update(Json{{"temperature", 1.2}, {"seed", i}});
    if (i % 4 == 2) requests.back()["winnow"] = {{"selection", "exact-token,budget=2048"}};  // by frames
  }
  std::vector<TokenIds> alone;
  for (const Json& request : requests) alone.push_back(Ask(*cluster, request).ids);
  std::vector<std::future<Completion>> together;
  for (const Json& request : requests) {
    together.push_back(std::async(std::launch::async, [&] { return Ask(*cluster, request); }));
  }
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(together[i].get().ids, alone[i]) << "request " << i;
  EXPECT_GT(cluster->MetricsOf("inference-0").Value("winnow_local_steps_total"), 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuExperts,
    testing::Values(
        Model{"Qwen3Moe",
              {.family = ModelFamily::kQwen3Moe, .num_layers = 3, .extra_fields = {{"mlp_only_layers", {1}}}}},
        Model{"Mixtral", {.family = ModelFamily::kMixtral}},
        Model{"Qwen2Moe",
              {.family = ModelFamily::kQwen2Moe, .extra_fields = {{"shared_expert_intermediate_size", 80}}}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace winnow::e2e
