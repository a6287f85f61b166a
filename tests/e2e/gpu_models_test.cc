// Models of all kinds on a GPU, here one made of host memory (tests/support/host_gpu): what the GPU's forward pass does
// with experts, windows, sinks, norms and parts of heads, and that neither who else is in a step nor where rows are
// selected changes anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/completion.h"
#include "tests/e2e/generation_calls.h"
#include "tests/support/quantized_checkpoint.h"
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

Json Request(size_t prompt_tokens, uint32_t seed, int max_tokens) {
  return GreedyRequest(Prompt(prompt_tokens, seed), max_tokens);
}

class GpuModels : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    TinyModel model = GetParam().model;
    model.hidden_size = 96;
    model.max_position_embeddings = 4096;
    WriteTinyCheckpoint(model, directory_.path());
  }
  static bool IsLatent() {
    const ModelFamily family = GetParam().model.family;
    return family == ModelFamily::kDeepseekV2 || family == ModelFamily::kDeepseekV3 ||
           family == ModelFamily::kDeepseekV32;
  }
  // Of latents and of small heads cache ranks select.
  static bool SelectsInPlace() { return GetParam().model.head_dim != 16 && !IsLatent(); }
  std::unique_ptr<Cluster> Start(const char* device, const std::vector<std::string>& flags = {"--max-running=6"},
                                 bool keeps_prefixes = false) {
    Cluster::Options options{
        .model = directory_.path(),
        .flags = {std::string("--device=") + device, "--selection=dense", "--budget=2048", "--max-context=2048",
                  keeps_prefixes ? "--prefix-cache=true" : "--prefix-cache=false"},
        .environment = {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}}};
    options.flags.insert(options.flags.end(), flags.begin(), flags.end());
    absl::StatusOr<std::unique_ptr<Cluster>> started = Cluster::Start(options);
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

// What enters a matrix is rounded to bf16 here, to f32 there: a few thousandths of each of some dozen sums, of logits
// of the size of one.
TEST_P(GpuModels, AnswersAreThoseOfTheCpu) {
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

TEST_P(GpuModels, AnswersAreTheSameAloneOrAmongOthers) {
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

// Of layers with a sliding window nothing is selected: with a budget that covers the context all others attend to
// everything, too.
TEST_P(GpuModels, ABudgetThatCoversTheContextGivesDenseAnswersInPlaceAndByFrames) {
  for (const char* in_place : {"on", "off"}) {
    const auto cluster = Start("cuda:0", {"--max-running=2", std::string("--select-in-place=") + in_place});
    ASSERT_NE(cluster, nullptr);
    for (const size_t prompt : {3u, 90u, 400u}) {
      Json request = Request(prompt, 7, 40);
      request["logprobs"] = 1;
      const Completion dense = Ask(*cluster, request);
      for (const char* selection : {"exact-token,budget=2048", "winnow,dense_below_tokens=0,budget=2048"}) {
        request["winnow"] = {{"selection", selection}};
        const Completion selected = Ask(*cluster, request);
        if (std::string_view(in_place) == "on" && !IsLatent()) {
          EXPECT_EQ(selected.Stat("streamed_rows"), 0);
        }
        EXPECT_EQ(selected.ids, dense.ids) << selection << ", " << prompt << " tokens";
        EXPECT_EQ(selected.choice.at("logprobs").at("token_logprobs"),
                  dense.choice.at("logprobs").at("token_logprobs"));
      }
    }
    EXPECT_TRUE(cluster->Stop().ok());
  }
}

TEST_P(GpuModels, PrefixesThatAreThereChangeNoAnswer) {
  const auto fresh = Start("cuda:0"), keeps = Start("cuda:0", {"--max-running=6"}, /*keeps_prefixes=*/true);
  ASSERT_TRUE(fresh != nullptr && keeps != nullptr);
  Json request = Request(400, 11, 20);
  request["logprobs"] = 1;
  Ask(*keeps, request);
  for (const size_t more : {0u, 70u}) {
    TokenIds prompt = Prompt(400, 11);
    for (size_t i = 0; i < more; ++i) prompt.push_back(static_cast<uint32_t>(3 + i % 90));
    request["prompt"] = prompt;
    const Completion expected = Ask(*fresh, request), answer = Ask(*keeps, request);
    EXPECT_GT(answer.usage.at("prompt_tokens_details").at("cached_tokens").get<int>(), 300);
    EXPECT_EQ(answer.ids, expected.ids);
    EXPECT_EQ(answer.choice.at("logprobs"), expected.choice.at("logprobs"));
  }
  EXPECT_TRUE(fresh->Stop().ok());
  EXPECT_TRUE(keeps->Stop().ok());
}

TEST_P(GpuModels, PreemptionChangesNoAnswerThatIsSelectedInPlace) {
  const auto cluster = Start("cuda:0", {"--max-running=1", "--age-bound=20ms", "--select-in-place=on"});
  ASSERT_NE(cluster, nullptr);
  const auto request = [](uint32_t i) {
    Json request = Request(300, 20 + i, 200);
    request["winnow"] = {{"selection", "exact-token,budget=48"}};
    return request;
  };
  const TokenIds alone[] = {Ask(*cluster, request(0)).ids, Ask(*cluster, request(1)).ids};
  double preempted = 0;
  for (int attempt = 0; attempt < 10 && preempted == 0; ++attempt) {
    std::future<Completion> other = std::async(std::launch::async, [&] { return Ask(*cluster, request(1)); });
    const Completion together[] = {Ask(*cluster, request(0)), other.get()};
    for (const int i : {0, 1}) {
      preempted += together[i].Stat("preempted_count");
      EXPECT_EQ(together[i].Stat("streamed_rows") == 0, SelectsInPlace());
      EXPECT_EQ(together[i].ids, alone[i]) << "request " << i;
    }
  }
  EXPECT_GT(preempted, 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

// Codes of four bits are exact in bf16: the same weights as numbers give the same bits.
TEST(Mxfp4OnAGpu, AnswersAreThoseOfTheSameWeightsAsNumbers) {
  const TempDir quantized, plain;
  WriteMxfp4Checkpoint({.family = ModelFamily::kGptOss,
                        .num_layers = 4,
                        .hidden_size = 96,
                        .intermediate_size = 64,
                        .head_dim = 64,
                        .max_position_embeddings = 4096,
                        .attention_bias = true},
                       quantized.path(), plain.path());
  Json request = Request(200, 5, 30);
  request["logprobs"] = 1;
  std::vector<Completion> answers;
  for (const TempDir* directory : {&quantized, &plain}) {
    const absl::StatusOr<std::unique_ptr<Cluster>> cluster =
        Cluster::Start({.model = directory->path(),
                        .flags = {"--device=cuda:0", "--selection=dense", "--max-context=512"},
                        .environment = {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}}});
    ASSERT_TRUE(cluster.ok()) << cluster.status().message();
    answers.push_back(Complete((*cluster)->http(), request));
    ASSERT_TRUE(answers.back().ok()) << answers.back().error;
    EXPECT_TRUE((*cluster)->Stop().ok());
  }
  EXPECT_EQ(answers[0].ids, answers[1].ids);
  EXPECT_EQ(answers[0].choice.at("logprobs"), answers[1].choice.at("logprobs"));
}

// Each GPU takes its part of every tensor that holds several projections.
TEST(SeveralGpus, TwoGiveTheAnswersOfTheCpuWhereProjectionsAreOneTensor) {
  const TempDir directory;
  WriteTinyCheckpoint(
      {.family = ModelFamily::kPhi3, .hidden_size = 96, .head_dim = 64, .max_position_embeddings = 4096},
      directory.path());
  std::vector<Json> logprobs;
  for (const char* device : {"cpu", "cuda:0,1"}) {
    const absl::StatusOr<std::unique_ptr<Cluster>> cluster =
        Cluster::Start({.model = directory.path(),
                        .flags = {std::string("--device=") + device, "--selection=dense", "--max-context=512"},
                        .environment = {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}}});
    ASSERT_TRUE(cluster.ok()) << cluster.status().message();
    Json request = Request(60, 3, 1);
    request["logprobs"] = 5;
    const Completion completion = Complete((*cluster)->http(), request);
    ASSERT_TRUE(completion.ok()) << completion.error;
    logprobs.push_back(completion.choice.at("logprobs").at("token_logprobs"));
    EXPECT_TRUE((*cluster)->Stop().ok());
  }
  EXPECT_NEAR(logprobs[0].at(0).get<double>(), logprobs[1].at(0).get<double>(), 0.05);
}

Model Of(const char* name, ModelFamily family, const Json& fields = Json::object(), int num_layers = 3) {
  return {name, {.family = family, .num_layers = num_layers, .head_dim = 64, .extra_fields = fields}};
}
Model WithHeadsOf16(Model model) {
  model.model.head_dim = 16;
  return model;
}
Model Biased(Model model) {
  model.model.attention_bias = true;
  return model;
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuModels,
    testing::Values(Of("Qwen3Moe", ModelFamily::kQwen3Moe, {{"mlp_only_layers", {1}}}),
                    Of("Mixtral", ModelFamily::kMixtral),
                    Of("Qwen2Moe", ModelFamily::kQwen2Moe, {{"shared_expert_intermediate_size", 80}}),
                    Biased(Of("GptOss", ModelFamily::kGptOss, {{"sliding_window", 48}}, 4)),
                    Of("Glm4Moe", ModelFamily::kGlm4Moe, {{"n_group", 1}, {"topk_group", 1}}),
                    Of("Glm4MoeInGroups", ModelFamily::kGlm4Moe),
                    Of("DeepseekV2", ModelFamily::kDeepseekV2, Json::object(), 4),
                    Of("DeepseekV2WithoutQueryLatent", ModelFamily::kDeepseekV2, {{"q_lora_rank", nullptr}}),
                    Of("DeepseekV3", ModelFamily::kDeepseekV3),
                    Of("DeepseekV32", ModelFamily::kDeepseekV32, {{"index_n_heads", 16}}),
                    Biased(Of("DeepseekV3Yarn", ModelFamily::kDeepseekV3,
                              {{"rope_interleave", false},
                               {"num_attention_heads", 20},
                               {"num_key_value_heads", 20},
                               {"rope_parameters",
                                {{"rope_type", "yarn"},
                                 {"rope_theta", 10000.0},
                                 {"factor", 4.0},
                                 {"original_max_position_embeddings", 256},
                                 {"mscale", 1.0},
                                 {"mscale_all_dim", 0.707}}}})),
                    Biased(Of("Llama", ModelFamily::kLlama)),
                    Of("MistralWithWindows", ModelFamily::kMistral, {{"sliding_window", 70}}),
                    Of("Phi3", ModelFamily::kPhi3, {{"partial_rotary_factor", 0.75}}), Of("Olmo2", ModelFamily::kOlmo2),
                    Of("Olmo3", ModelFamily::kOlmo3, Json::object(), 4), Of("Gemma3", ModelFamily::kGemma3),
                    WithHeadsOf16(Biased(Of("SmallGptOss", ModelFamily::kGptOss, {{"sliding_window", 48}}, 4)))),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace winnow::e2e
