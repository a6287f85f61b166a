// A GPU refuses a model that it has no kernels for, and says what they would be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/weights/device_weights.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::HasSubstr;

absl::Status Check(ModelFamily family, const nlohmann::json& fields = nlohmann::json::object(), int num_gpus = 1) {
  const TinyModel model{.family = family, .head_dim = 64, .extra_fields = fields};
  return CheckDeviceModel(ParseModelConfig(TinyConfigJson(model).dump(), "", "tiny").value(),
                          {.shard = {.count = num_gpus}});
}

TEST(DeviceRefusalTest, NamesWhatThereIsNoKernelFor) {
  for (const ModelFamily family :
       {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2, ModelFamily::kQwen3, ModelFamily::kMixtral,
        ModelFamily::kQwen3Moe, ModelFamily::kGptOss, ModelFamily::kPhi3, ModelFamily::kOlmo2, ModelFamily::kOlmo3,
        ModelFamily::kGemma3}) {
    EXPECT_THAT(Check(family), IsOkStatus()) << ModelFamilyName(family);
  }
  EXPECT_THAT(Check(ModelFamily::kMistral, {{"sliding_window", 128}}), IsOkStatus());
  EXPECT_THAT(Check(ModelFamily::kQwen2Moe, {{"shared_expert_intermediate_size", 80}}), IsOkStatus());
  EXPECT_THAT(Check(ModelFamily::kGlm4Moe), IsOkStatus());
  const auto refused = [](ModelFamily family, const char* what) {
    return FailsWith(absl::StatusCode::kUnimplemented, AllOf(HasSubstr(what), HasSubstr(ModelFamilyName(family))));
  };
  EXPECT_THAT(Check(ModelFamily::kQwen2Moe), refused(ModelFamily::kQwen2Moe, "no multiple of another's"));
  EXPECT_THAT(Check(ModelFamily::kQwen3Next), refused(ModelFamily::kQwen3Next, "layers of linear attention"));
  EXPECT_THAT(Check(ModelFamily::kDeepseekV2), IsOkStatus());
  EXPECT_THAT(Check(ModelFamily::kDeepseekV3), IsOkStatus());
  EXPECT_THAT(Check(ModelFamily::kDeepseekV3, {{"q_lora_rank", nullptr}}), IsOkStatus());
  EXPECT_THAT(Check(ModelFamily::kDeepseekV3, {{"kv_lora_rank", 40}}),
              refused(ModelFamily::kDeepseekV3, "latents of 40 and 16"));
  EXPECT_THAT(Check(ModelFamily::kDeepseekV3, {{"kv_lora_rank", 640}}),
              refused(ModelFamily::kDeepseekV3, "more than 576 elements"));
  EXPECT_THAT(Check(ModelFamily::kDeepseekV32), IsOkStatus());
  EXPECT_THAT(Check(ModelFamily::kGlmMoeDsa), IsOkStatus());
  EXPECT_THAT(Check(ModelFamily::kDeepseekV32, {{"index_head_dim", 36}}),
              refused(ModelFamily::kDeepseekV32, "an indexer of 3 heads of 36"));
  EXPECT_THAT(Check(ModelFamily::kLlama, {{"mlp_bias", true}}), refused(ModelFamily::kLlama, "biases of the MLP"));
  EXPECT_THAT(Check(ModelFamily::kOlmo2, {{"attention_bias", true}}),
              refused(ModelFamily::kOlmo2, "biases of attention before a norm"));
  EXPECT_THAT(Check(ModelFamily::kGemma2), refused(ModelFamily::kGemma2, "a cap of attention scores"));
  EXPECT_THAT(Check(ModelFamily::kGemma3, {{"final_logit_softcapping", 30}}),
              refused(ModelFamily::kGemma3, "a cap of logits"));
}

TEST(DeviceRefusalTest, NamesAWidthThatProductsCannotRead) {
  const auto check = [](int intermediate_size, Dtype dtype) {
    const TinyModel model{.hidden_size = 64, .intermediate_size = intermediate_size, .head_dim = 64};
    return CheckDeviceModel(ParseModelConfig(TinyConfigJson(model).dump(), "", "tiny").value(),
                            {.dtype = dtype, .shard = {}});
  };
  EXPECT_THAT(check(40, Dtype::kBf16), IsOkStatus());
  EXPECT_THAT(check(44, Dtype::kBf16),
              FailsWith(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("multiples of 8"), HasSubstr("not 44"))));
  EXPECT_THAT(check(40, Dtype::kF8),
              FailsWith(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("multiples of 32"), HasSubstr("not 40"))));
}

TEST(DeviceRefusalTest, NamesWhatSeveralGpusCannotShare) {
  const auto refused = [](const char* what) {
    return FailsWith(absl::StatusCode::kUnimplemented, AllOf(HasSubstr(what), HasSubstr("--tensor-parallel=1")));
  };
  EXPECT_THAT(Check(ModelFamily::kLlama, nlohmann::json::object(), 2), IsOkStatus());
  EXPECT_THAT(Check(ModelFamily::kMistral, {{"sliding_window", 128}}, 2), refused("sliding windows"));
  EXPECT_THAT(Check(ModelFamily::kOlmo2, nlohmann::json::object(), 2), refused("norms after attention"));
  EXPECT_THAT(Check(ModelFamily::kLlama, {{"attention_bias", true}}, 2), refused("a bias of o"));
  EXPECT_THAT(Check(ModelFamily::kMixtral, nlohmann::json::object(), 2), refused("a mixture of experts"));
  EXPECT_THAT(Check(ModelFamily::kDeepseekV3, nlohmann::json::object(), 2), refused("latent attention"));
}

}  // namespace
}  // namespace winnow
