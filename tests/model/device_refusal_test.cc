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

absl::Status Check(ModelFamily family, const nlohmann::json& fields = nlohmann::json::object()) {
  const TinyModel model{.family = family, .head_dim = 64, .extra_fields = fields};
  return CheckDeviceModel(ParseModelConfig(TinyConfigJson(model).dump(), "", "tiny").value(), {});
}

TEST(DeviceRefusalTest, NamesWhatThereIsNoKernelFor) {
  for (const ModelFamily family :
       {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2, ModelFamily::kQwen3}) {
    EXPECT_THAT(Check(family), IsOkStatus()) << ModelFamilyName(family);
  }
  const auto refused = [](ModelFamily family, const char* what) {
    return FailsWith(absl::StatusCode::kUnimplemented, AllOf(HasSubstr(what), HasSubstr(ModelFamilyName(family))));
  };
  for (const ModelFamily family : {ModelFamily::kMixtral, ModelFamily::kQwen3Moe}) {
    EXPECT_THAT(Check(family), IsOkStatus()) << ModelFamilyName(family);
  }
  EXPECT_THAT(Check(ModelFamily::kQwen2Moe, {{"shared_expert_intermediate_size", 80}}), IsOkStatus());
  EXPECT_THAT(Check(ModelFamily::kQwen2Moe), refused(ModelFamily::kQwen2Moe, "no multiple of another's"));
  EXPECT_THAT(Check(ModelFamily::kGptOss), refused(ModelFamily::kGptOss, "its activation"));
  EXPECT_THAT(Check(ModelFamily::kPhi3), refused(ModelFamily::kPhi3, "stored as one tensor"));
  EXPECT_THAT(Check(ModelFamily::kOlmo2), refused(ModelFamily::kOlmo2, "norms after attention"));
  EXPECT_THAT(Check(ModelFamily::kGemma3), refused(ModelFamily::kGemma3, "norms after attention"));
  EXPECT_THAT(Check(ModelFamily::kMistral, {{"sliding_window", 128}}),
              refused(ModelFamily::kMistral, "sliding windows"));
}

}  // namespace
}  // namespace winnow
