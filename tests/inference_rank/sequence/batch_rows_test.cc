#include "inference_rank/sequence/batch_rows.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(BatchRows, TheFirstFreeOneIsTaken) {
  BatchRows batch_rows(3);
  EXPECT_EQ(batch_rows.Take(11), 0);
  EXPECT_EQ(batch_rows.Take(12), 1);
  EXPECT_EQ(batch_rows.Take(13), 2);
  EXPECT_EQ(batch_rows.Take(14), -1);
  batch_rows.Free(1, 12);
  EXPECT_EQ(batch_rows.taken(), 2);
  EXPECT_EQ(batch_rows.Take(14), 1);
}

TEST(BatchRows, AFormerHolderFreesNothing) {
  BatchRows batch_rows(1);
  batch_rows.Take(11);
  batch_rows.Free(0, 11);
  batch_rows.Take(12);
  batch_rows.Free(0, 11);
  EXPECT_EQ(batch_rows.Take(13), -1);
}

}  // namespace
}  // namespace winnow
