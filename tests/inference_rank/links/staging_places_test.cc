#include "inference_rank/links/staging_places.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(StagingPlaces, AreTakenInTurnAndNoSoonerThanTheyAreFree) {
  StagingPlaces places;
  EXPECT_EQ(places.Take(2), 1u);
  EXPECT_EQ(places.Take(2), 2u);
  EXPECT_EQ(places.Take(2), std::nullopt);
  EXPECT_TRUE(places.SetFree(1));
  EXPECT_EQ(places.Take(2), 3u);
  EXPECT_EQ(places.Take(2), std::nullopt);
  EXPECT_TRUE(places.SetFree(3));
  EXPECT_EQ(places.Take(2), 4u);
  EXPECT_EQ(places.Take(2), 5u);
}

TEST(StagingPlaces, APeerFreesNothingTwiceAndNothingThatWasNotTaken) {
  StagingPlaces places;
  places.Take(4);
  places.Take(4);
  EXPECT_FALSE(places.SetFree(3));
  EXPECT_TRUE(places.SetFree(2));
  EXPECT_TRUE(places.SetFree(2));
  EXPECT_FALSE(places.SetFree(1));
}

}  // namespace
}  // namespace winnow
