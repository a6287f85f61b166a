#include "common/selection/window_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<uint32_t> kWindows = {128, 0, 256};

TEST(WindowLayersTest, TheirHeadsStreamWithARecentWindowThatHoldsTheirs) {
  const SelectionSpec spec = WithWindowLayers({.budget_tokens = 100, .recent_tokens = 64}, kWindows, 2);
  EXPECT_THAT(spec.head_budgets, ElementsAre(0, 0, 100, 100, 0, 0));
  EXPECT_EQ(spec.recent_tokens, 256u);
  EXPECT_TRUE(CheckKeepsWindows(spec, kWindows, 2).ok());
  EXPECT_EQ(WithWindowLayers({.recent_tokens = 512}, kWindows, 2).recent_tokens, 512u);
}

TEST(WindowLayersTest, BudgetsByHeadOfTheOthersStay) {
  const SelectionSpec spec = WithWindowLayers({.budget_tokens = 100, .head_budgets = {1, 2, 3, 4, 5, 6}}, kWindows, 2);
  EXPECT_THAT(spec.head_budgets, ElementsAre(0, 0, 3, 4, 0, 0));
}

TEST(WindowLayersTest, DenseAndModelsWithoutWindowsStayAsTheyAre) {
  const SelectionSpec dense{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  EXPECT_EQ(WithWindowLayers(dense, kWindows, 2), dense);
  EXPECT_EQ(WithWindowLayers({}, {}, 2), SelectionSpec());
}

TEST(WindowLayersTest, ASpecificationThatCutsAWindowIsRefused) {
  const SelectionSpec kept = WithWindowLayers({}, kWindows, 2);
  SelectionSpec spec = kept;
  spec.recent_tokens = 255;
  EXPECT_THAT(std::string(CheckKeepsWindows(spec, kWindows, 2).message()), HasSubstr("recent_tokens 255"));
  spec = kept;
  spec.head_budgets[5] = 7;
  EXPECT_THAT(std::string(CheckKeepsWindows(spec, kWindows, 2).message()), HasSubstr("head_budgets"));
}

}  // namespace
}  // namespace winnow
