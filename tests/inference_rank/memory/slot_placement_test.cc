#include "inference_rank/memory/slot_placement.h"

#include <gtest/gtest.h>

#include "common/selection/presets.h"
#include "inference_rank/memory/slot_pool.h"
#include "inference_rank/memory/working_set.h"

namespace winnow {
namespace {

constexpr KvLayout kLayout = {
    .num_layers = 3, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 16, .dtype = Dtype::kBf16};
constexpr uint32_t kLists = 6;

// 20 columns of a prompt and two of its answer.
constexpr uint32_t kPrompt = 1280, kMost = 1408, kColumns = 22;

SelectionSpec Sparse() {
  SelectionSpec spec = *FindPreset("winnow");
  spec.budget_tokens = 100;
  spec.pool_factor = 2;
  spec.recent_tokens = 64;
  return spec;
}
constexpr SlotTiers kTiers = {.pages = {.front = 20 * kLists, .host = 100 * kLists}, .staging_slots = 4096};

SlotPlacement Spread(const SelectionSpec& spec, const SlotTiers& tiers = kTiers, uint32_t prompt = kPrompt) {
  return SpreadPlacement(kLayout, spec, kMost, prompt, SlotOrder::kByPosition, tiers);
}
SlotDemand Demand(const SelectionSpec& spec, const SlotTiers& tiers = kTiers) {
  return DemandOf(kLayout, Spread(spec, tiers), kColumns * kLists);
}

TEST(SlotPlacementTest, SinksWindowAndAnswerStayInFrontBesideStagingOfPoolFactorBudgets) {
  const SlotPlacement spread = Spread(Sparse());
  EXPECT_EQ(spread.host_begin, 1u);
  EXPECT_EQ(spread.host_end, (kPrompt - 64 - kBlockTokens) / kSlotPageTokens);
  EXPECT_EQ(spread.staging_pages, 4u) << "200 slots";
  EXPECT_EQ(Spread(Sparse(), {.pages = kTiers.pages, .staging_slots = 128}).staging_pages, 2u);
  const SlotDemand demand = Demand(Sparse());
  EXPECT_EQ(demand.spread.host, 17 * kLists);
  EXPECT_EQ(demand.spread.front, (kColumns - 17 + 4) * kLists);
}

TEST(SlotPlacementTest, WithoutHostMemoryOrForAShortPromptNothingSpreads) {
  EXPECT_FALSE(Demand(Sparse(), {.pages = {.front = 20 * kLists, .host = 0}, .staging_slots = 4096}).may_spread());
  EXPECT_EQ(Spread(Sparse(), kTiers, /*prompt=*/400).host_columns(), 0u) << "staging would take as much";
  EXPECT_EQ(SpreadPlacement(kLayout, Sparse(), kMost, kPrompt, SlotOrder::kParts, kTiers).host_columns(), 0u);
}

TEST(SlotPlacementTest, WhatReadsEveryRowSpreadsOnlyWhereTheGpuCouldNeverHoldIt) {
  SelectionSpec by_keys = *FindPreset("exact-token"), below = Sparse();
  below.dense_below_tokens = kPrompt + 1;
  const SlotTiers roomy = {.pages = {.front = kColumns * kLists, .host = 100 * kLists}, .staging_slots = 4096};
  for (const SelectionSpec& spec : {*FindPreset("dense"), by_keys, below}) {
    EXPECT_TRUE(ReadsEveryRow(spec, kPrompt));
    EXPECT_EQ(Spread(spec, roomy).host_columns(), 0u);
    EXPECT_GT(Spread(spec).host_columns(), 0u);
    EXPECT_EQ(Spread(spec).staging_pages, 0u);
  }
  below.dense_below_tokens = kPrompt;
  for (const SelectionSpec& spec : {Sparse(), *FindPreset("quest"), below}) {
    EXPECT_FALSE(ReadsEveryRow(spec, kPrompt)) << spec.preset;
  }
}

TEST(SlotPlacementTest, ASequenceFitsInFrontOrSpread) {
  const SlotDemand demand = Demand(Sparse());
  const uint32_t all = kColumns * kLists;
  EXPECT_TRUE(demand.FitsIn({.front = all, .host = 0}, 0));
  EXPECT_FALSE(demand.FitsIn({.front = all - 1, .host = 0}, 0));
  EXPECT_TRUE(demand.FitsIn(demand.spread, 0));
  EXPECT_FALSE(demand.FitsIn({.front = demand.spread.front - 1, .host = 1000}, 0));
  EXPECT_FALSE(demand.FitsIn({.front = demand.spread.front, .host = demand.spread.host - 1}, 0));
  // What it shares may lie in the host's memory: then it stages.
  EXPECT_TRUE(demand.FitsIn({.front = all - kLists * 10 + demand.staging_pages, .host = 0}, kLists * 10));
  EXPECT_FALSE(demand.FitsIn({.front = all - kLists * 10 + demand.staging_pages - 1, .host = 0}, kLists * 10));
}

// Else the first sequences would take all of the memory that those in the host's need.
TEST(SlotPlacementTest, FrontMemoryIsKeptForWhatStagesTheFreeHostMemory) {
  const SlotDemand demand = Demand(Sparse());
  const uint32_t all = kColumns * kLists, front = demand.spread.front, host = demand.spread.host;
  EXPECT_TRUE(demand.LeavesRoomToStage({.front = all + 3 * front, .host = 3 * host}));
  EXPECT_FALSE(demand.LeavesRoomToStage({.front = all + 3 * front - 1, .host = 3 * host}));
  EXPECT_TRUE(demand.LeavesRoomToStage({.front = all, .host = 0}));
  EXPECT_TRUE(DemandOf(kLayout, {}, all).LeavesRoomToStage({.front = 1, .host = 3 * host})) << "it must lie there";
}

TEST(SlotPlacementTest, AWorkingSetTakesItsPagesThere) {
  std::vector<std::byte> memory(120 * kLists * kSlotPageTokens * kLayout.row_bytes());
  SlotPool slots = SlotPool::OnDevices(kLayout.row_bytes(), 120 * kLists, {{.rows = memory.data()}}, 100 * kLists);
  const auto create = [&](std::optional<SlotPlacement> placement) {
    return WorkingSet::Create(slots, kLayout, Sparse(), kMost, kPrompt, SlotOrder::kByPosition, {}, placement);
  };
  EXPECT_FALSE(create(SlotPlacement()).ok()) << "it does not fit in front";
  {
    const WorkingSet set = create(Spread(Sparse())).value();
    for (size_t list = 0; list < kLists; ++list) {
      for (uint32_t column = 0; column < kColumns; ++column) {
        const bool in_host = slots.place_of(set.PageOf(list, column)) == SlotPlace::kHostBehindGpu;
        EXPECT_EQ(in_host, column >= 1 && column < 18) << column;
      }
    }
    EXPECT_EQ(set.staging_pages().size(), 4 * kLists);
    for (const uint32_t page : set.staging_pages()) EXPECT_EQ(slots.place_of(page), SlotPlace::kFront);
    EXPECT_EQ(set.pages_held().host, 17 * kLists);
    EXPECT_EQ(set.pages_held().front, 9 * kLists);
    EXPECT_EQ(slots.free_pages(SlotPlace::kFront), 11 * kLists);
    const WorkingSet second = create(Spread(Sparse())).value();
    EXPECT_FALSE(create(Spread(Sparse())).ok());
    EXPECT_EQ(slots.free_pages(SlotPlace::kFront), 2 * kLists) << "what was taken in vain came back";
    EXPECT_TRUE(create(std::nullopt).ok()) << "wherever they are free";
  }
  EXPECT_EQ(slots.free_pages(), slots.num_pages());
}

}  // namespace
}  // namespace winnow
