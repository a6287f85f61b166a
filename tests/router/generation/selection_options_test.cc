#include "router/generation/selection_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/selection/spec_text.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

ServedModel Model() {
  ServedModel model;
  model.max_budget_tokens = 4096;
  model.default_selection.budget_tokens = 512;
  return model;
}

std::string ErrorOf(const v1::SelectionOptions& options) {
  return std::string(SelectionOf(options, Model()).status().message());
}

TEST(SelectionOptions, StartsFromTheServersDefault) {
  EXPECT_EQ(*SelectionOf({}, Model()), Model().default_selection);
  v1::SelectionOptions options;
  options.set_budget_tokens(1024);
  EXPECT_EQ(SpecText(*SelectionOf(options, Model())), "depth,budget=1024");
  options.set_preset("exact-token");
  EXPECT_EQ(SpecText(*SelectionOf(options, Model())), "exact-token,budget=1024");
}

TEST(SelectionOptions, TakesASpecification) {
  v1::SelectionOptions options;
  options.set_specification("predictor=temporal,window=4,budget=100");
  EXPECT_EQ(SpecText(*SelectionOf(options, Model())), "depth,predictor=temporal,window=4,budget=100");
  options.set_budget_tokens(200);
  EXPECT_EQ(SelectionOf(options, Model())->budget_tokens, 200u) << "the field wins";
  options.set_specification("exact-token");
  options.set_min_captured_mass(0);
  EXPECT_EQ(SelectionOf(options, Model())->predictor, Predictor::kExact);
}

TEST(SelectionOptions, ErrorsBeginWithTheProtosField) {
  v1::SelectionOptions options;
  options.set_preset("nope");
  EXPECT_THAT(ErrorOf(options), StartsWith("selection.preset: unknown selection preset \"nope\""));
  options.set_specification("winnow");
  EXPECT_THAT(ErrorOf(options), StartsWith("selection.preset: "));
  options.clear_preset();
  options.set_specification("winnow,sinks=5");
  EXPECT_THAT(ErrorOf(options), StartsWith("selection.specification: selection.sinks is fixed"));
  EXPECT_EQ(SelectionOf(options, Model()).status().code(), absl::StatusCode::kInvalidArgument);
  options.clear_specification();
  options.set_budget_tokens(0);
  EXPECT_THAT(ErrorOf(options), StartsWith("selection.budget_tokens: "));
  options.set_budget_tokens(4097);
  EXPECT_THAT(ErrorOf(options), HasSubstr("above this server's 4096"));
  options.clear_budget_tokens();
  options.set_min_captured_mass(1.5f);
  EXPECT_THAT(ErrorOf(options), StartsWith("selection.min_captured_mass: "));
}

}  // namespace
}  // namespace winnow
