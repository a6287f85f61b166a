#include "inference_rank/sequence/prefix_times.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(PrefixTimes, FollowsThePiecesThatAreComputed) {
  PrefixTimes times;
  EXPECT_EQ(times.us_per_work(), 0);
  times.ObservePiece(100, 300);
  EXPECT_DOUBLE_EQ(times.us_per_work(), 3);
  times.ObservePiece(300, 300);
  EXPECT_GT(times.us_per_work(), 1.4);
  EXPECT_LT(times.us_per_work(), 1.6) << "by work, not by piece";
  for (int i = 0; i < 1000; ++i) times.ObservePiece(100, 700);
  EXPECT_NEAR(times.us_per_work(), 7, 1e-6);
}

TEST(PrefixTimes, TheFirstRowsShowTheLink) {
  PrefixTimes times;
  const double assumed = times.us_per_byte();
  EXPECT_GT(assumed, 0);
  times.ObserveRows(1000, 5);
  EXPECT_EQ(times.us_per_byte(), assumed) << "too few";
  times.ObserveRows(1 << 25, 0.008 * (1 << 25));
  EXPECT_DOUBLE_EQ(times.us_per_byte(), 0.008);
}

TEST(PrefixTimes, RowsThatCameLateHardlyCount) {
  PrefixTimes times;
  const auto observe = [&](double us_per_byte) { times.ObserveRows(1 << 25, us_per_byte * (1 << 25)); };
  observe(0.001);
  observe(0.1);
  EXPECT_LT(times.us_per_byte(), 0.012);
  observe(0.001);
  observe(0.001);
  observe(0.001);
  EXPECT_LT(times.us_per_byte(), 0.003);
  for (int i = 0; i < 100; ++i) observe(0.1);
  EXPECT_GT(times.us_per_byte(), 0.09) << "the link has become slow";
}

TEST(PrefixTimes, ForgetsALinkOfWhichNothingIsSeen) {
  PrefixTimes times;
  times.ObserveRows(1 << 25, 0.1 * (1 << 25));
  for (int i = 0; i < 300; ++i) times.NoteRemote();
  EXPECT_LT(times.us_per_byte(), 0.01);
}

}  // namespace
}  // namespace winnow
