// ModelWeights and the portable kernels together give the plain forward pass, for shapes that no golden model has.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "common/model/model_tensors.h"
#include "common/model/rope.h"
#include "model/weights/weights.h"
#include "tests/support/quantized_checkpoint.h"
#include "tests/support/reference_model.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using Matrix = std::vector<float>;

// A prompt in one chunk, in f32.
class KernelForward {
 public:
  KernelForward(const ModelWeights& weights, const KernelTable& kernels)
      : weights_(weights), config_(weights.config()), kernels_(kernels), executor_(kernels.new_executor(2)) {}

  // Logits [num_tokens, vocab_size].
  Matrix Logits(const std::vector<uint32_t>& tokens) {
    num_tokens_ = static_cast<int>(tokens.size());
    const EmbeddingTable table = weights_.embedding();
    Matrix hidden = Rows(config_.hidden_size);
    kernels_.embed({.table = table.data,
                    .dtype = table.dtype,
                    .hidden_size = config_.hidden_size,
                    .token_ids = tokens.data(),
                    .num_rows = num_tokens_,
                    .out = hidden.data()});
    for (int i = 0; i < config_.num_layers; ++i) {
      const LayerWeights& layer = weights_.layer(i);
      Matrix qkv = Rows(config_.qkv_features());
      Matmul(hidden, InputTransform::kRmsNorm, layer.input_norm, layer.qkv, layer.qkv_bias, qkv);
      const Matrix attended = Attention(layer, qkv);
      Matmul(attended, InputTransform::kNone, {}, layer.o, layer.o_bias, hidden, true);
      Matrix gate_up = Rows(2 * config_.intermediate_size);
      Matmul(hidden, InputTransform::kRmsNorm, layer.post_attention_norm, layer.gate_up, layer.gate_up_bias, gate_up);
      Matmul(gate_up, InputTransform::kSiluMul, {}, layer.down, layer.down_bias, hidden, true);
    }
    Matrix logits = Rows(config_.vocab_size);
    Matmul(hidden, InputTransform::kRmsNorm, weights_.final_norm(), weights_.lm_head(), {}, logits);
    return logits;
  }

 private:
  Matrix Rows(int width) const { return Matrix(static_cast<size_t>(num_tokens_) * static_cast<size_t>(width)); }

  void Matmul(const Matrix& x, InputTransform transform, std::span<const float> norm, const PackedMatrix& weight,
              std::span<const float> bias, Matrix& y, bool accumulate = false) {
    MatmulParams params;
    params.x = x.data();
    params.x_stride = static_cast<int64_t>(x.size()) / num_tokens_;
    params.num_rows = num_tokens_;
    params.transform = transform;
    params.norm_weight = norm.data();
    params.norm_epsilon = config_.rms_norm_eps;
    params.weight = weight;
    params.bias = bias.data();
    params.accumulate = accumulate;
    params.y = y.data();
    params.y_stride = static_cast<int64_t>(y.size()) / num_tokens_;
    kernels_.prefill_matmul(*executor_, params);
  }

  Matrix Attention(const LayerWeights& layer, const Matrix& qkv) {
    std::vector<uint32_t> positions(static_cast<size_t>(num_tokens_));
    std::iota(positions.begin(), positions.end(), 0u);
    const RopeTable rope = ComputeRope(config_.rope, config_.head_dim);
    Matrix q = Rows(config_.q_features());
    Matrix kv_rows = Rows(2 * config_.kv_features());
    RopeAppendParams append;
    append.qkv = qkv.data();
    append.qkv_stride = config_.qkv_features();
    append.num_rows = num_tokens_;
    append.num_query_heads = config_.num_query_heads;
    append.num_kv_heads = config_.num_kv_heads;
    append.head_dim = config_.head_dim;
    append.q_norm_weight = layer.q_norm.data();
    append.k_norm_weight = layer.k_norm.data();
    append.norm_epsilon = config_.rms_norm_eps;
    append.positions = positions.data();
    append.rope_inv_freq = rope.inv_freq.data();
    append.rope_attention_factor = rope.attention_factor;
    append.kv_dtype = Dtype::kF32;
    append.q = q.data();
    append.kv_rows = kv_rows.data();
    kernels_.rope_append(*executor_, append);

    // [token, head, row] to [head, token, row].
    const std::ptrdiff_t row = 2 * config_.head_dim;
    Matrix kv = Rows(2 * config_.kv_features());
    for (std::ptrdiff_t t = 0; t < num_tokens_; ++t) {
      for (std::ptrdiff_t h = 0; h < config_.num_kv_heads; ++h) {
        std::copy_n(kv_rows.begin() + (t * config_.num_kv_heads + h) * row, row,
                    kv.begin() + (h * num_tokens_ + t) * row);
      }
    }
    Matrix out = Rows(config_.q_features());
    PrefillAttentionParams attention;
    attention.q = q.data();
    attention.num_queries = num_tokens_;
    attention.num_query_heads = config_.num_query_heads;
    attention.num_kv_heads = config_.num_kv_heads;
    attention.head_dim = config_.head_dim;
    attention.scale = 1 / std::sqrt(static_cast<float>(config_.head_dim));
    attention.kv = kv.data();
    attention.kv_head_stride = num_tokens_;
    attention.kv_dtype = Dtype::kF32;
    attention.out = out.data();
    kernels_.prefill_attention(*executor_, attention);
    return out;
  }

  const ModelWeights& weights_;
  const ModelConfig& config_;
  const KernelTable& kernels_;
  std::unique_ptr<Executor> executor_;
  int num_tokens_ = 0;
};

struct Case {
  const char* name;
  TinyModel model;
};
void PrintTo(const Case& value, std::ostream* out) {
  *out << value.name;
}

class KernelForwardTest : public testing::TestWithParam<Case> {};

TEST_P(KernelForwardTest, MatchesTheReference) {
  const TempDir dir;
  WriteTinyCheckpoint(GetParam().model, dir.path());
  const ModelConfig config = LoadModelConfig(dir.path()).value();
  std::shared_ptr<const Checkpoint> checkpoint = Checkpoint::Open(dir.path()).value();
  const KernelTable& kernels = *CpuKernels("portable").value();
  const auto weights = ModelWeights::Load(checkpoint, config, kernels, {.compute_dtype = Dtype::kF32});
  ASSERT_THAT(weights, IsOkStatus());

  std::mt19937 random(7);
  std::vector<uint32_t> tokens(70);
  for (uint32_t& token : tokens) token = random() % static_cast<uint32_t>(config.vocab_size);
  const Matrix logits = KernelForward(**weights, kernels).Logits(tokens);
  ReferenceModel reference(*checkpoint, config);
  for (size_t t = 0; t < tokens.size(); ++t) {
    reference.Append(tokens[t]);
    const std::vector<float> expected = reference.Logits();
    for (size_t i = 0; i < expected.size(); ++i) {
      // f32 sums of at most 128 terms, about ten of them in a row: 128 * 10 * 2^-24 of values of a few units.
      ASSERT_NEAR(logits[t * expected.size() + i], expected[i], 5e-4) << "position " << t << ", token " << i;
    }
  }
}

const nlohmann::json kLinear = {{"rope_type", "linear"}, {"rope_theta", 10000.0}, {"factor", 2.0}};
const nlohmann::json kYarn = {
    {"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
const nlohmann::json kDynamic = {{"rope_type", "dynamic"}, {"rope_theta", 1e4}, {"factor", 4.0}};

INSTANTIATE_TEST_SUITE_P(
    Shapes, KernelForwardTest,
    testing::Values(
        Case{"Qwen3", {.rope_parameters = kYarn}},
        Case{"Qwen2", {.family = ModelFamily::kQwen2, .tie_word_embeddings = true, .storage = Dtype::kF32}},
        Case{"LlamaLinear",
             {.family = ModelFamily::kLlama, .rope_parameters = kLinear, .storage = Dtype::kF16, .num_files = 3}},
        Case{"LlamaYarnBiased",
             {.family = ModelFamily::kLlama,
              .attention_bias = true,
              .mlp_bias = true,
              .rope_parameters = kYarn,
              .storage = Dtype::kF32}},
        Case{"MistralOneKvHead", {.family = ModelFamily::kMistral, .num_kv_heads = 1, .rope_parameters = kDynamic}},
        Case{"GroupOf5",
             {.hidden_size = 40,
              .intermediate_size = 70,
              .num_query_heads = 10,
              .num_kv_heads = 2,
              .head_dim = 6,
              .storage = Dtype::kF16}}),
    [](const auto& info) { return std::string(info.param.name); });

// Quantised weights stay quantised, and give what the same weights give as f32: bit for bit, if their inputs are in
// order.
class QuantizedForwardTest : public testing::TestWithParam<std::tuple<QuantizedForm, const char*>> {};

TEST_P(QuantizedForwardTest, GivesWhatTheDequantisedModelGives) {
  const auto& [form, isa] = GetParam();
  const absl::StatusOr<const KernelTable*> kernels = CpuKernels(isa);
  if (!kernels.ok()) GTEST_SKIP() << kernels.status().message();
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(QuantizableModel(), form, quantized.path(), plain.path());
  const auto load = [&](const TempDir& dir) {
    return ModelWeights::Load(Checkpoint::Open(dir.path()).value(), LoadModelConfig(dir.path()).value(), **kernels,
                              {.compute_dtype = Dtype::kF32});
  };
  const auto weights = load(quantized);
  ASSERT_THAT(weights, IsOkStatus());
  const auto reference = load(plain);
  ASSERT_THAT(reference, IsOkStatus());
  const Dtype dtype = form.layout == std::string("fp8") ? Dtype::kF8 : form.bits == 8 ? Dtype::kI8 : Dtype::kI4;
  const LayerWeights& layer = (*weights)->layer(1);
  for (const PackedMatrix& matrix : {layer.qkv, layer.query_projection, layer.o, layer.gate_up, layer.down}) {
    EXPECT_EQ(matrix.dtype, dtype);
  }

  std::mt19937 random(7);
  std::vector<uint32_t> tokens(70);
  for (uint32_t& token : tokens) token = random() % 96;
  const Matrix logits = KernelForward(**weights, **kernels).Logits(tokens);
  const Matrix expected = KernelForward(**reference, **kernels).Logits(tokens);
  ASSERT_EQ(logits.size(), expected.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (form.act_order) {
      ASSERT_NEAR(logits[i], expected[i], 5e-4) << i;
    } else {
      ASSERT_EQ(logits[i], expected[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, QuantizedForwardTest,
                         testing::Combine(testing::ValuesIn(QuantizedForms()),
                                          testing::Values("portable", "avx2", "avx512", "avx512bf16")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param);
                         });

// A stack of weights in several forms is dequantised; the query projection, which other processes hold alone, as well.
TEST(QuantizedStackTest, WeightsOfSeveralFormsAreDequantised) {
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(QuantizableModel(), QuantizedForms().front(), quantized.path(), plain.path(),
                           [](const std::string& name) { return name == LayerTensor(0, "self_attn.k_proj.weight"); });
  const KernelTable& kernels = *CpuKernels("portable").value();
  const ModelConfig config = LoadModelConfig(quantized.path()).value();
  const auto weights =
      ModelWeights::Load(Checkpoint::Open(quantized.path()).value(), config, kernels, {.compute_dtype = Dtype::kF32});
  ASSERT_THAT(weights, IsOkStatus());
  const LayerWeights& layer = (*weights)->layer(0);
  EXPECT_EQ(layer.qkv.dtype, Dtype::kF32);
  EXPECT_EQ(layer.query_projection.dtype, Dtype::kF32);
  EXPECT_EQ(layer.o.dtype, Dtype::kF8);
  EXPECT_EQ((*weights)->layer(1).qkv.dtype, Dtype::kF8);

  const auto reference =
      ModelWeights::Load(Checkpoint::Open(plain.path()).value(), LoadModelConfig(plain.path()).value(), kernels,
                         {.compute_dtype = Dtype::kF32});
  ASSERT_THAT(reference, IsOkStatus());
  const std::vector<uint32_t> tokens = {5, 17, 90};
  EXPECT_EQ(KernelForward(**weights, kernels).Logits(tokens), KernelForward(**reference, kernels).Logits(tokens));
}

}  // namespace
}  // namespace winnow
