#include "inference_rank/backend/slot_list_packer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace winnow {
namespace {

using testing::ElementsAre;

constexpr int kQueryHeads = 8;
constexpr int kKvHeads = 2;
constexpr uint32_t kGroup = kQueryHeads / kKvHeads;

class SlotListPackerTest : public testing::Test {
 protected:
  // A row whose kv heads have a list each, or, where `split` has their bit, one for each of their query heads.
  void AddRow(uint32_t split, uint32_t count) {
    for (int head = 0; head < kKvHeads; ++head) {
      const bool own = (split >> head & 1) != 0;
      for (uint32_t i = 0; i < (own ? kGroup : 1); ++i) {
        std::vector<uint32_t>& slots = slots_.emplace_back();
        for (uint32_t j = 0; j < count + i; ++j) slots.push_back(random_() % 10000);
        wanted_.insert(wanted_.end(), own ? 1 : kGroup, slots);
      }
    }
    split_.push_back(split);
    ++rows_;
  }
  const SlotLists& Lists() {
    lists_.Clear();
    size_t next = 0;
    for (const uint32_t split : split_) {
      for (int head = 0; head < kKvHeads; ++head) {
        const bool own = (split >> head & 1) != 0;
        for (uint32_t i = 0; i < (own ? kGroup : 1); ++i) lists_.Add(slots_[next++], own ? 1 : kGroup);
      }
    }
    return lists_;
  }
  // The slots that each query head of the pack's rows reads.
  std::vector<std::vector<uint32_t>> Read(const SlotListPacker& packer, std::span<const device::AttentionList> lists,
                                          std::span<const uint32_t> selected) {
    std::vector<std::vector<uint32_t>> read;
    for (const AttentionLaunch& launch : packer.launches()) {
      const int per_row = launch.per_query_head ? kQueryHeads : kKvHeads;
      for (int i = 0; i < launch.num_rows * kQueryHeads; ++i) {
        const device::AttentionList& list = lists[launch.first_list + i * per_row / kQueryHeads];
        EXPECT_EQ(list.count(), list.selected_count);
        EXPECT_LE(list.count(), launch.max_count);
        const auto begin = selected.begin() + list.selected_first;
        read.emplace_back(begin, begin + list.selected_count);
      }
    }
    return read;
  }

  std::mt19937 random_{5};
  std::vector<std::vector<uint32_t>> slots_;   // by list
  std::vector<std::vector<uint32_t>> wanted_;  // by query head
  std::vector<uint32_t> split_;
  int rows_ = 0;
  SlotLists lists_;
  std::vector<device::AttentionList> list_space_{64 * kQueryHeads};
  std::vector<uint32_t> selected_space_ = std::vector<uint32_t>(1 << 16);
};

TEST_F(SlotListPackerTest, RowsOfOneKindAreOneLaunch) {
  for (uint32_t i = 0; i < 5; ++i) AddRow(0, 100 + i);
  SlotListPacker packer(kQueryHeads, kKvHeads, /*first_slot=*/0, list_space_, selected_space_);
  packer.Begin(Lists(), rows_);
  ASSERT_TRUE(packer.NextPack());
  ASSERT_EQ(packer.launches().size(), 1u);
  EXPECT_EQ(packer.launches()[0].max_count, 104u);
  EXPECT_EQ(packer.num_lists(), 5u * kKvHeads);
  EXPECT_EQ(Read(packer, list_space_, selected_space_), wanted_);
  EXPECT_FALSE(packer.NextPack());
}

// A row's launch, and with it its bits, must not depend on what else is in the batch.
TEST_F(SlotListPackerTest, ARowWithListsOfItsQueryHeadsIsNeverInALaunchWithOthers) {
  for (const uint32_t split : {0u, 0u, 1u, 3u, 0u}) AddRow(split, 50);
  SlotListPacker packer(kQueryHeads, kKvHeads, /*first_slot=*/0, list_space_, selected_space_);
  packer.Begin(Lists(), rows_);
  ASSERT_TRUE(packer.NextPack());
  std::vector<std::pair<int, bool>> kinds;
  for (const AttentionLaunch& launch : packer.launches()) kinds.emplace_back(launch.num_rows, launch.per_query_head);
  EXPECT_THAT(kinds, ElementsAre(std::pair(2, false), std::pair(2, true), std::pair(1, false)));
  EXPECT_EQ(packer.launches()[2].first_row, 4);
  EXPECT_EQ(Read(packer, list_space_, selected_space_), wanted_) << "a shared list is read by each head of its group";
}

TEST_F(SlotListPackerTest, WhatDoesNotFitComesInFurtherPacks) {
  for (uint32_t i = 0; i < 7; ++i) AddRow(i % 2 == 0 ? 0 : 2, 90 + i);
  const std::span<uint32_t> little(selected_space_.data(), 1000);
  SlotListPacker packer(kQueryHeads, kKvHeads, /*first_slot=*/0, list_space_, little);
  packer.Begin(Lists(), rows_);
  std::vector<std::vector<uint32_t>> read;
  int packs = 0, next_row = 0;
  for (; packer.NextPack(); ++packs) {
    EXPECT_EQ(packer.launches()[0].first_row, next_row);
    next_row = packer.launches().back().first_row + packer.launches().back().num_rows;
    EXPECT_LE(packer.num_selected(), little.size());
    for (auto& slots : Read(packer, list_space_, little)) read.push_back(slots);
  }
  EXPECT_GT(packs, 1);
  EXPECT_EQ(next_row, rows_);
  EXPECT_EQ(read, wanted_);
}

}  // namespace
}  // namespace winnow
