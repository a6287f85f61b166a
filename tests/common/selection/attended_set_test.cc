#include "common/selection/attended_set.h"

#include <gtest/gtest.h>

#include <set>

namespace winnow {
namespace {

// Simulates a sequence position by position, as the two ranks live through it, and compares with the closed forms.
struct Simulated {
  SelectionSpec spec;
  uint32_t prompt_tokens;
  uint32_t attach_position;

  void Run(uint32_t end) const {
    const size_t lists = spec.head_budgets.empty() ? 1 : spec.head_budgets.size();
    uint32_t anchor = prompt_tokens;
    std::vector<std::set<uint32_t>> selected(lists);
    std::vector<bool> has_selection(lists, false), was_dense(lists, false);
    for (uint32_t p = prompt_tokens; p < end; ++p) {
      if (p % spec.reuse_interval == 0 || p == prompt_tokens) anchor = p;
      ASSERT_EQ(AnchorPosition(spec, p, prompt_tokens), anchor) << p;
      // The window: at least recent_tokens rows at the anchor, what lies before it complete blocks.
      const uint32_t window = WindowStart(spec, p, prompt_tokens);
      ASSERT_GE(window, spec.sink_tokens);
      if (window > spec.sink_tokens) {
        ASSERT_EQ(window % kBlockTokens, 0u);
        ASSERT_GE(anchor + 1 - window, spec.recent_tokens);
        ASSERT_LT(anchor + 1 - window, spec.recent_tokens + kBlockTokens);
      }
      if (p < attach_position) continue;
      for (size_t list = 0; list < lists; ++list) {
        const uint32_t budget = spec.head_budgets.empty() ? spec.budget_tokens : spec.head_budgets[list];
        const bool dense = window - spec.sink_tokens <= budget || (budget > 0 && anchor < spec.dense_below_tokens);
        const bool streams = budget == 0;
        const bool chooses = !dense && !streams;
        ASSERT_EQ(AttendsEverything(spec, list, p, prompt_tokens), dense) << p << " list " << list;
        ASSERT_EQ(IsSparse(spec, list, p, prompt_tokens), chooses) << p << " list " << list;
        const bool is_anchor = p == anchor;
        const bool fixed = spec.predictor == Predictor::kFixed;
        ASSERT_EQ(NeedsSelection(spec, list, p, prompt_tokens), chooses && is_anchor && !fixed) << p;
        // A delta is due when the peer does not hold the selection yet, or when it changes.
        const bool due = chooses && (!has_selection[list] || (is_anchor && !fixed));
        ASSERT_EQ(NeedsDelta(spec, list, p, prompt_tokens, attach_position), due) << p << " list " << list;
        if (due && !has_selection[list]) {
          const uint32_t known = was_dense[list] ? WindowStart(spec, p - 1, prompt_tokens) - spec.sink_tokens : 0;
          ASSERT_EQ(IdentityRows(spec, p, prompt_tokens, attach_position), known) << p;
        }
        has_selection[list] = has_selection[list] || due;
        was_dense[list] = dense;
      }
    }
  }
};

TEST(AttendedSet, FollowsFromLivingThroughTheSequence) {
  for (const uint32_t reuse : {1u, 2u, 4u, 7u, 16u}) {
    for (const Predictor predictor : {Predictor::kExact, Predictor::kFixed}) {
      for (const auto& budgets : {std::vector<uint32_t>{}, std::vector<uint32_t>{0, 1, 40, 100, 5000}}) {
        SelectionSpec spec{.predictor = predictor,
                           .budget_tokens = 64,
                           .head_budgets = budgets,
                           .sink_tokens = 6,
                           .recent_tokens = 40,
                           .reuse_interval = reuse};
        for (const uint32_t dense_below : {0u, 45u, 230u}) {
          spec.dense_below_tokens = dense_below;
          for (const uint32_t prompt : {1u, 39u, 130u, 301u}) {
            for (const uint32_t later : {0u, 1u, 5u, 60u}) Simulated{spec, prompt, prompt + later}.Run(prompt + 400);
          }
        }
      }
    }
  }
}

TEST(AttendedSet, TheRingHoldsTheWindowBetweenAnchors) {
  for (const uint32_t recent : {1u, 32u, 64u, 100u, 256u}) {
    const SelectionSpec spec{.recent_tokens = recent, .reuse_interval = 16};
    const uint32_t ring = (recent + 2 * kBlockTokens + kSlotPageTokens - 1) / kSlotPageTokens * kSlotPageTokens;
    for (uint32_t p = 1000; p < 1200; ++p) EXPECT_LE(p + 1 - WindowStart(spec, p, 990), ring) << recent;
  }
}

TEST(AttendedSet, WhereEveryPositionCompetesNoneIsAttendedForItsPlace) {
  const SelectionSpec spec{
      .predictor = Predictor::kExact, .scorer = Scorer::kIndexer, .budget_tokens = 100, .sink_tokens = 0};
  for (const uint32_t p : {0u, 63u, 99u}) EXPECT_TRUE(AttendsEverything(spec, 0, p, 1)) << p;
  for (const uint32_t p : {100u, 5000u}) {
    EXPECT_TRUE(NeedsSelection(spec, 0, p, 1)) << p;
    EXPECT_EQ(WindowStart(spec, p, 1), p + 1) << "an empty window";
  }
  EXPECT_EQ(PooledEnd(spec, 99, 1), 99u) << "its own row is not there before its layer";
  EXPECT_EQ(IdentityRows(spec, 100, 1, 50), 99u);
  EXPECT_EQ(IdentityRows(spec, 100, 1, 100), 0u);
  EXPECT_EQ(PoolSlots(spec, 0, 5000, 4), 200u);
}

TEST(AttendedSet, PositionsOfThePromptAreTheirOwnAnchors) {
  const SelectionSpec spec{.reuse_interval = 4};
  for (const uint32_t p : {0u, 5u, 98u, 99u}) EXPECT_EQ(AnchorPosition(spec, p, 99), p);
  EXPECT_EQ(AnchorPosition(spec, 100, 99), 100u);
  EXPECT_EQ(AnchorPosition(spec, 101, 98), 100u);
  EXPECT_EQ(AnchorPosition(spec, 99, 98), 98u);
}

TEST(AttendedSet, PoolsCoverWhatAListMaySelect) {
  SelectionSpec spec{.budget_tokens = 100, .head_budgets = {0, 10, 1000}, .sink_tokens = 4, .pool_factor = 1.5f};
  EXPECT_EQ(PoolSlots(spec, 0, 5000, 4), 0u);
  EXPECT_EQ(PoolSlots(spec, 1, 5000, 4), 15u);
  EXPECT_EQ(PoolSlots(spec, 2, 5000, 4), 1500u);
  EXPECT_EQ(PoolSlots(spec, 2, 700, 4), 696u) << "no more rows can leave the recent window";
  EXPECT_EQ(PoolSlots(spec, 2, 3, 4), 0u);
  spec.min_captured_mass = 0.9f;
  spec.budget_growth = 8;
  EXPECT_EQ(PoolSlots(spec, 1, 5000, 4), 80u) << "budgets may grow";
  const SelectionSpec dense{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  EXPECT_EQ(PoolSlots(dense, 7, 5000, 4), 4996u);
}

TEST(AttendedSet, PoolsCoverWhatDensePositionsAttendTo) {
  SelectionSpec spec{
      .budget_tokens = 100, .head_budgets = {0, 10}, .sink_tokens = 4, .recent_tokens = 32, .pool_factor = 1.5f};
  for (const uint32_t reuse : {1u, 4u}) {
    spec.reuse_interval = reuse;
    spec.dense_below_tokens = 1000;
    EXPECT_EQ(PoolSlots(spec, 0, 5000, 4), 0u) << "a streaming head stays one";
    uint32_t last = 500;
    while (AttendsEverything(spec, 1, last + 1, 500)) ++last;
    EXPECT_GE(last, 999u);
    EXPECT_GE(PoolSlots(spec, 1, 5000, 4), PooledEnd(spec, last, 500) - spec.sink_tokens);
    EXPECT_EQ(PoolSlots(spec, 1, 700, 4), 696u);
  }
}

TEST(AttendedSet, PoolsCoverWhatTheQueryHeadsOfAGroupMaySelectTogether) {
  const SelectionSpec spec{.list_per = ListPer::kQueryHead,
                           .budget_tokens = 100,
                           .head_budgets = {0, 10, 1000},
                           .sink_tokens = 4,
                           .pool_factor = 3};
  EXPECT_EQ(PoolSlots(spec, 0, 5000, 8), 0u);
  EXPECT_EQ(PoolSlots(spec, 1, 5000, 8), 80u) << "each of eight heads its own ten rows";
  EXPECT_EQ(PoolSlots(spec, 1, 5000, 2), 30u) << "or the factor, where that is more";
  EXPECT_EQ(PoolSlots(spec, 2, 5000, 8), 4996u);
  EXPECT_EQ(UnionCeiling(spec, 1, 8), 80u);
  EXPECT_EQ(ListsPerKvHead(spec, 8), 8);
  EXPECT_EQ(ListsPerKvHead({}, 8), 1);
  // Whether a list is sparse is decided by its own budget.
  EXPECT_FALSE(AttendsEverything(spec, 1, 200, 1));
  const SelectionSpec large{.list_per = ListPer::kQueryHead, .budget_tokens = 3'000'000'000};
  EXPECT_EQ(UnionCeiling(large, 0, 8), kUnlimitedBudget);
}

}  // namespace
}  // namespace winnow
