// Which parts of the server's selection a request may change.
#include "router/generation/selection_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/selection/presets.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

ServedModel Server(std::string_view selection, uint32_t max_budget = 4096) {
  ServedModel model;
  model.max_budget_tokens = max_budget;
  model.default_selection = *ParseSpec(selection);
  return model;
}

absl::StatusOr<SelectionSpec> Ask(std::string_view asked, const ServedModel& model) {
  const absl::StatusOr<SpecChanges> changes = ParseSpecChanges(asked);
  if (!changes.ok()) return changes.status();
  return ResolveSelection(*changes, model);
}

std::string TextOf(std::string_view asked, const ServedModel& model) {
  const auto spec = Ask(asked, model);
  return spec.ok() ? SpecText(*spec) : std::string(spec.status().message());
}

TEST(SelectionRules, ARequestThatAsksForNothingGetsTheServers) {
  const ServedModel model = Server("winnow,budget=512,sinks=8");
  EXPECT_EQ(*ResolveSelection({}, model), model.default_selection);
}

TEST(SelectionRules, FieldsThatMayChange) {
  const ServedModel model = Server("winnow,budget=512,sinks=8");
  EXPECT_EQ(TextOf("predictor=temporal,window=16,variant=ridge,budget=1024", model),
            "winnow,predictor=temporal,window=16,variant=ridge,budget=1024,sinks=8");
  EXPECT_EQ(TextOf("group_aggregation=max,epsilon=0.5,stop_rule=bound,page_tokens=64", model),
            "winnow,page_tokens=64,group_aggregation=max,epsilon=0.5,stop_rule=bound,budget=512,sinks=8");
}

TEST(SelectionRules, FieldsThatAreFixedMayOnlyBeRepeated) {
  const ServedModel model = Server("winnow,sinks=8,recent=128,pool_factor=3");
  const std::pair<const char*, const char*> fixed[] = {{"lookahead", "2"},       {"projection", "cache-rank"},
                                                       {"prefetch", "temporal"}, {"list_per", "query-head"},
                                                       {"sinks", "4"},           {"recent", "64"},
                                                       {"reuse_interval", "4"},  {"pool_factor", "2"},
                                                       {"transfer", "full"}};
  for (const auto& [field, value] : fixed) {
    const absl::Status status = Ask(absl::StrCat(field, "=", value), model).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << field << status;
    EXPECT_EQ(SpecErrorField(status), field);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is fixed when the server starts"));
    const std::string servers = (*FindField(field))->Print(model.default_selection);
    EXPECT_TRUE(Ask(absl::StrCat(field, "=", servers), model).ok()) << field;
  }
  EXPECT_EQ(TextOf("sinks=4", model),
            "selection.sinks is fixed when the server starts, at 8; a request cannot change it to 4");
  EXPECT_THAT(TextOf("sinks=99999", model), HasSubstr("not a whole number in 0..4096")) << "a wrong value first";
}

TEST(SelectionRules, OfAPresetTheChangeablePartIsTaken) {
  const ServedModel model = Server("winnow,sinks=8,lookahead=2,pool_factor=3");
  EXPECT_EQ(TextOf("async-token", model), "async-token,lookahead=2,sinks=8,pool_factor=3");
  EXPECT_EQ(Ask("async-token", model)->post_rope, true);
  EXPECT_EQ(TextOf("hisparse", model), "hisparse,lookahead=2,sinks=8") << "the pool is the server's, by chance its own";
  // What the server changed of its own preset does not reach another one.
  EXPECT_EQ(Ask("winnow", Server("winnow,group_aggregation=max"))->group_aggregation, GroupAggregation::kSoftmaxSum);
  EXPECT_EQ(Ask("async-token,window=4", model)->window, 4u);
  EXPECT_EQ(SpecErrorField(Ask("nope", model).status()), "preset");
}

TEST(SelectionRules, BudgetsGoUpToTheServersLargest) {
  const ServedModel model = Server("winnow,budget=512", 1000);
  EXPECT_EQ(Ask("budget=1000", model)->budget_tokens, 1000u);
  EXPECT_EQ(TextOf("budget=1001", model), "selection.budget is 1001, above this server's 1000");
  EXPECT_EQ(TextOf("budget=unlimited", model), "selection.budget is unlimited, above this server's 1000");
  EXPECT_FALSE(Ask("budget=0", model).ok());
  EXPECT_EQ(Ask("exact-token", model)->budget_tokens, 1000u) << "a preset's own budget is cut";
  EXPECT_EQ(Ask("budget=unlimited", Server("dense", kUnlimitedBudget))->budget_tokens, kUnlimitedBudget);
}

TEST(SelectionRules, DenseHasNoBudget) {
  const ServedModel model = Server("winnow");
  EXPECT_EQ(Ask("dense", model)->budget_tokens, kUnlimitedBudget);
  EXPECT_TRUE(Ask("dense,budget=unlimited", model).ok());
  EXPECT_EQ(SpecErrorField(Ask("dense,budget=10", model).status()), "budget");
  EXPECT_EQ(Ask("winnow", Server("dense", 4096))->budget_tokens, 2048u);
}

TEST(SelectionRules, TheGuardIsCheckedForItsRange) {
  const ServedModel model = Server("winnow,budget_growth=2");
  EXPECT_EQ(SpecErrorField(Ask("min_captured_mass=1.5", model).status()), "min_captured_mass");
  const absl::Status asked = Ask("min_captured_mass=0.9", model).status();
  EXPECT_TRUE(asked.ok() || absl::IsUnimplemented(asked)) << asked;
  EXPECT_TRUE(Ask("min_captured_mass=0", model).ok());
  EXPECT_TRUE(Ask("budget_growth=1", model).ok());
  EXPECT_EQ(TextOf("budget_growth=4", model), "selection.budget_growth is 4, above this server's 2");
  EXPECT_EQ(Ask("winnow", model)->budget_growth, 2u) << "a preset's own growth is cut";
}

TEST(SelectionRules, WithoutAHeadProfileNobodyUsesOne) {
  ServedModel model = Server("winnow");
  EXPECT_THAT(TextOf("profile_use=budgets", model),
              HasSubstr("selection.profile_use is budgets, which needs a head profile"));
  EXPECT_TRUE(Ask("profile_use=none", model).ok());
  EXPECT_THAT(TextOf("lserve,list_per=kv-head", model),
              HasSubstr("selection.profile_use is streaming, which needs a head profile"))
      << "heads that the preset streams would be served otherwise, and nobody told";
  EXPECT_EQ(Ask("lserve,list_per=kv-head,profile_use=none", model)->profile_use, ProfileUse::kNone);
  model.has_head_profile = true;
  EXPECT_EQ(TextOf("profile_use=budgets", model), "winnow,profile_use=budgets");
  EXPECT_EQ(Ask("lserve,list_per=kv-head", model)->profile_use, ProfileUse::kStreaming);
}

TEST(SelectionRules, BudgetsByHeadKeepTheirProportions) {
  ServedModel model = Server("winnow,budget=1000");
  model.default_selection.head_budgets = {0, 500, 1500, 1};
  // As long as budgets by head are not built the whole is refused; the numbers come from the same rules.
  const auto spec = Ask("budget=100", model);
  if (spec.ok()) {
    EXPECT_EQ(spec->head_budgets, (std::vector<uint32_t>{0, 50, 150, 1}));
  } else {
    EXPECT_TRUE(absl::IsUnimplemented(spec.status())) << spec.status();
  }
  EXPECT_EQ(SpecErrorField(Ask("head_budgets=none", model).status()), "head_budgets");
}

}  // namespace
}  // namespace winnow
