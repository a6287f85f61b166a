#include "common/model/synthetic_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/model_tensors.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

uint64_t Parameters(const ModelConfig& config) {
  uint64_t count = 0;
  for (const ExpectedTensor& tensor : ExpectedTensors(config)) {
    uint64_t elements = 1;
    for (const uint64_t size : tensor.shape) elements *= size;
    if (tensor.name.ends_with("_scales")) continue;
    count += tensor.is_bytes ? 2 * elements : elements;  // codes of four bits
  }
  return count;
}

struct Model {
  const char* name;
  double billions;  // of parameters, as the model's card gives them
};

class SyntheticModelsTest : public testing::TestWithParam<Model> {};

TEST_P(SyntheticModelsTest, HasAsManyParametersAsTheRealOne) {
  const absl::StatusOr<ModelConfig> config = SyntheticModelConfig(GetParam().name);
  ASSERT_THAT(config, IsOkStatus());
  EXPECT_NEAR(static_cast<double>(Parameters(*config)) / 1e9, GetParam().billions, 0.05);
  EXPECT_EQ(config->num_query_heads % config->num_kv_heads, 0);
}

INSTANTIATE_TEST_SUITE_P(All, SyntheticModelsTest,
                         testing::Values(Model{"synthetic:deepseek-v2-lite", 15.71},
                                         Model{"synthetic:gpt-oss-20b", 20.91}, Model{"synthetic:llama3-8b", 8.03},
                                         Model{"synthetic:qwen3-0.6b", 0.60}, Model{"synthetic:qwen3-8b", 8.19},
                                         Model{"synthetic:qwen3-14b", 14.77}, Model{"synthetic:qwen3-30b-a3b", 30.53},
                                         Model{"synthetic:qwen3-32b", 32.76}),
                         [](const auto& info) { return "Model" + std::to_string(info.index); });

TEST(SyntheticModels, OneTokenOfQwen3_14bTakes163840BytesOfKv) {
  EXPECT_EQ(SyntheticModelConfig("synthetic:qwen3-14b")->kv_layout(Dtype::kBf16).token_bytes(), 163840u);
}

TEST(SyntheticModels, ASuffixQuantisesModelsWithoutExperts) {
  const WeightQuantization fp8 = SyntheticModelConfig("synthetic:qwen3-8b-fp8")->quantization;
  EXPECT_EQ(fp8.format, WeightQuantization::Format::kFp8);
  EXPECT_EQ(fp8.block_rows, 128);
  EXPECT_EQ(fp8.block_columns, 128);
  const WeightQuantization int4 = SyntheticModelConfig("synthetic:qwen3-8b-int4")->quantization;
  EXPECT_EQ(int4.format, WeightQuantization::Format::kAwq);
  EXPECT_EQ(int4.bits, 4);
  EXPECT_EQ(int4.block_columns, 128);
  EXPECT_EQ(SyntheticModelConfig("synthetic:qwen3-8b")->quantization.format, WeightQuantization::Format::kNone);
  EXPECT_EQ(SyntheticModelConfig("synthetic:qwen3-30b-a3b-fp8").status().code(), absl::StatusCode::kNotFound);
}

TEST(SyntheticModels, AnUnknownNameListsTheKnownOnes) {
  const absl::StatusOr<ModelConfig> config = SyntheticModelConfig("synthetic:qwen3-15b");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()),
              testing::AllOf(testing::HasSubstr("\"qwen3-15b\""), testing::HasSubstr("synthetic:qwen3-14b"),
                             testing::HasSubstr("synthetic:llama3-8b")));
}

TEST(SyntheticModels, APathIsNone) {
  EXPECT_FALSE(IsSyntheticModel("/models/qwen3-14b"));
  EXPECT_TRUE(IsSyntheticModel("synthetic:qwen3-14b"));
}

}  // namespace
}  // namespace winnow
