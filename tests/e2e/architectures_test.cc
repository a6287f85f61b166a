// What a cluster does with the parts of newer architectures: layers with sliding windows, attention sinks, experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/model_cluster.h"
#include "tests/support/quantized_checkpoint.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

struct Model {
  const char* name;
  TinyModel model;
};
void PrintTo(const Model& value, std::ostream* out) {
  *out << value.name;
}

class Architectures : public ModelCluster<Model> {
 protected:
  void StartModel(std::vector<std::string> flags = {}) {
    TinyModel model = GetParam().model;
    model.max_position_embeddings = 4096;
    WriteTinyCheckpoint(model, directory_.path());
    Start(std::move(flags));
  }
  Completion AskFor(const TokenIds& prompt, const Json& selection) {
    Json request = GreedyRequest(prompt, 48);
    request["logprobs"] = 1;
    request["winnow"] = selection;
    return Ask(request);
  }
};

TEST_P(Architectures, ABudgetThatCoversTheContextGivesTheBitsOfDense) {
  StartModel();
  const TokenIds prompt = Prompt(700, 3);
  const Completion dense = AskFor(prompt, {{"selection", "dense"}});
  const Completion covered = AskFor(prompt, {{"selection", "winnow"}});
  EXPECT_EQ(covered.ids, dense.ids);
  EXPECT_EQ(LogProbs(covered), LogProbs(dense));
  EXPECT_EQ(covered.Stat("streamed_rows"), 0);
  // What does not cover it is another answer, and the same one for every cluster and batch.
  const Completion sparse = AskFor(prompt, {{"selection", "winnow"}, {"budget", 32}});
  EXPECT_NE(LogProbs(sparse), LogProbs(dense));
  EXPECT_GT(sparse.Stat("streamed_rows"), 0);
}

// The rows of the whole context are not on the rank that goes on: what it needs comes from the cache rank.
TEST_P(Architectures, PrefillAndDecodeOnRanksOfTheirOwn) {
  StartModel();
  const TokenIds prompt = Prompt(500, 9);
  const Completion together = AskFor(prompt, {{"selection", "winnow"}, {"budget", 32}});
  const Completion dense = AskFor(prompt, {{"selection", "dense"}});
  StartModel({"--prefill-ranks=1", "--decode-ranks=1"});
  const Completion apart = AskFor(prompt, {{"selection", "winnow"}, {"budget", 32}});
  EXPECT_EQ(apart.ids, together.ids);
  EXPECT_EQ(LogProbs(apart), LogProbs(together));
  EXPECT_EQ(LogProbs(AskFor(prompt, {{"selection", "dense"}})), LogProbs(dense));
}

// Experts as gpt-oss is published with them, and the same weights as f32: rounding is the same, too.
TEST(Mxfp4, GivesTheBitsOfTheDequantisedModel) {
  const TempDir quantized, plain;
  WriteMxfp4Checkpoint({.family = ModelFamily::kGptOss,
                        .num_layers = 4,
                        .hidden_size = 64,
                        .intermediate_size = 96,
                        .max_position_embeddings = 4096,
                        .attention_bias = true},
                       quantized.path(), plain.path());
  Json request = GreedyRequest(Prompt(400, 5), 40);
  request["logprobs"] = 1;
  request["winnow"] = {{"selection", "winnow"}, {"budget", 32}};
  std::vector<Completion> answers;
  for (const TempDir* directory : {&quantized, &plain}) {
    const absl::StatusOr<std::unique_ptr<Cluster>> cluster =
        Cluster::Start({.model = directory->path(), .flags = {"--compute=f32", "--kv-dtype=f32"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status().message();
    answers.push_back(Complete((*cluster)->http(), request));
    ASSERT_TRUE(answers.back().ok()) << answers.back().error;
    EXPECT_TRUE((*cluster)->Stop().ok());
  }
  EXPECT_EQ(answers[0].ids, answers[1].ids);
  EXPECT_EQ(answers[0].choice.at("logprobs"), answers[1].choice.at("logprobs"));
}

INSTANTIATE_TEST_SUITE_P(
    All, Architectures,
    testing::Values(Model{"Qwen3Moe", {.family = ModelFamily::kQwen3Moe}},
                    Model{"Qwen3Next", {.family = ModelFamily::kQwen3Next, .num_layers = 6}},
                    Model{"Qwen35", {.family = ModelFamily::kQwen35, .num_layers = 4}},
                    Model{"Qwen35Moe", {.family = ModelFamily::kQwen35Moe, .num_layers = 4}},
                    Model{"Gemma2", {.family = ModelFamily::kGemma2, .num_layers = 4}},
                    Model{"Gemma3", {.family = ModelFamily::kGemma3, .num_layers = 4}},
                    Model{"Olmo3", {.family = ModelFamily::kOlmo3, .num_layers = 4}},
                    Model{"DeepseekV2", {.family = ModelFamily::kDeepseekV2, .num_layers = 3}},
                    Model{"DeepseekV3", {.family = ModelFamily::kDeepseekV3, .num_layers = 3}},
                    Model{"DeepseekV32", {.family = ModelFamily::kDeepseekV32, .num_layers = 3}},
                    Model{"Glm4Moe", {.family = ModelFamily::kGlm4Moe, .extra_fields = {{"use_qk_norm", true}}}},
                    Model{"GptOss", {.family = ModelFamily::kGptOss, .num_layers = 4, .attention_bias = true}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace winnow::e2e
