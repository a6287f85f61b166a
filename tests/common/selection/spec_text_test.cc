#include "common/selection/spec_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/selection/presets.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

std::string TextErrorOf(std::string_view text) {
  return std::string(ParseSpec(text).status().message());
}

TEST(SpecText, APresetAndWhatIsChangedOfIt) {
  const auto spec = ParseSpec("winnow,predictor=temporal,window=16,budget=512");
  ASSERT_TRUE(spec.ok()) << spec.status();
  SelectionSpec expected = *FindPreset("winnow");
  expected.predictor = Predictor::kTemporal;
  expected.window = 16;
  expected.budget_tokens = 512;
  EXPECT_EQ(*spec, expected);
  EXPECT_EQ(*ParseSpec(" winnow , window = 16,predictor=temporal,budget=9,budget=512 "), expected) << "the last wins";
  EXPECT_EQ(*ParseSpec("budget=512,window=16,predictor=temporal"), expected) << "winnow is the preset of those without";
  EXPECT_EQ(ParseSpec("quest")->scorer, Scorer::kPageMinmax);
}

TEST(SpecText, PrintsWhatDiffersFromThePreset) {
  EXPECT_EQ(SpecText(*FindPreset("lserve")), "lserve");
  EXPECT_EQ(SpecText(*ParseSpec("budget=512,window=16,predictor=temporal")),
            "winnow,predictor=temporal,window=16,budget=512");
  EXPECT_EQ(SpecText(*ParseSpec("winnow,budget=2048,pool_factor=4.0")), "winnow") << "values that are the preset's";
  EXPECT_EQ(SpecText(*ParseSpec("depth,budget=unlimited,epsilon=0.1")), "depth,epsilon=0.1,budget=unlimited");
  SelectionSpec profiled;
  profiled.head_budgets = {1, 2};
  EXPECT_EQ(SpecText(profiled), "depth,head_budgets=from profile");
}

TEST(SpecText, PresetsSurviveBothForms) {
  for (const SelectionPreset& preset : SelectionPresets()) {
    for (const std::string& text : {SpecText(preset.spec), FullSpecText(preset.spec)}) {
      const auto back = ParseSpec(text);
      ASSERT_TRUE(back.ok()) << text << ": " << back.status();
      EXPECT_EQ(*back, preset.spec) << text;
    }
    // The full form says everything: on top of another preset it gives the same but for the name.
    std::string fields = FullSpecText(preset.spec);
    fields.replace(0, fields.find(','), "quest");
    SelectionSpec renamed = preset.spec;
    renamed.preset = "quest";
    EXPECT_EQ(*ParseSpec(fields), renamed);
    EXPECT_EQ(*ParseSpec(SpecText(renamed)), renamed) << SpecText(renamed);
  }
}

TEST(SpecText, FloatsKeepTheirBits) {
  for (const char* text : {"0.1", "0.05", "0.33333334", "1e-07", "1"}) {
    const SelectionSpec spec = *ParseSpec(std::string("winnow,epsilon=") + text);
    EXPECT_EQ(*ParseSpec(SpecText(spec)), spec) << SpecText(spec);
  }
}

TEST(SpecText, ErrorsNameTheMistake) {
  EXPECT_THAT(TextErrorOf("psychic"),
              HasSubstr("unknown selection preset \"psychic\"; there are: winnow, native, depth, async-token"));
  EXPECT_THAT(TextErrorOf("sparseserv"), HasSubstr("did you mean \"sparseserve\"?"));
  EXPECT_THAT(TextErrorOf(""), HasSubstr("unknown selection preset \"\""));
  EXPECT_THAT(TextErrorOf("winnow,budjet=5"), HasSubstr("did you mean \"budget\"?"));
  EXPECT_THAT(TextErrorOf("winnow,budget=-5"), HasSubstr("selection.budget is \"-5\""));
  EXPECT_EQ(TextErrorOf("winnow,quest"), "selection: \"quest\" is no field=value; the form is preset[,field=value...]");
  EXPECT_EQ(TextErrorOf("winnow,"), "selection: \"\" is no field=value; the form is preset[,field=value...]");
  EXPECT_EQ(TextErrorOf("winnow,budget="),
            "selection.budget is \"\", not a whole number in 1..4294967294 or \"unlimited\"");
  EXPECT_EQ(SpecErrorField(ParseSpec("psychic").status()), "preset");
  EXPECT_LT(TextErrorOf(std::string(100000, 'x')).size(), 1000u) << "what is echoed of a long text is short";
  EXPECT_LT(TextErrorOf("winnow,budget=" + std::string(100000, '9')).size(), 1000u);
  EXPECT_LT(TextErrorOf("winnow," + std::string(100000, 'y') + "=1").size(), 2000u);
}

}  // namespace
}  // namespace winnow
