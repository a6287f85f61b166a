#include "common/selection/indexer_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/selection/presets.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

TEST(IndexerSpec, TakesWhatTheModelSaysAndNoSinks) {
  const SelectionSpec native = FindPreset("native").value();
  const SelectionSpec spec = WithIndexer(native, 64);
  EXPECT_EQ(spec.budget_tokens, 64u);
  EXPECT_EQ(spec.sink_tokens, 0u);
  SelectionSpec fewer = native;
  fewer.budget_tokens = 16;
  EXPECT_EQ(WithIndexer(fewer, 64).budget_tokens, 16u);
  const SelectionSpec winnow = FindPreset("winnow").value();
  EXPECT_EQ(WithIndexer(winnow, 64), winnow);
}

TEST(IndexerSpec, FitsOnlyModelsThatBringOne) {
  const KvLayout without{.num_layers = 2, .num_query_heads = 4, .num_kv_heads = 1, .head_dim = 48};
  KvLayout with = without;
  with.row = {.value_is_key = true, .index_dim = 32};
  with.num_index_heads = 4;
  const SelectionSpec native = FindPreset("native").value(), spec = WithIndexer(native, 64);
  EXPECT_TRUE(CheckFitsModel(spec, with).ok());
  EXPECT_THAT(CheckFitsModel(spec, without).message(), testing::HasSubstr("the model brings none"));
  EXPECT_THAT(CheckFitsModel(native, with).message(), testing::HasSubstr("every position competes"));
}

TEST(IndexerSpec, LeavesNothingToOthersToDecide) {
  const SelectionSpec native = FindPreset("native").value();
  const auto refused = [&](auto change, const char* why) {
    SelectionSpec spec = native;
    change(spec);
    EXPECT_THAT(ValidateSelection(spec).message(), testing::HasSubstr(why));
  };
  EXPECT_TRUE(ValidateSelection(native).ok());
  refused([](SelectionSpec& spec) { spec.predictor = Predictor::kDepth; }, "predictor");
  refused([](SelectionSpec& spec) { spec.prefetch = Prefetch::kTemporal; }, "prefetch");
  refused([](SelectionSpec& spec) { spec.list_per = ListPer::kQueryHead; }, "list_per");
  refused([](SelectionSpec& spec) { spec.policy = Policy::kMass; }, "policy");
  refused([](SelectionSpec& spec) { spec.min_captured_mass = 0.5f; }, "neither corrected nor guarded");
  refused([](SelectionSpec& spec) { spec.head_budgets = {5, 6}; }, "one budget for all heads");
}

}  // namespace
}  // namespace winnow
