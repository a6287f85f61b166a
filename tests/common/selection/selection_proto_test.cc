#include "common/selection/selection_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "common/selection/presets.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

TEST(SelectionProto, PresetsThatAreBuiltSurviveTheTrip) {
  int built = 0;
  for (const SelectionPreset& preset : SelectionPresets()) {
    if (absl::IsUnimplemented(ValidateSelection(preset.spec))) continue;
    const absl::StatusOr<SelectionSpec> back = FromProto(ToProto(preset.spec));
    ASSERT_TRUE(back.ok()) << preset.spec.preset << ": " << back.status();
    EXPECT_EQ(*back, preset.spec) << preset.spec.preset;
    ++built;
  }
  EXPECT_GE(built, 4);
}

TEST(SelectionProto, UnsetFieldIsNamed) {
  v1::SelectionSpec proto = ToProto(SelectionSpec());
  proto.clear_scorer();
  EXPECT_THAT(std::string(FromProto(proto).status().message()), HasSubstr("selection.scorer"));
}

TEST(SelectionProto, ValueOfALaterVersionIsRefused) {
  v1::SelectionSpec proto = ToProto(SelectionSpec());
  proto.set_predictor(static_cast<v1::Predictor>(99));
  EXPECT_THAT(std::string(FromProto(proto).status().message()), HasSubstr("selection.predictor"));
}

TEST(ValidateSelection, NamesTheFieldThatIsOutOfRange) {
  struct Case {
    const char* field;
    void (*spoil)(SelectionSpec&);
  };
  const Case cases[] = {
      {"window", [](SelectionSpec& s) { s.window = 33; }},
      {"lookahead", [](SelectionSpec& s) { s.lookahead = 0; }},
      {"budget", [](SelectionSpec& s) { s.budget_tokens = 0; }},
      {"pool_factor", [](SelectionSpec& s) { s.pool_factor = std::nanf(""); }},
      {"epsilon", [](SelectionSpec& s) { s.epsilon = -0.1f; }},
      {"reuse_interval", [](SelectionSpec& s) { s.reuse_interval = 17; }},
      {"min_captured_mass", [](SelectionSpec& s) { s.min_captured_mass = 1.5f; }},
      {"page_tokens", [](SelectionSpec& s) { s.page_tokens = 24; }},
      {"physical_page_tokens", [](SelectionSpec& s) { s.page_tokens = 64, s.physical_page_tokens = 32; }},
      {"budget_growth", [](SelectionSpec& s) { s.budget_growth = 3; }},
  };
  for (const Case& c : cases) {
    SelectionSpec spec;
    ASSERT_TRUE(ValidateSelection(spec).ok());
    c.spoil(spec);
    const absl::Status status = ValidateSelection(spec);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.field));
  }
}

}  // namespace
}  // namespace winnow
