// Quantised checkpoints mean the weights that their formats define, and say what is wrong with them.
#include "common/model/quantized/stored_weight.h"

#include <gtest/gtest.h>

#include "common/model/model_tensors.h"
#include "common/model/tensor_elements.h"
#include "tests/support/quantized_checkpoint.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kUp[] = "model.layers.1.mlp.up_proj";

QuantizedForm Form(std::string_view name) {
  for (const QuantizedForm& form : QuantizedForms()) {
    if (form.name == name) return form;
  }
  ADD_FAILURE() << name;
  return {};
}

class StoredWeightTest : public testing::TestWithParam<QuantizedForm> {};

TEST_P(StoredWeightTest, HasTheWeightsThatItsFormatDefines) {
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(QuantizableModel(), GetParam(), quantized.path(), plain.path());
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(quantized.path());
  ASSERT_THAT(config, IsOkStatus());
  EXPECT_THAT(config->warnings, IsEmpty());
  const auto checkpoint = Checkpoint::Open(quantized.path()).value();
  const auto expected = Checkpoint::Open(plain.path()).value();
  const auto warnings = ValidateTensors(*checkpoint, *config);
  ASSERT_THAT(warnings, IsOkStatus());
  EXPECT_THAT(*warnings, IsEmpty());
  EXPECT_THAT(CheckWeightsFinite(*checkpoint, *config, 2), IsOkStatus());

  int num_quantized = 0;
  for (const ExpectedTensor& tensor : ExpectedTensors(*config)) {
    if (!IsLinearWeight(tensor)) continue;
    SCOPED_TRACE(tensor.name);
    const auto weight =
        StoredWeight::Open(*checkpoint, config->quantization, tensor.name, tensor.shape[0], tensor.shape[1]);
    ASSERT_THAT(weight, IsOkStatus());
    num_quantized += weight->is_plain() ? 0 : 1;
    std::vector<float> values, reference;
    for (uint64_t row = 0; row < tensor.shape[0]; ++row) weight->AppendAsF32(row, 0, tensor.shape[1], values);
    AppendAsF32(expected->Find(tensor.name).value(), 0, tensor.shape[0] * tensor.shape[1], reference);
    ASSERT_EQ(values, reference);
    std::vector<float> part;
    weight->AppendAsF32(3, 17, 9, part);
    const auto at = reference.begin() + static_cast<std::ptrdiff_t>(3 * tensor.shape[1] + 17);
    ASSERT_EQ(part, std::vector<float>(at, at + 9));
  }
  EXPECT_EQ(num_quantized, 7 * config->num_layers);
}

INSTANTIATE_TEST_SUITE_P(Forms, StoredWeightTest, testing::ValuesIn(QuantizedForms()),
                         [](const auto& info) { return std::string(info.param.name); });

// What validation says of a checkpoint in which something was changed.
std::string Refusal(const char* form, const std::function<void(RawTensors&)>& change) {
  const TempDir quantized, plain;
  WriteQuantizedCheckpoint(QuantizableModel(), Form(form), quantized.path(), plain.path(), nullptr, change);
  const ModelConfig config = LoadModelConfig(quantized.path()).value();
  const auto checkpoint = Checkpoint::Open(quantized.path()).value();
  const auto warnings = ValidateTensors(*checkpoint, config);
  return warnings.ok() ? "accepted" : std::string(warnings.status().message());
}

TEST(StoredWeightErrorTest, NamesTensorFileAndWhatWasExpected) {
  EXPECT_THAT(Refusal("Fp8Blocks", [](RawTensors& t) { t.erase(std::string(kUp) + ".weight_scale_inv"); }),
              HasSubstr("tensor 'model.layers.1.mlp.up_proj.weight_scale_inv' of shape [6, 2] is missing, which fp8 "
                        "weights have"));
  EXPECT_THAT(Refusal("Fp8Blocks", [](RawTensors& t) { t[std::string(kUp) + ".weight_scale_inv"].shape = {12}; }),
              AllOf(HasSubstr("up_proj.weight_scale_inv' in "), HasSubstr("model.safetensors has shape [12] instead of "
                                                                          "[6, 2]")));
  EXPECT_THAT(Refusal("Fp8Rows",
                      [](RawTensors& t) {
                        t[std::string(kUp) + ".weight_scale"].shape = {2, 48};
                      }),
              HasSubstr("has shape [2, 48] instead of [] or [1] or [1, 1] or [96, 1] or [96]"));
  EXPECT_THAT(Refusal("Fp8Tensor", [](RawTensors& t) { t[std::string(kUp) + ".weight"].dtype = "F8_E5M2"; }),
              HasSubstr("has dtype F8_E5M2; only F8_E4M3 is supported"));
  EXPECT_THAT(Refusal("Gptq", [](RawTensors& t) { t.erase(std::string(kUp) + ".qzeros"); }),
              HasSubstr("up_proj.qzeros' of shape [2, 12] is missing, which gptq weights have"));
  EXPECT_THAT(Refusal("Awq",
                      [](RawTensors& t) {
                        t[std::string(kUp) + ".qweight"].shape = {12, 64};
                      }),
              HasSubstr("has shape [12, 64] instead of [64, 12]"));
  EXPECT_THAT(Refusal("GptqActOrder", [](RawTensors& t) { t[std::string(kUp) + ".g_idx"].bytes[0] ^= 1; }),
              HasSubstr("up_proj.g_idx' in "));
  EXPECT_THAT(Refusal("GptqActOrder", [](RawTensors& t) { t[std::string(kUp) + ".g_idx"].bytes[3] = '\x7f'; }),
              HasSubstr("does not give 32 inputs to each of 2 groups"));
}

TEST(StoredWeightErrorTest, NamesCodesAndScalesThatAreNotFinite) {
  const auto finite = [](const char* form, const std::function<void(RawTensors&)>& change) {
    const TempDir quantized, plain;
    WriteQuantizedCheckpoint(QuantizableModel(), Form(form), quantized.path(), plain.path(), nullptr, change);
    const ModelConfig config = LoadModelConfig(quantized.path()).value();
    return CheckWeightsFinite(*Checkpoint::Open(quantized.path()).value(), config, 1);
  };
  EXPECT_THAT(
      finite("Fp8Rows", [](RawTensors& t) { t[std::string(kUp) + ".weight"].bytes[7] = '\xff'; }),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("up_proj.weight' is not finite (NaN) at element 7")));
  EXPECT_THAT(finite("Gptq", [](RawTensors& t) { t[std::string(kUp) + ".scales"].bytes[5] = '\x7c'; }),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("up_proj.scales' is not finite")));
}

TEST(StoredWeightErrorTest, LayersThatAreNotConvertedStayPlain) {
  QuantizedForm form = Form("Fp8Blocks");
  form.config["modules_to_not_convert"] = {"lm_head", "model.layers.1.mlp"};
  const TempDir quantized, plain;
  const auto leave = [](const std::string& name) { return name.find("layers.1.mlp") != std::string::npos; };
  WriteQuantizedCheckpoint(QuantizableModel(), form, quantized.path(), plain.path(), leave);
  const ModelConfig config = LoadModelConfig(quantized.path()).value();
  EXPECT_THAT(ValidateTensors(*Checkpoint::Open(quantized.path()).value(), config), IsOkStatus());

  WriteQuantizedCheckpoint(QuantizableModel(), form, quantized.path(), plain.path());
  EXPECT_THAT(ValidateTensors(*Checkpoint::Open(quantized.path()).value(), config),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("mlp.up_proj.weight' in " + quantized.path() +
                                  "/model.safetensors has dtype F8_E4M3; supported are F32, F16 and BF16")));
}

TEST(StoredWeightErrorTest, ScalesOfActivationsAreNoSurprise) {
  EXPECT_EQ(Refusal("Fp8Tensor",
                    [](RawTensors& t) {
                      t[std::string(kUp) + ".input_scale"] = {"F32", {}, std::string(4, '\0')};
                    }),
            "accepted");
}

}  // namespace
}  // namespace winnow
