#include "tools/bench/quality/spec_choice.h"

#include "common/selection/head_profile.h"
#include "common/selection/presets.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Labels(const std::vector<SpecChoice>& specs) {
  std::vector<std::string> labels;
  for (const SpecChoice& choice : specs) labels.push_back(absl::StrCat(choice.name, ":", choice.budget()));
  return labels;
}

TEST(SpecChoiceTest, ABudgetReplacesThePresets) {
  const SpecChoice choice = ParseSpecChoice("exact-token:256").value();
  SelectionSpec want = FindPreset("exact-token").value();
  EXPECT_EQ(ParseSpecChoice("exact-token").value().spec, want);
  want.budget_tokens = 256;
  EXPECT_EQ(choice.spec, want);
  EXPECT_EQ(choice.name, "exact-token");
}

TEST(SpecChoiceTest, FieldsMayBeChanged) {
  const SpecChoice choice = ParseSpecChoice("winnow,predictor=temporal,min_captured_mass=0.95:256").value();
  EXPECT_EQ(choice.name, "winnow,predictor=temporal,min_captured_mass=0.95");
  EXPECT_EQ(choice.spec.predictor, Predictor::kTemporal);
  EXPECT_EQ(choice.spec.min_captured_mass, 0.95f);
  EXPECT_EQ(choice.spec.budget_tokens, 256u);
}

TEST(SpecChoiceTest, DenseHasNoBudget) {
  EXPECT_EQ(ParseSpecChoice("dense:256").value().spec, FindPreset("dense").value());
  EXPECT_EQ(ParseSpecChoice("dense").value().budget(), 0u);
}

TEST(SpecChoiceTest, ErrorsNameTheText) {
  const auto fails = [](const std::string& what) {
    return FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(ParseSpecChoice("winow:256"), fails("\"winow\""));
  EXPECT_THAT(ParseSpecChoice("winnow,window=99:256"), fails("window=99:256"));
  EXPECT_THAT(ParseSpecChoice("winnow:many"), fails("\"winnow:many\""));
  EXPECT_THAT(ParseSpecChoice("winnow:0"), fails("\"winnow:0\""));
}

TEST(SpecChoiceTest, TheGridIsDenseAndEachTextAtEachBudget) {
  EXPECT_THAT(Labels(SpecGrid({"winnow", "exact-token:64", "dense", "winnow:128"}, {128, 256}).value()),
              ElementsAre("dense:0", "winnow:128", "winnow:256", "exact-token:64"));
}

TEST(SpecChoiceTest, ThoseThatUseAHeadProfileGetItsBudgets) {
  const TempDir folder;
  HeadProfile profile{.num_layers = 1, .num_kv_heads = 2};
  profile.recent_tokens = 64;
  profile.heads.resize(2);
  profile.heads[0].mass_with_rows.fill(0.1);
  profile.heads[1].mass_with_rows.fill(0.2);  // with its first row
  const std::string file = folder.Write("profile", profile.ToJson());
  const KvLayout layout{.num_layers = 1, .num_kv_heads = 2};
  std::vector<SpecChoice> specs = SpecGrid({"winnow", "winnow,profile_use=budgets"}, {101}).value();
  EXPECT_THAT(UseHeadProfile("", layout, &specs),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("\"winnow,profile_use=budgets\"")));
  ASSERT_TRUE(UseHeadProfile(file, layout, &specs).ok());
  EXPECT_TRUE(specs[0].spec.head_budgets.empty() && specs[1].spec.head_budgets.empty());
  EXPECT_THAT(specs[2].spec.head_budgets, ElementsAre(101, 101)) << "no rows but the first matter";
  const KvLayout other{.num_layers = 2, .num_kv_heads = 2};
  EXPECT_THAT(UseHeadProfile(file, other, &specs),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("2 of 2")));
}

TEST(SpecChoiceTest, BatchesAreSmallEnoughAndPredictEquallyFarAhead) {
  std::vector<SpecChoice> specs = SpecGrid({"depth", "async-token"}, {1, 2, 3}).value();
  for (SpecChoice& choice : specs) {
    if (choice.name == "depth" && choice.budget() == 2) choice.spec.lookahead = 2;
  }
  // dense, depth 1 2 3, async 1 2 3
  EXPECT_THAT(SpecBatches(specs, 3), ElementsAre(ElementsAre(0, 1, 3), ElementsAre(2, 4, 5), ElementsAre(6)));
  EXPECT_THAT(SpecBatches(specs, 100), ElementsAre(ElementsAre(0, 1, 3, 4, 5, 6), ElementsAre(2)));
}

}  // namespace
}  // namespace winnow
