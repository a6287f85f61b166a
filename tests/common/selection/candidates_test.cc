#include <gtest/gtest.h>

#include "common/selection/presets.h"
#include "common/selection/selection_spec.h"

namespace winnow {
namespace {

TEST(Candidates, AreBudgetsAndAtLeastTheLeast) {
  SelectionSpec spec;
  spec.candidate_factor = 4;
  spec.min_candidate_tokens = 1000;
  EXPECT_EQ(CandidateTokens(spec, 100), 1000u);
  EXPECT_EQ(CandidateTokens(spec, 250), 1000u);
  EXPECT_EQ(CandidateTokens(spec, 251), 1004u);
  EXPECT_EQ(CandidateTokens(spec, kUnlimitedBudget), kUnlimitedBudget);
  spec.min_candidate_tokens = 0;
  EXPECT_EQ(CandidateTokens(spec, 0), 0u);
}

TEST(Candidates, EveryKeyIsScoredWhereTheyAreAllOfThemOrBelowTheThreshold) {
  SelectionSpec spec;
  spec.min_candidate_tokens = 1000;
  EXPECT_TRUE(ScoresAllOf(spec, 1000, 10));
  EXPECT_FALSE(ScoresAllOf(spec, 1001, 10));
  EXPECT_TRUE(ScoresAllOf(spec, 2000, 500)) << "four budgets";
  spec.score_all_below_tokens = 1500;
  EXPECT_TRUE(ScoresAllOf(spec, 1499, 10));
  EXPECT_FALSE(ScoresAllOf(spec, 1500, 10));
}

TEST(Candidates, TheDefaultPresetScoresEveryKeyBelow30kAndAQuarterOf32k) {
  const SelectionSpec spec = *FindPreset("winnow");
  EXPECT_EQ(spec.scorer, Scorer::kTwoStage);
  for (const uint32_t budget : {256u, 2048u, 4096u}) EXPECT_TRUE(ScoresAllOf(spec, 30719, budget)) << budget;
  for (const uint32_t budget : {1u, 256u, 2048u}) {
    EXPECT_FALSE(ScoresAllOf(spec, 30720, budget)) << budget;
    EXPECT_EQ(CandidateTokens(spec, budget), 32768u / 4) << budget;
  }
}

}  // namespace
}  // namespace winnow
