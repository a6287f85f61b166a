// The table of fields against what is written out here.
#include "common/selection/spec_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "common/selection/validate.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

// For each field: a text that is not its default's, what it does to a record, and a text that is out of range.
struct Case {
  const char* field;
  const char* text;
  void (*set)(SelectionSpec&);
  const char* bad;
};

const Case kCases[] = {
    {"predictor", "temporal", [](SelectionSpec& s) { s.predictor = Predictor::kTemporal; }, "deep"},
    {"window", "16", [](SelectionSpec& s) { s.window = 16; }, "1"},
    {"variant", "clipped", [](SelectionSpec& s) { s.temporal_variant = TemporalVariant::kClipped; }, "lasso"},
    {"post_rope", "true", [](SelectionSpec& s) { s.post_rope = true; }, "1"},
    {"lookahead", "8", [](SelectionSpec& s) { s.lookahead = 8; }, "9"},
    {"projection", "cache-rank", [](SelectionSpec& s) { s.projection = Projection::kCacheRank; }, "router"},
    {"prefetch", "temporal", [](SelectionSpec& s) { s.prefetch = Prefetch::kTemporal; }, "depth"},
    {"scorer", "page-cuboid", [](SelectionSpec& s) { s.scorer = Scorer::kPageCuboid; }, "page"},
    {"page_tokens", "64", [](SelectionSpec& s) { s.page_tokens = 64; }, "24"},
    {"physical_page_tokens", "32", [](SelectionSpec& s) { s.physical_page_tokens = 32; }, "128"},
    {"candidate_factor", "64", [](SelectionSpec& s) { s.candidate_factor = 64; }, "0"},
    {"min_candidate_tokens", "0", [](SelectionSpec& s) { s.min_candidate_tokens = 0; }, "16777217"},
    {"score_all_below_tokens", "16384", [](SelectionSpec& s) { s.score_all_below_tokens = 16384; }, "-1"},
    {"group_candidate_tokens", "65536", [](SelectionSpec& s) { s.group_candidate_tokens = 65536; }, "16777217"},
    {"key_copy", "int4", [](SelectionSpec& s) { s.key_copy = KeyCopy::kInt4; }, "int2"},
    {"group_aggregation", "mean", [](SelectionSpec& s) { s.group_aggregation = GroupAggregation::kMean; }, "sum"},
    {"list_per", "query-head", [](SelectionSpec& s) { s.list_per = ListPer::kQueryHead; }, "layer"},
    {"policy", "mass", [](SelectionSpec& s) { s.policy = Policy::kMass; }, "top-p"},
    {"epsilon", "0.1", [](SelectionSpec& s) { s.epsilon = 0.1f; }, "1.5"},
    {"stop_rule", "bound", [](SelectionSpec& s) { s.stop_rule = StopRule::kBound; }, "never"},
    {"budget", "unlimited", [](SelectionSpec& s) { s.budget_tokens = kUnlimitedBudget; }, "0"},
    {"profile_use", "streaming", [](SelectionSpec& s) { s.profile_use = ProfileUse::kStreaming; }, "all"},
    {"sinks", "0", [](SelectionSpec& s) { s.sink_tokens = 0; }, "4097"},
    {"recent", "65536", [](SelectionSpec& s) { s.recent_tokens = 65536; }, "0"},
    {"dense_below_tokens", "32768", [](SelectionSpec& s) { s.dense_below_tokens = 32768; }, "16777217"},
    {"reuse_interval", "4", [](SelectionSpec& s) { s.reuse_interval = 4; }, "17"},
    {"pool_factor", "2.5", [](SelectionSpec& s) { s.pool_factor = 2.5f; }, "0.5"},
    {"transfer", "full", [](SelectionSpec& s) { s.transfer = Transfer::kFull; }, "half"},
    {"correction", "remote", [](SelectionSpec& s) { s.correction = Correction::kRemote; }, "local"},
    {"min_captured_mass", "0.95", [](SelectionSpec& s) { s.min_captured_mass = 0.95f; }, "nan"},
    {"budget_growth", "4", [](SelectionSpec& s) { s.budget_growth = 4; }, "3"},
};

TEST(SelectionFields, EveryFieldReadsPrintsAndRefuses) {
  std::set<std::string> seen = {"head_budgets"};
  for (const Case& c : kCases) {
    seen.insert(c.field);
    const auto field = FindField(c.field);
    ASSERT_TRUE(field.ok()) << field.status();
    SelectionSpec spec;
    ASSERT_TRUE((*field)->Parse(c.text, spec).ok()) << c.field;
    SelectionSpec expected;
    c.set(expected);
    EXPECT_EQ(spec, expected) << c.field << " changes its own member alone";
    EXPECT_FALSE(spec == SelectionSpec()) << c.field;
    EXPECT_EQ((*field)->Print(expected), c.text);
    EXPECT_TRUE((*field)->Check(spec).ok()) << c.field;
    EXPECT_FALSE((*field)->Same(spec, SelectionSpec())) << c.field;

    const absl::Status refused = (*field)->Parse(c.bad, spec);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << c.field;
    EXPECT_EQ(SpecErrorField(refused), c.field);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(std::string("selection.") + c.field + " is \"" + c.bad));
    EXPECT_EQ(spec, expected) << "an error changes nothing";
  }
  for (const SelectionField& field : SelectionFields()) {
    EXPECT_EQ(seen.count(std::string(field.name)), 1u) << field.name << " has no case";
    EXPECT_FALSE(field.meaning.empty()) << field.name;
    EXPECT_FALSE(field.Allowed().empty()) << field.name;
    EXPECT_TRUE(field.Check(SelectionSpec()).ok()) << field.name;
  }
  EXPECT_EQ(SelectionFields().size(), seen.size());
}

TEST(SelectionFields, EveryChoiceHasTheMeaningOfItsEnumerator) {
  SelectionSpec spec;
  const auto set = [&](const char* field, const char* value) {
    const absl::Status status = (*FindField(field))->Parse(value, spec);
    EXPECT_TRUE(status.ok()) << status;
  };
  const std::pair<const char*, Predictor> predictors[] = {
      {"dense", Predictor::kDense},       {"exact", Predictor::kExact}, {"last", Predictor::kLast},
      {"temporal", Predictor::kTemporal}, {"depth", Predictor::kDepth}, {"fixed", Predictor::kFixed}};
  for (const auto& [name, value] : predictors) {
    set("predictor", name);
    EXPECT_EQ(spec.predictor, value) << name;
  }
  const std::pair<const char*, Scorer> scorers[] = {{"token", Scorer::kToken},
                                                    {"page-minmax", Scorer::kPageMinmax},
                                                    {"page_cuboid", Scorer::kPageCuboid},
                                                    {"hierarchical", Scorer::kHierarchical},
                                                    {"two-stage", Scorer::kTwoStage}};
  for (const auto& [name, value] : scorers) {
    set("scorer", name);
    EXPECT_EQ(spec.scorer, value) << name;
  }
  const std::pair<const char*, TemporalVariant> variants[] = {{"softmax", TemporalVariant::kSoftmax},
                                                              {"ridge", TemporalVariant::kRidge},
                                                              {"clipped", TemporalVariant::kClipped}};
  for (const auto& [name, value] : variants) {
    set("variant", name);
    EXPECT_EQ(spec.temporal_variant, value) << name;
  }
  const std::pair<const char*, KeyCopy> copies[] = {
      {"none", KeyCopy::kNone}, {"int8", KeyCopy::kInt8}, {"int4", KeyCopy::kInt4}};
  for (const auto& [name, value] : copies) {
    set("key_copy", name);
    EXPECT_EQ(spec.key_copy, value) << name;
  }
  const std::pair<const char*, GroupAggregation> aggregations[] = {{"softmax-sum", GroupAggregation::kSoftmaxSum},
                                                                   {"max", GroupAggregation::kMax},
                                                                   {"mean", GroupAggregation::kMean}};
  for (const auto& [name, value] : aggregations) {
    set("group_aggregation", name);
    EXPECT_EQ(spec.group_aggregation, value) << name;
  }
}

TEST(SelectionFields, Int4KeysAllowNoVerification) {
  for (const KeyCopy copy : {KeyCopy::kNone, KeyCopy::kInt8, KeyCopy::kInt4}) {
    SelectionSpec spec{.key_copy = copy};
    EXPECT_TRUE(ValidateSelection(spec).ok());
    spec.min_captured_mass = 0.9f;
    EXPECT_EQ(ValidateSelection(spec).ok(), copy != KeyCopy::kInt4);
    spec.min_captured_mass = 0;
    spec.correction = Correction::kRemote;
    EXPECT_EQ(ValidateSelection(spec).ok(), copy != KeyCopy::kInt4);
    EXPECT_EQ(SpecErrorField(ValidateSelection(spec)), copy == KeyCopy::kInt4 ? "key_copy" : "");
  }
}

TEST(SelectionFields, ErrorsSayWhatIsAllowed) {
  SelectionSpec spec;
  const auto message = [&](const char* field, const char* value) {
    return std::string((*FindField(field))->Parse(value, spec).message());
  };
  EXPECT_EQ(message("window", "99"), "selection.window is \"99\", not a whole number in 2..32");
  EXPECT_EQ(message("window", "eight"), "selection.window is \"eight\", not a whole number in 2..32");
  EXPECT_EQ(message("budget", "12k"),
            "selection.budget is \"12k\", not a whole number in 1..4294967294 or \"unlimited\"");
  EXPECT_EQ(message("epsilon", "lots"), "selection.epsilon is \"lots\", not a number in 0..1");
  EXPECT_EQ(message("page_tokens", "8"), "selection.page_tokens is \"8\", not one of 16, 32, 64");
  EXPECT_EQ(message("predictor", "oracle"),
            "selection.predictor is \"oracle\", not one of dense, exact, last, temporal, depth, fixed");
  EXPECT_EQ(message("post_rope", "yes"), "selection.post_rope is \"yes\", not one of true, false");
}

TEST(SelectionFields, UnknownNamesGetTheNearestOrTheList) {
  EXPECT_EQ(FindField("budjet").status().message(),
            "selection.budjet is no field of a selection; did you mean \"budget\"?");
  const std::string list(FindField("quantum_entanglement").status().message());
  for (const SelectionField& field : SelectionFields()) EXPECT_THAT(list, HasSubstr(std::string(field.name)));
  EXPECT_EQ(*FindField("pool-factor"), *FindField("pool_factor"));
}

TEST(SelectionFields, BudgetsByHeadComeFromAProfileAlone) {
  const SelectionField& field = **FindField("head_budgets");
  SelectionSpec plain;
  SelectionSpec profiled;
  profiled.head_budgets = {0, 100};
  EXPECT_EQ(field.Print(plain), "none");
  EXPECT_EQ(field.Print(profiled), "from profile");
  EXPECT_TRUE(field.Parse("from profile", profiled).ok());
  EXPECT_TRUE(field.Parse("none", plain).ok());
  EXPECT_THAT(std::string(field.Parse("from profile", plain).message()), HasSubstr("come from a head profile"));
  EXPECT_FALSE(field.Parse("1,2,3", profiled).ok());
  SelectionSpec other = profiled;
  other.head_budgets = {100, 0};
  EXPECT_FALSE(field.Same(profiled, other));
}

TEST(SelectionFields, ARequestMayChangeThese) {
  std::set<std::string> changeable;
  for (const SelectionField& field : SelectionFields()) {
    if (field.per_request) changeable.emplace(field.name);
  }
  EXPECT_EQ(changeable, (std::set<std::string>{"predictor",
                                               "window",
                                               "variant",
                                               "post_rope",
                                               "scorer",
                                               "page_tokens",
                                               "physical_page_tokens",
                                               "candidate_factor",
                                               "min_candidate_tokens",
                                               "score_all_below_tokens",
                                               "group_candidate_tokens",
                                               "key_copy",
                                               "group_aggregation",
                                               "policy",
                                               "epsilon",
                                               "stop_rule",
                                               "budget",
                                               "profile_use",
                                               "correction",
                                               "min_captured_mass",
                                               "budget_growth"}));
}

TEST(SelectionFields, ValidationUsesTheSameRanges) {
  SelectionSpec spec;
  spec.epsilon = std::nanf("");
  EXPECT_EQ(SpecErrorField(ValidateSelection(spec)), "epsilon");
  spec = {};
  spec.page_tokens = 64;
  spec.physical_page_tokens = 32;
  EXPECT_EQ(SpecErrorField(ValidateSelection(spec)), "physical_page_tokens");
}

}  // namespace
}  // namespace winnow
