// The forward pass of each architecture, from its checkpoint through the kernels, against a plain one; and that the
// bits of a row are its own.
#include "model/transformer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>

#include "tests/model/resident_sequence.h"
#include "tests/support/golden_models.h"
#include "tests/support/quantized_checkpoint.h"
#include "tests/support/reference_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

constexpr int kMaxPrefill = 96;

// A checkpoint ready to compute with, in f32.
struct Loaded {
  Loaded(const std::string& directory, const char* isa, Dtype compute = Dtype::kF32)
      : config(LoadModelConfig(directory).value()),
        checkpoint(Checkpoint::Open(directory).value()),
        kernels(*CpuKernels(isa).value()),
        executor(kernels.new_executor(2)),
        weights(ModelWeights::Load(checkpoint, config, kernels, {.compute_dtype = compute}).value()),
        transformer(config, *weights, kernels, *executor, Dtype::kF32, kMaxPrefill, 64) {}

  const ModelConfig config;
  const std::shared_ptr<const Checkpoint> checkpoint;
  const KernelTable& kernels;
  const std::unique_ptr<Executor> executor;
  const std::unique_ptr<ModelWeights> weights;
  Transformer transformer;
};

struct Case {
  const char* name;
  TinyModel model;
};
void PrintTo(const Case& value, std::ostream* out) {
  *out << value.name;
}

// Of up to 512 positions, so that the long divisors hold where the original context had fewer.
TinyModel LongRopeModel(int original_positions, double partial = 1, int window = 0) {
  const int pairs = static_cast<int>(16 * partial) / 2;
  std::vector<double> shorts, longs;
  for (int i = 0; i < pairs; ++i) {
    shorts.push_back(1 + 0.03 * i);
    longs.push_back(1.5 + 0.7 * i * i);
  }
  TinyModel model{
      .family = ModelFamily::kPhi3,
      .max_position_embeddings = 512,
      .rope_parameters = {{"type", "longrope"},
                          {"rope_theta", 10000.0},
                          {"short_factor", shorts},
                          {"long_factor", longs}},
      .extra_fields = {{"original_max_position_embeddings", original_positions}, {"partial_rotary_factor", partial}}};
  if (window > 0) model.extra_fields["sliding_window"] = window;
  return model;
}

class TransformerTest : public testing::TestWithParam<Case> {
 protected:
  TransformerTest() { WriteTinyCheckpoint(GetParam().model, dir_.path()); }
  std::vector<uint32_t> Tokens(size_t count, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<uint32_t> tokens(count);
    for (uint32_t& token : tokens) token = random() % static_cast<uint32_t>(GetParam().model.vocab_size);
    return tokens;
  }

  const TempDir dir_;
};

TEST_P(TransformerTest, MatchesTheReference) {
  for (const char* isa : {"portable", "auto"}) {
    SCOPED_TRACE(isa);
    Loaded model(dir_.path(), isa);
    ResidentSequences kv(model.config, 1, 256);
    model.transformer.set_slot_pool(kv.slot_pool());
    ReferenceModel reference(*model.checkpoint, model.config);
    const std::vector<uint32_t> tokens = Tokens(160, 7);
    const auto expect = [&](const std::vector<float>& logits) {
      const std::vector<float> expected = reference.Logits();
      for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 1e-3) << "token " << i;
    };
    const size_t prompt = 150;
    for (size_t i = 0; i < prompt; ++i) reference.Append(tokens[i]);
    expect(kv.Prefill(model.transformer, 0, {tokens.begin(), tokens.begin() + prompt}, kMaxPrefill));
    for (size_t i = prompt; i < tokens.size(); ++i) {
      SCOPED_TRACE(i);
      reference.Append(tokens[i]);
      expect(kv.Decode(model.transformer, {0}, {tokens[i]}, {static_cast<uint32_t>(i)})[0]);
    }
  }
}

// Alone, beside others, in other chunks: every bit of a row is the same.
TEST_P(TransformerTest, BitsOfARowAreItsOwn) {
  for (const Dtype compute : {Dtype::kF32, Dtype::kBf16}) {
    Loaded model(dir_.path(), "auto", compute);
    const int others = 7;
    ResidentSequences kv(model.config, others + 2, 256);
    model.transformer.set_slot_pool(kv.slot_pool());
    const std::vector<uint32_t> tokens = Tokens(90, 3);
    const std::vector<float> whole = kv.Prefill(model.transformer, 0, tokens, kMaxPrefill);
    EXPECT_EQ(kv.Prefill(model.transformer, 1, tokens, 11), whole) << "in chunks";
    std::vector<int> sequences = {1};
    std::vector<uint32_t> next = {5}, positions = {90};
    for (int i = 0; i < others; ++i) {
      const std::vector<uint32_t> other = Tokens(20 + 9 * i, 100 + i);
      kv.Prefill(model.transformer, i + 2, other, kMaxPrefill);
      sequences.push_back(i + 2);
      next.push_back(Tokens(1, i)[0]);
      positions.push_back(static_cast<uint32_t>(other.size()));
    }
    const std::vector<float> alone = kv.Decode(model.transformer, {0}, {5}, {90})[0];
    EXPECT_EQ(kv.Decode(model.transformer, sequences, next, positions)[0], alone) << "in a batch";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Architectures, TransformerTest,
    testing::Values(
        Case{"Qwen3", {}}, Case{"Mixtral", {.family = ModelFamily::kMixtral}},
        Case{"Qwen3Moe", {.family = ModelFamily::kQwen3Moe, .attention_bias = true}},
        Case{"Qwen3MoeDenseLayers",
             {.family = ModelFamily::kQwen3Moe,
              .num_layers = 5,
              .extra_fields = {{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}, {"norm_topk_prob", false}}}},
        Case{"Phi3", {.family = ModelFamily::kPhi3}},
        Case{"Phi3WholePanels", {.family = ModelFamily::kPhi3, .num_query_heads = 8, .num_kv_heads = 4}},
        Case{"Phi3LongRope", LongRopeModel(512)}, Case{"Phi3LongRopePartialAndWindowed", LongRopeModel(512, 0.75, 50)},
        Case{"Phi3ShortRope", LongRopeModel(256)}, Case{"Olmo2", {.family = ModelFamily::kOlmo2}},
        Case{"Olmo3", {.family = ModelFamily::kOlmo3, .num_layers = 4}},
        Case{"Olmo3Yarn",
             {.family = ModelFamily::kOlmo3,
              .num_layers = 4,
              .rope_parameters = {{"rope_type", "yarn"},
                                  {"rope_theta", 10000.0},
                                  {"factor", 4.0},
                                  {"original_max_position_embeddings", 64}}}},
        Case{"Gemma2", {.family = ModelFamily::kGemma2, .num_layers = 4, .tie_word_embeddings = true}},
        Case{"Gemma3", {.family = ModelFamily::kGemma3, .num_layers = 4, .tie_word_embeddings = true}},
        Case{"Gemma3Softcapped",
             {.family = ModelFamily::kGemma3,
              .num_layers = 3,
              .extra_fields = {{"final_logit_softcapping", 3.0}, {"sliding_window", 1}}}},
        Case{"GptOss", {.family = ModelFamily::kGptOss, .num_layers = 4, .attention_bias = true}},
        Case{"MistralWindow", {.family = ModelFamily::kMistral, .extra_fields = {{"sliding_window", 50}}}},
        Case{"DeepseekV2", {.family = ModelFamily::kDeepseekV2, .num_layers = 3}},
        Case{
            "DeepseekV2Lite",
            {.family = ModelFamily::kDeepseekV2,
             .extra_fields = {{"q_lora_rank", nullptr}, {"topk_method", "greedy"}, {"n_group", 1}, {"topk_group", 1}}}},
        Case{"DeepseekV3", {.family = ModelFamily::kDeepseekV3, .num_layers = 3}},
        Case{"DeepseekV3WithoutQueryLatent",
             {.family = ModelFamily::kDeepseekV3,
              .extra_fields = {{"q_lora_rank", nullptr}, {"rope_interleave", false}, {"norm_topk_prob", false}}}},
        Case{"DeepseekV3Yarn",
             {.family = ModelFamily::kDeepseekV3,
              .attention_bias = true,
              .rope_parameters = {{"rope_type", "yarn"},
                                  {"rope_theta", 10000.0},
                                  {"factor", 4.0},
                                  {"mscale", 0.7},
                                  {"mscale_all_dim", 1.0},
                                  {"original_max_position_embeddings", 64}}}},
        Case{"Glm4Moe",
             {.family = ModelFamily::kGlm4Moe,
              .num_layers = 3,
              .attention_bias = true,
              .extra_fields = {{"use_qk_norm", true}}}},
        Case{"Glm4MoeYarn",
             {.family = ModelFamily::kGlm4Moe,
              .rope_parameters = {{"rope_type", "yarn"},
                                  {"rope_theta", 10000.0},
                                  {"partial_rotary_factor", 0.5},
                                  {"factor", 4.0},
                                  {"original_max_position_embeddings", 64}}}},
        Case{"Glm4MoeOtherPart",
             {.family = ModelFamily::kGlm4Moe,
              .num_layers = 3,
              .extra_fields =
                  {{"partial_rotary_factor", 0.25}, {"n_shared_experts", 0}, {"n_group", 1}, {"topk_group", 1}}}},
        Case{"Qwen3Next", {.family = ModelFamily::kQwen3Next, .num_layers = 4}},
        Case{"Qwen35", {.family = ModelFamily::kQwen35, .num_layers = 4}},
        Case{"Qwen35Moe", {.family = ModelFamily::kQwen35Moe, .num_layers = 4}},
        Case{"Qwen3NextEndsLinear",
             {.family = ModelFamily::kQwen3Next,
              .num_layers = 5,
              .head_dim = 32,
              .attention_bias = true,
              .extra_fields = {{"layer_types",
                                {"full_attention", "linear_attention", "linear_attention", "full_attention",
                                 "linear_attention"}},
                               {"linear_num_key_heads", 3},
                               {"linear_num_value_heads", 3},
                               {"linear_value_head_dim", 32},
                               {"linear_conv_kernel_dim", 2},
                               {"mlp_only_layers", {1}},
                               {"norm_topk_prob", false}}}},
        Case{"Qwen2Moe", {.family = ModelFamily::kQwen2Moe, .tie_word_embeddings = true}}),
    [](const auto& info) { return std::string(info.param.name); });

// After a prompt of ten tokens, and after one more.
std::vector<float> LogitsOf(Loaded& loaded) {
  const std::vector<uint32_t> tokens = {5, 17, 90, 3, 41, 66, 12, 8, 29, 70};
  ResidentSequences kv(loaded.config, 1, 256);
  loaded.transformer.set_slot_pool(kv.slot_pool());
  std::vector<float> result = kv.Prefill(loaded.transformer, 0, tokens, kMaxPrefill);
  const std::vector<float> next = kv.Decode(loaded.transformer, {0}, {7}, {static_cast<uint32_t>(tokens.size())})[0];
  result.insert(result.end(), next.begin(), next.end());
  return result;
}

TinyModel Mxfp4Model() {
  return {.family = ModelFamily::kGptOss, .hidden_size = 64, .intermediate_size = 96, .attention_bias = true};
}

TinyModel QuantizableModelOf(ModelFamily family) {
  TinyModel model = QuantizableModel();
  model.family = family;
  if (family == ModelFamily::kPhi3) return model;
  model.extra_fields = {{"moe_intermediate_size", 64}};
  if (family == ModelFamily::kQwen2Moe) model.extra_fields["shared_expert_intermediate_size"] = 96;
  return model;
}

// Experts, and projections stored as one tensor, stay quantised and give what the same weights give as f32. Routers are
// f32.
class QuantizedTransformerTest : public testing::TestWithParam<Case> {};

TEST_P(QuantizedTransformerTest, GivesWhatTheDequantisedModelGives) {
  for (const QuantizedForm& form : QuantizedForms()) {
    if (form.act_order) continue;  // sums in another order
    SCOPED_TRACE(form.name);
    const TempDir quantized, plain;
    WriteQuantizedCheckpoint(GetParam().model, form, quantized.path(), plain.path());
    Loaded model(quantized.path(), "auto"), reference(plain.path(), "auto");
    const LayerWeights& layer = model.weights->layer(1);
    EXPECT_TRUE(IsQuantized(layer.qkv.dtype) && IsQuantized(layer.query_projection.dtype));
    EXPECT_TRUE(layer.experts.empty() || layer.router.dtype == Dtype::kF32);
    for (const ExpertWeights& expert : layer.experts) {
      EXPECT_TRUE(IsQuantized(expert.gate_up.dtype) && IsQuantized(expert.down.dtype));
    }
    EXPECT_LT(model.weights->bytes(), reference.weights->bytes());
    EXPECT_EQ(LogitsOf(model), LogitsOf(reference));
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, QuantizedTransformerTest,
                         testing::Values(Case{"Qwen3Moe", QuantizableModelOf(ModelFamily::kQwen3Moe)},
                                         Case{"Qwen2Moe", QuantizableModelOf(ModelFamily::kQwen2Moe)},
                                         Case{"Phi3", QuantizableModelOf(ModelFamily::kPhi3)}),
                         [](const auto& info) { return std::string(info.param.name); });

// The experts of gpt-oss stay as they are published, and give what the same weights give as f32.
TEST(Mxfp4TransformerTest, GivesWhatTheDequantisedModelGives) {
  const TempDir quantized, plain;
  WriteMxfp4Checkpoint(Mxfp4Model(), quantized.path(), plain.path());
  for (const char* isa : {"portable", "avx2", "auto"}) {
    if (!CpuKernels(isa).ok()) continue;
    SCOPED_TRACE(isa);
    Loaded model(quantized.path(), isa), reference(plain.path(), isa);
    const ExpertWeights& expert = model.weights->layer(1).experts[2];
    EXPECT_TRUE(expert.gate_up.mxfp4 && expert.down.mxfp4);
    EXPECT_EQ(PackedBytes(expert.gate_up), 3u * 64 * 64 * 17 / 32) << "17 bytes for 32 weights, as they are stored";
    EXPECT_EQ(LogitsOf(model), LogitsOf(reference));
  }
}

TEST(Mxfp4TransformerTest, WhatIsWrongWithABlockIsSaid) {
  const auto error = [](const std::function<void(RawTensors&)>& change) {
    const TempDir quantized, plain;
    WriteMxfp4Checkpoint(Mxfp4Model(), quantized.path(), plain.path(), change);
    const auto weights = ModelWeights::Load(Checkpoint::Open(quantized.path()).value(),
                                            LoadModelConfig(quantized.path()).value(), *CpuKernels("auto").value());
    return weights.ok() ? "no error" : std::string(weights.status().message());
  };
  const std::string down = "model.layers.1.mlp.experts.down_proj";
  EXPECT_THAT(error([&](RawTensors& tensors) { tensors[down + "_scales"].bytes[7] = char(255); }),
              testing::HasSubstr("model.safetensors: tensor '" + down + "_scales' is not finite (NaN) at element 7"));
  EXPECT_THAT(error([&](RawTensors& tensors) { tensors.erase(down + "_blocks"); }),
              testing::HasSubstr("tensor '" + down + "_blocks' of shape [5, 64, 3, 16] is missing"));
  EXPECT_THAT(error([&](RawTensors& tensors) { tensors[down + "_blocks"].dtype = "I8"; }),
              testing::HasSubstr("_blocks' in "));
}

// Checkpoints with answers of a reference implementation.
class TransformerGoldenTest : public testing::TestWithParam<GoldenModel> {};

TEST_P(TransformerGoldenTest, LastLogitsMatch) {
  Loaded model(GetParam().path, "auto");
  const nlohmann::json golden = nlohmann::json::parse(std::ifstream(GetParam().file));
  ASSERT_GT(golden["cases"].size(), 0u);
  for (const auto& item : golden["cases"]) {
    const auto prompt = item["prompt"].get<std::vector<uint32_t>>();
    SCOPED_TRACE(prompt.size());
    ResidentSequences kv(model.config, 1, static_cast<uint32_t>(prompt.size()));
    model.transformer.set_slot_pool(kv.slot_pool());
    const std::vector<float> logits = kv.Prefill(model.transformer, 0, prompt, kMaxPrefill);
    const auto ids = item["top_ids"].get<std::vector<uint32_t>>();
    const auto expected = item["top_logits"].get<std::vector<double>>();
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_NEAR(logits[ids[i]], expected[i], 2e-3) << "rank " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TransformerGoldenTest, testing::ValuesIn(GoldenModels()),
                         [](const auto& info) { return TestNameOf(info.param.name); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransformerGoldenTest);

}  // namespace
}  // namespace winnow
