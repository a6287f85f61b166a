#include "inference_rank/sequence/lane_seats.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(LaneSeats, TheFirstFreeOneIsTaken) {
  LaneSeats seats(3);
  EXPECT_EQ(seats.Take(11), 0);
  EXPECT_EQ(seats.Take(12), 1);
  EXPECT_EQ(seats.Take(13), 2);
  EXPECT_EQ(seats.Take(14), -1);
  seats.Free(1, 12);
  EXPECT_EQ(seats.taken(), 2);
  EXPECT_EQ(seats.Take(14), 1);
}

TEST(LaneSeats, AFormerHolderFreesNothing) {
  LaneSeats seats(1);
  seats.Take(11);
  seats.Free(0, 11);
  seats.Take(12);
  seats.Free(0, 11);
  EXPECT_EQ(seats.Take(13), -1);
}

}  // namespace
}  // namespace winnow
