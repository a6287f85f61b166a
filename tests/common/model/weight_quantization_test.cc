#include "common/model/quantized/weight_quantization.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using nlohmann::json;
using testing::HasSubstr;

absl::StatusOr<WeightQuantization> ParseQuantization(const json& quantization) {
  const json config = {{"quantization_config", quantization}};
  return ParseWeightQuantization(JsonFields(config, "config.json"));
}

json Group(const json& changes) {
  json weights = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 128}};
  weights.update(changes);
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

TEST(WeightQuantizationTest, NothingIsQuantisedWithoutTheField) {
  const json config = json::object();
  const auto none = ParseWeightQuantization(JsonFields(config, "config.json"));
  ASSERT_THAT(none, IsOkStatus());
  EXPECT_EQ(none->format, WeightQuantization::Format::kNone);
  EXPECT_FALSE(none->Converts("model.layers.0.mlp.up_proj"));
}

TEST(WeightQuantizationTest, NamesWhatIsNotSupported) {
  const auto expect = [](const json& quantization, const std::string& message) {
    EXPECT_THAT(ParseQuantization(quantization), FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << quantization.dump();
  };
  expect({{"bits", 4}}, "config.json: quantization_config.quant_method is missing; supported are fp8");
  expect({{"quant_method", "bitsandbytes"}}, "quantization_config.quant_method is 'bitsandbytes'; supported are fp8");
  expect({{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "quantization_config.fmt is 'e5m2'; only e4m3 is supported");
  expect({{"quant_method", "fp8"}, {"weight_block_size", {128}}},
         "weight_block_size is [128]; supported are two sizes");
  expect({{"quant_method", "gptq"}, {"bits", 3}}, "quantization_config.bits is 3; supported is 4 and 8");
  expect({{"quant_method", "gptq"}}, "quantization_config.bits is missing");
  expect({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 100}},
         "quantization_config.group_size is 100; supported are -1 and multiples of 32");
  expect({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}}, "checkpoint_format is 'marlin'");
  expect({{"quant_method", "gptq"}, {"bits", 4}, {"dynamic", {{"+:.*gate.*", {{"bits", 8}}}}}},
         "quantization_config.dynamic changes '+:.*gate.*'");
  expect({{"quant_method", "awq"}, {"bits", 8}}, "quantization_config.bits is 8; supported is 4");
  expect({{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}}, "version is 'gemv'; only gemm is supported");
  expect(Group({{"num_bits", 2}}), "quantization_config.config_groups.group_0.weights.num_bits is 2");
  expect(Group({{"type", "float"}}), "weights.type is 'float'; only int is supported");
  expect(Group({{"strategy", "token"}}), "weights.strategy is 'token'");
  json two = Group(json::object());
  two["config_groups"]["group_1"] = two["config_groups"]["group_0"];
  expect(two, "quantization_config.config_groups must hold one group");
  json pattern = Group(json::object());
  pattern["ignore"] = {"re:(unclosed"};
  expect(pattern, "quantization_config.ignore holds 're:(unclosed', which is no regular expression");
  pattern["ignore"] = {"re:" + std::string(100'000, '(')};
  expect(pattern, "which is longer than 256");
  json format = Group(json::object());
  format["format"] = "nvfp4-pack-quantized";
  expect(format, "quantization_config.format is 'nvfp4-pack-quantized'");
}

TEST(WeightQuantizationTest, ListedModulesAreNotConverted) {
  json config = Group(json::object());
  config["ignore"] = {"lm_head", "re:.*self_attn.*", "model.layers.2.", "mlp.gate"};
  const auto parsed = ParseQuantization(config);
  ASSERT_THAT(parsed, IsOkStatus());
  for (const char* module :
       {"lm_head", "model.layers.0.self_attn.q_proj", "model.layers.2.mlp.up_proj", "model.layers.5.mlp.gate"}) {
    EXPECT_FALSE(parsed->Converts(module)) << module;
  }
  for (const char* module : {"model.layers.0.mlp.gate_proj", "model.layers.22.mlp.up_proj"}) {
    EXPECT_TRUE(parsed->Converts(module)) << module;
  }
}

}  // namespace
}  // namespace winnow
