#include "common/selection/spec_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/json.h"
#include "common/selection/presets.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

absl::StatusOr<SelectionSpec> Parse(const Json& object) {
  const absl::StatusOr<SpecChanges> changes = SpecChangesFromJson(object);
  if (!changes.ok()) return changes.status();
  return ApplyChanges(*changes, SelectionSpec());
}

std::string ErrorOf(const Json& object) {
  return std::string(Parse(object).status().message());
}

TEST(SpecJson, TakesTheTypesOfTheFields) {
  const auto spec = Parse(Json::parse(
      R"({"preset": "async-token", "budget": 512, "post_rope": false, "epsilon": 0.25, "variant": "ridge", "window": 4.0,
          "pool_factor": 3, "recent": null})"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  SelectionSpec expected = *FindPreset("async-token");
  expected.budget_tokens = 512;
  expected.post_rope = false;
  expected.epsilon = 0.25f;
  expected.temporal_variant = TemporalVariant::kRidge;
  expected.window = 4;
  expected.pool_factor = 3;
  EXPECT_EQ(*spec, expected);
  EXPECT_EQ(*Parse(Json::object()), SelectionSpec());
  EXPECT_EQ(Parse({{"budget", "unlimited"}})->budget_tokens, kUnlimitedBudget);
}

TEST(SpecJson, PresetsSurviveTheTrip) {
  for (const SelectionPreset& preset : SelectionPresets()) {
    const Json object = Json::parse(FullSpecJson(preset.spec).dump());
    EXPECT_EQ(object.size(), 1 + SelectionFields().size());
    const auto back = Parse(object);
    ASSERT_TRUE(back.ok()) << object << back.status();
    EXPECT_EQ(*back, preset.spec) << object;
  }
  EXPECT_EQ(FullSpecJson(SelectionSpec())["epsilon"].dump(), "0.05") << "a float's digits, not a double's";
  EXPECT_EQ(FullSpecJson(SelectionSpec())["budget"].dump(), "2048");
}

TEST(SpecJson, ErrorsNameTheField) {
  EXPECT_EQ(ErrorOf(Json::parse("[1]")), "selection: must be an object, not array");
  EXPECT_EQ(ErrorOf({{"preset", 5}}), "selection.preset must be a string, not number");
  EXPECT_EQ(ErrorOf({{"window", "8"}}), "selection.window must be a number, not string");
  EXPECT_EQ(ErrorOf({{"predictor", 1}}), "selection.predictor must be a string, not number");
  EXPECT_EQ(ErrorOf({{"post_rope", "true"}}), "selection.post_rope must be true or false, not string");
  EXPECT_EQ(ErrorOf({{"window", 8.5}}), "selection.window is \"8.5\", not a whole number in 2..32");
  EXPECT_EQ(ErrorOf({{"window", 1e300}}), "selection.window is \"inf\", not a whole number in 2..32");
  EXPECT_THAT(ErrorOf({{"budget", "lots"}}), HasSubstr("selection.budget is \"lots\""));
  EXPECT_THAT(ErrorOf({{"scorers", "token"}}), HasSubstr("did you mean \"scorer\"?"));
  EXPECT_THAT(ErrorOf({{"head_budgets", Json::array({1, 2})}}), HasSubstr("selection.head_budgets must be a string"));
}

}  // namespace
}  // namespace winnow
