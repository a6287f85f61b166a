#include "model/weights/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/status.h"
#include "common/model/model_tensors.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What the file holds, as f64; independent of the loader.
std::vector<double> Stored(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView view = checkpoint.Find(name).value();
  const size_t width = TensorDtypeBytes(view.dtype);
  std::vector<double> out;
  for (size_t at = 0; at < view.bytes.size(); at += width) {
    uint32_t word = 0;
    std::memcpy(&word, view.bytes.data() + at, width);
    if (view.dtype == TensorDtype::kF16) {
      const int exponent = static_cast<int>(word >> 10 & 31);
      const int mantissa = static_cast<int>(word & 1023);
      const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      out.push_back((word & 0x8000) != 0 ? -magnitude : magnitude);
    } else {
      if (width == 2) word <<= 16;
      float value = 0;
      std::memcpy(&value, &word, 4);
      out.push_back(value);
    }
  }
  return out;
}

std::vector<double> Stacked(const Checkpoint& checkpoint, const std::vector<std::string>& names) {
  std::vector<double> out;
  for (const std::string& name : names) {
    const std::vector<double> part = Stored(checkpoint, name);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

// Nearest multiple of the bf16 spacing, ties to even; normal values only.
double RoundedToBf16(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double unit = std::ldexp(1.0, exponent - 8);
  return std::nearbyint(value / unit) * unit;
}

double PackedElement(const PackedMatrix& matrix, int n, int k) {
  const size_t in = static_cast<size_t>(PackedInFeatures(matrix.in_features));
  const size_t panel = static_cast<size_t>(n / 64) * in * 64;
  const auto lane = static_cast<size_t>(n % 64);
  const auto row = static_cast<size_t>(k);
  if (matrix.dtype == Dtype::kF32) return static_cast<const float*>(matrix.data)[panel + row * 64 + lane];
  const uint32_t word =
      static_cast<uint32_t>(static_cast<const uint16_t*>(matrix.data)[panel + row / 2 * 128 + lane * 2 + row % 2])
      << 16;
  float value = 0;
  std::memcpy(&value, &word, 4);
  return value;
}

void ExpectPacked(const PackedMatrix& matrix, const std::vector<double>& stored, int out_features, int in_features) {
  ASSERT_EQ(matrix.out_features, out_features);
  ASSERT_EQ(matrix.in_features, in_features);
  ASSERT_EQ(reinterpret_cast<uintptr_t>(matrix.data) % 64, 0u);
  ASSERT_EQ(stored.size(), static_cast<size_t>(out_features) * static_cast<size_t>(in_features));
  for (int n = 0; n < out_features; ++n) {
    for (int k = 0; k < PackedInFeatures(in_features); ++k) {
      const double value =
          k < in_features ? stored[static_cast<size_t>(n) * static_cast<size_t>(in_features) + static_cast<size_t>(k)]
                          : 0;
      ASSERT_EQ(PackedElement(matrix, n, k), matrix.dtype == Dtype::kBf16 ? RoundedToBf16(value) : value)
          << n << ", " << k;
    }
  }
}

void ExpectVector(std::span<const float> actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(actual[i], expected[i]) << i;
}

void ExpectLoaded(const ModelWeights& weights, const Checkpoint& checkpoint) {
  const ModelConfig& config = weights.config();
  const int hidden = config.hidden_size;
  for (int i = 0; i < config.num_layers; ++i) {
    SCOPED_TRACE(i);
    const LayerWeights& layer = weights.layer(i);
    const auto at = [i](std::string_view suffix) { return LayerTensor(i, suffix); };
    const std::string q = at("self_attn.q_proj.weight");
    ExpectPacked(layer.qkv, Stacked(checkpoint, {q, at("self_attn.k_proj.weight"), at("self_attn.v_proj.weight")}),
                 config.qkv_features(), hidden);
    ExpectPacked(weights.QueryProjection(i), Stored(checkpoint, q), config.q_features(), hidden);
    EXPECT_EQ(layer.query_projection.data == layer.qkv.data, config.q_features() % 64 == 0);
    ExpectPacked(layer.o, Stored(checkpoint, at("self_attn.o_proj.weight")), hidden, config.q_features());
    if (!config.moe.IsSparse(i)) {
      ExpectPacked(layer.gate_up, Stacked(checkpoint, {at("mlp.gate_proj.weight"), at("mlp.up_proj.weight")}),
                   2 * config.intermediate_size, hidden);
      ExpectPacked(layer.down, Stored(checkpoint, at("mlp.down_proj.weight")), hidden, config.intermediate_size);
    } else {
      ExpectPacked(layer.router, Stored(checkpoint, at("mlp.gate.weight")), config.moe.num_experts, hidden);
      EXPECT_EQ(layer.router.dtype, Dtype::kF32);
      ASSERT_EQ(layer.experts.size(), static_cast<size_t>(config.moe.num_experts));
      for (size_t e = 0; e < layer.experts.size(); ++e) {
        const std::string expert = absl::StrCat("mlp.experts.", e);
        ExpectPacked(layer.experts[e].gate_up,
                     Stacked(checkpoint, {at(expert + ".gate_proj.weight"), at(expert + ".up_proj.weight")}),
                     2 * config.moe.intermediate_size, hidden);
        ExpectPacked(layer.experts[e].down, Stored(checkpoint, at(expert + ".down_proj.weight")), hidden,
                     config.moe.intermediate_size);
      }
    }
    ExpectVector(layer.input_norm, Stored(checkpoint, at("input_layernorm.weight")));
    ExpectVector(layer.post_attention_norm, Stored(checkpoint, at("post_attention_layernorm.weight")));
    // Absent vectors are null for the kernels.
    EXPECT_EQ(layer.qkv_bias.data() != nullptr, config.qkv_bias);
    EXPECT_EQ(layer.query_bias.data() != nullptr, config.qkv_bias);
    EXPECT_EQ(layer.o_bias.data() != nullptr, config.o_bias);
    EXPECT_EQ(layer.gate_up_bias.data() != nullptr, config.mlp_bias);
    EXPECT_EQ(layer.down_bias.data() != nullptr, config.mlp_bias);
    EXPECT_EQ(layer.q_norm.data() != nullptr, config.qk_norm);
    EXPECT_EQ(layer.k_norm.data() != nullptr, config.qk_norm);
    if (config.qkv_bias) {
      ExpectVector(layer.qkv_bias, Stacked(checkpoint, {at("self_attn.q_proj.bias"), at("self_attn.k_proj.bias"),
                                                        at("self_attn.v_proj.bias")}));
      ExpectVector(layer.query_bias, Stored(checkpoint, at("self_attn.q_proj.bias")));
    }
    if (config.o_bias) ExpectVector(layer.o_bias, Stored(checkpoint, at("self_attn.o_proj.bias")));
    if (config.mlp_bias) {
      ExpectVector(layer.gate_up_bias, Stacked(checkpoint, {at("mlp.gate_proj.bias"), at("mlp.up_proj.bias")}));
      ExpectVector(layer.down_bias, Stored(checkpoint, at("mlp.down_proj.bias")));
    }
    if (config.qk_norm) {
      ExpectVector(layer.q_norm, Stored(checkpoint, at("self_attn.q_norm.weight")));
      ExpectVector(layer.k_norm, Stored(checkpoint, at("self_attn.k_norm.weight")));
    }
  }
  ExpectVector(weights.final_norm(), Stored(checkpoint, "model.norm.weight"));
  ExpectPacked(weights.lm_head(),
               Stored(checkpoint, config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"),
               config.vocab_size, hidden);
  const TensorView embedding = checkpoint.Find("model.embed_tokens.weight").value();
  EXPECT_EQ(weights.embedding().dtype, *WeightDtype(embedding.dtype));
  EXPECT_EQ(std::memcmp(weights.embedding().data, embedding.bytes.data(), embedding.bytes.size()), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.embedding().data) % DtypeBytes(weights.embedding().dtype), 0u);
}

absl::StatusOr<std::unique_ptr<ModelWeights>> Load(const std::string& directory, Dtype compute_dtype) {
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  WINNOW_ASSIGN_OR_RETURN(std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::Open(directory));
  return ModelWeights::Load(checkpoint, config, *CpuKernels("portable").value(), {.compute_dtype = compute_dtype});
}

struct Case {
  const char* name;
  TinyModel model;
};
void PrintTo(const Case& value, std::ostream* out) {
  *out << value.name;
}

class WeightsTest : public testing::TestWithParam<std::tuple<Case, Dtype>> {};

TEST_P(WeightsTest, LoadsWhatTheFileHolds) {
  const auto& [test_case, compute_dtype] = GetParam();
  const TempDir dir;
  WriteTinyCheckpoint(test_case.model, dir.path());
  const auto weights = Load(dir.path(), compute_dtype);
  ASSERT_THAT(weights, IsOkStatus());
  EXPECT_EQ((*weights)->compute_dtype(), compute_dtype);
  ExpectLoaded(**weights, *Checkpoint::Open(dir.path()).value());
}

const nlohmann::json kLinear = {{"rope_type", "linear"}, {"rope_theta", 10000.0}, {"factor", 2.0}};
const nlohmann::json kYarn = {
    {"rope_type", "yarn"}, {"rope_theta", 1e6}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};

INSTANTIATE_TEST_SUITE_P(
    Shapes, WeightsTest,
    testing::Combine(
        testing::Values(
            Case{"Qwen3", {}},
            Case{"Qwen3WholePanels", {.num_query_heads = 8, .num_kv_heads = 4, .storage = Dtype::kF32}},
            Case{"Qwen3Sharded", {.tie_word_embeddings = true, .storage = Dtype::kF16, .num_files = 5}},
            Case{"Qwen2", {.family = ModelFamily::kQwen2, .tie_word_embeddings = true, .storage = Dtype::kF32}},
            Case{"LlamaLinear", {.family = ModelFamily::kLlama, .rope_parameters = kLinear, .storage = Dtype::kF16}},
            Case{"LlamaYarnBiased",
                 {.family = ModelFamily::kLlama,
                  .attention_bias = true,
                  .mlp_bias = true,
                  .rope_parameters = kYarn,
                  .storage = Dtype::kF32}},
            Case{"Qwen3Moe", {.family = ModelFamily::kQwen3Moe, .extra_fields = {{"mlp_only_layers", {0}}}}},
            Case{"MistralOneKvHead", {.family = ModelFamily::kMistral, .num_kv_heads = 1}},
            Case{"GroupOf5",
                 {.hidden_size = 40,
                  .intermediate_size = 70,
                  .num_query_heads = 10,
                  .num_kv_heads = 2,
                  .head_dim = 6,
                  .storage = Dtype::kF16}}),
        testing::Values(Dtype::kBf16, Dtype::kF32)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" + DtypeName(std::get<1>(info.param));
    });

TEST(WeightsLoadTest, TensorsMayDifferInDtypeAndLieUnaligned) {
  const TinyModel model;
  std::vector<TensorToWrite> tensors = TinyTensors(model);
  constexpr Dtype kMixed[] = {Dtype::kF32, Dtype::kF16, Dtype::kBf16};
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].dtype = kMixed[i % 3];
  const TempDir dir;
  WriteTinyCheckpoint(model, dir.path());
  std::string bytes = SafetensorsBytes(tensors);
  // One more byte of header puts every tensor at an odd address.
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  bytes.insert(8 + header_bytes, " ");
  ++header_bytes;
  std::memcpy(bytes.data(), &header_bytes, 8);
  dir.Write("model.safetensors", bytes);
  const auto weights = Load(dir.path(), Dtype::kBf16);
  ASSERT_THAT(weights, IsOkStatus());
  ExpectLoaded(**weights, *Checkpoint::Open(dir.path()).value());
}

TEST(WeightsLoadTest, LoadsTheGoldenModels) {
  for (const char* directory : {"tests/testdata/tiny/llama3-rope-scaled", "tests/testdata/tiny/qwen2-bias-tied",
                                "tests/testdata/tiny/qwen3-headdim"}) {
    const auto weights = Load(directory, Dtype::kBf16);
    ASSERT_THAT(weights, IsOkStatus());
    ExpectLoaded(**weights, *Checkpoint::Open(directory).value());
  }
}

TEST(WeightsLoadTest, NamesATensorThatIsNotFinite) {
  const TinyModel model{.storage = Dtype::kF32};
  for (const char* name : {"model.layers.1.self_attn.k_proj.weight", "model.layers.0.self_attn.q_norm.weight",
                           "lm_head.weight", "model.embed_tokens.weight"}) {
    std::vector<TensorToWrite> tensors = TinyTensors(model);
    for (TensorToWrite& tensor : tensors) {
      if (tensor.name == name) tensor.values[5] = std::numeric_limits<float>::infinity();
    }
    const TempDir dir;
    WriteTinyCheckpoint(model, dir.path());
    dir.Write("model.safetensors", SafetensorsBytes(tensors));
    EXPECT_THAT(Load(dir.path(), Dtype::kBf16),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          AllOf(HasSubstr("model.safetensors: tensor '"), HasSubstr(name), HasSubstr("element 5"))));
  }
}

TEST(WeightsLoadTest, RefusesWhatDoesNotFit) {
  const TempDir dir;
  WriteTinyCheckpoint({}, dir.path());
  EXPECT_THAT(Load(dir.path(), Dtype::kF16), FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("f16")));
  dir.Write("config.json", TinyConfigJson({.vocab_size = 97}).dump());
  EXPECT_THAT(Load(dir.path(), Dtype::kF32),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("'model.embed_tokens.weight'")));
}

}  // namespace
}  // namespace winnow
