#include "cache_rank/store/device/device_kv_shape.h"

#include <gtest/gtest.h>

#include "common/selection/presets.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using testing::HasSubstr;

// Qwen3-14B.
constexpr KvLayout kLayout = {
    .num_layers = 40, .num_query_heads = 40, .num_kv_heads = 8, .head_dim = 128, .dtype = Dtype::kBf16};

DeviceKvShape ShapeOf(std::string_view preset, RowTier rows = RowTier::kDevice) {
  return DeviceKvShapeFor(FindPreset(preset).value(), kLayout, 8, 32768, 8 * 32768, rows);
}

TEST(DeviceKvShape, HoldsAllTokensAndABegunBlockOfEachSequence) {
  EXPECT_EQ(ShapeOf("winnow").num_blocks, (8u * 1024 + 8) * 320);
  EXPECT_EQ(ShapeOf("winnow").BlocksOf(33), 2u * 320);
}

TEST(DeviceKvShape, KeepsTheIndexesThatThePresetDeclares) {
  EXPECT_TRUE(ShapeOf("winnow").key_copy);
  EXPECT_EQ(ShapeOf("winnow").page_tokens, 16u);
  EXPECT_TRUE(ShapeOf("winnow").scores_keys);
  EXPECT_EQ(ShapeOf("winnow").ring_queries, 0u);
  EXPECT_FALSE(ShapeOf("quest").key_copy);
  EXPECT_EQ(ShapeOf("quest").page_tokens, 16u);
  EXPECT_EQ(ShapeOf("depth").page_tokens, 0u);
  EXPECT_TRUE(ShapeOf("async-token").key_copy);
  EXPECT_GE(ShapeOf("async-token").ring_queries, 9u);
}

TEST(DeviceKvShape, BytesArePerTokenArithmetic) {
  const DeviceKvShape shape = ShapeOf("winnow");
  const DeviceKvBytes bytes = BytesOf(shape);
  const size_t tokens = 8 * 32768 + 8 * 32;
  EXPECT_EQ(bytes.rows, tokens * 163840);
  EXPECT_EQ(bytes.key_copy, tokens * 320 * (128 + 4));
  EXPECT_EQ(bytes.bounds, tokens / 16 * 320 * 2 * 128 * 2);
  EXPECT_EQ(bytes.past_queries, 0u);
  // Two words per pool index.
  EXPECT_EQ(bytes.residency, 8u * 320 * 4 * 2 * 8192);
}

TEST(DeviceKvShape, WhatDoesNotFitIsToldPartByPart) {
  const DeviceKvShape shape = ShapeOf("winnow");
  EXPECT_THAT(CheckDeviceMemory(shape, size_t{60} << 30), IsOkStatus());
  const absl::Status status = CheckDeviceMemory(shape, size_t{30} << 30);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kResourceExhausted, HasSubstr("rows 40.04 GiB")));
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kResourceExhausted, HasSubstr("or more with rows in DRAM")));
}

TEST(DeviceKvShape, SaysHowManyTokensWouldFit) {
  // What does not depend on tokens: the image of a pool, block numbers and slot pages of 8 x 320 lists.
  const size_t fixed = 8 * 320 * sizeof(uint32_t) * (2 * 8192 + 1024 + 132);
  const size_t tokens = ((size_t{30} << 30) - fixed) / (163840 + 320 * (132 + 32)) / 32 * 32;
  EXPECT_THAT(CheckDeviceMemory(ShapeOf("winnow"), size_t{30} << 30),
              FailsWith(absl::StatusCode::kResourceExhausted, HasSubstr(absl::StrCat(tokens, " tokens would fit"))));
}

TEST(DeviceKvShape, RowsInDramTakeNoDeviceMemory) {
  EXPECT_THAT(CheckDeviceMemory(ShapeOf("winnow", RowTier::kPinnedHost), size_t{30} << 30), IsOkStatus());
}

// Of the GPU's memory every block has its index, and of the host's those that have no room there their rows.
TEST(DeviceKvShape, FitsBlocksIntoTwoTiers) {
  DeviceKvShape shape = DeviceKvShapeFor(FindPreset("winnow").value(), kLayout, 4, 1000, 0);
  ASSERT_TRUE(shape.key_copy);
  shape.num_blocks = 0;
  const size_t fixed = BytesOf(shape).index();
  shape.num_blocks = 1;
  const size_t rows = BytesOf(shape).rows, index = BytesOf(shape).index() - fixed;
  const auto fit = [&](size_t device_bytes, size_t host_bytes) {
    FitBlocks(device_bytes, host_bytes, &shape);
    return std::make_pair(shape.num_blocks, shape.dram_blocks);
  };
  using Blocks = std::pair<uint64_t, uint64_t>;
  EXPECT_EQ(fit(fixed + 100 * (rows + index), 0), Blocks(100, 0));
  EXPECT_EQ(fit(fixed + 100 * (rows + index) - 1, rows - 1), Blocks(99, 0));
  EXPECT_EQ(fit(fixed + 100 * (rows + index) + 40 * index, 40 * rows), Blocks(140, 40));
  EXPECT_EQ(fit(fixed + 30 * index, 100 * rows), Blocks(30, 30)) << "no room for more of the index";
  EXPECT_EQ(fit(fixed, 100 * rows), Blocks(0, 0));
  EXPECT_EQ(fit(fixed / 2, 100 * rows), Blocks(0, 0));
}

TEST(DeviceKvShape, RefusesWhatGpusDoNotServe) {
  for (const std::string_view built :
       {"winnow", "depth", "async-token", "exact-token", "quest", "hisparse", "sparseserve", "psa"}) {
    EXPECT_THAT(CheckDeviceSpec(FindPreset(built).value()), IsOkStatus()) << built;
  }
  for (const std::string_view other : {"lserve", "fixed", "dense"}) {
    EXPECT_THAT(CheckDeviceSpec(FindPreset(other).value()),
                FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("on a GPU cannot serve")))
        << other;
  }
}

TEST(DeviceKvShape, ListsOfQueryHeadsAndKeptSelectionsTakeRowsInPlace) {
  EXPECT_THAT(CheckDeviceSpec(FindPreset("lserve").value(), RowTier::kInPlace), IsOkStatus());
  EXPECT_THAT(CheckDeviceSpec(FindPreset("psa").value(), RowTier::kPinnedHost),
              FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("with rows in DRAM")));
}

// Of contexts of 32k `winnow` keeps 8-bit keys and bounds of pages of 16.
TEST(DeviceKvShape, SequencesOfSeveralSpecificationsHaveTheirIndexInTheRoomOfOne) {
  const auto index = [](std::string_view own, std::string_view wanted) {
    return IndexIn(ShapeOf(own, RowTier::kInPlace), FindPreset(wanted).value());
  };
  const DeviceIndex of_winnow = ShapeOf("winnow").own_index(), of_cuboids{.page_tokens = 32, .cuboids = true};
  EXPECT_EQ(index("winnow", "winnow"), of_winnow);
  EXPECT_EQ(index("winnow", "quest"), of_winnow) << "all that it reads is there";
  EXPECT_EQ(index("winnow", "depth"), DeviceIndex{}) << "it reads none";
  EXPECT_EQ(index("winnow", "psa"), of_cuboids);
  EXPECT_EQ(index("quest", "psa"), of_cuboids);
  EXPECT_EQ(index("quest", "winnow"), std::nullopt);
  EXPECT_EQ(index("psa", "quest"), std::nullopt) << "twice as many pages";
  EXPECT_EQ(index("depth", "psa"), std::nullopt);
  EXPECT_EQ(IndexIn(ShapeOf("winnow"), FindPreset("depth").value()), of_winnow) << "a store of one specification";
}

TEST(DeviceKvShape, RowsInPlaceTakeNoMemoryOfTheirOwn) {
  const DeviceKvShape shape = ShapeOf("quest", RowTier::kInPlace);
  EXPECT_EQ(shape.pool_slots, 0u);
  EXPECT_EQ(BytesOf(shape).rows, 0u);
  EXPECT_EQ(BytesOf(shape).residency, 0u);
}

}  // namespace
}  // namespace winnow
