// Where rows are selected, and up to where positions attend to everything, if nobody says so.
#include "cmd/plan/placement_choice.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

UpOptions OnGpus(int tensor_parallel) {
  UpOptions options;
  options.model = "synthetic:qwen3-14b";
  options.device = {DeviceChoice::Kind::kGpu, 0};
  options.tensor_parallel = tensor_parallel;
  return options;
}

TEST(PlacementChoice, RowsAreSelectedInPlaceWhereThereAreNotAsManyGpusBeside) {
  EXPECT_TRUE(SelectsInPlace(OnGpus(1), 1));
  EXPECT_FALSE(SelectsInPlace(OnGpus(1), 2));
  EXPECT_TRUE(SelectsInPlace(OnGpus(2), 2));
  EXPECT_TRUE(SelectsInPlace(OnGpus(2), 3));
  EXPECT_FALSE(SelectsInPlace(OnGpus(2), 4));
  EXPECT_FALSE(SelectsInPlace(OnGpus(2), 1)) << "they are not there";
}

TEST(PlacementChoice, NamedGpusAreSharedOutToTheRanks) {
  UpOptions options = OnGpus(0);
  options.device.more = {1};
  EXPECT_TRUE(SelectsInPlace(options, 2)) << "one rank of two GPUs";
  options.inference_ranks = 2;
  EXPECT_FALSE(SelectsInPlace(options, 2)) << "two ranks of one GPU";
}

TEST(PlacementChoice, WhatIsSaidHolds) {
  UpOptions options = OnGpus(1);
  options.select_in_place = SelectInPlace::kOn;
  EXPECT_TRUE(SelectsInPlace(options, 2));
  options.select_in_place = SelectInPlace::kOff;
  EXPECT_FALSE(SelectsInPlace(options, 1));
  options.select_in_place = SelectInPlace::kAuto;
  options.transport = TransportKind::kUcx;
  EXPECT_TRUE(SelectsInPlace(options, 2)) << "no GPU writes into another's";
  options.device.kind = DeviceChoice::Kind::kCpu;
  EXPECT_FALSE(SelectsInPlace(options, 2));
}

TEST(PlacementChoice, TwoGpusReadMoreRowsBeforeSearchingThemPays) {
  const auto dense_below = [](int tensor_parallel) {
    UpOptions options = OnGpus(tensor_parallel);
    options.kv_dtype = Dtype::kF32;  // rows of so many bytes that one GPU does not reach the most
    EXPECT_TRUE(ChooseInPlaceSelection(options, tensor_parallel));
    return options.selection.specification;
  };
  EXPECT_EQ(dense_below(1), "winnow,dense_below_tokens=28672");
  EXPECT_EQ(dense_below(2), "winnow,dense_below_tokens=32768") << "the most";
}

}  // namespace
}  // namespace winnow
