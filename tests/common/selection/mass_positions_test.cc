#include "common/selection/mass_positions.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(MassPositions, AreTheFirstAfterThePromptAndThenEverySixteenth) {
  const SelectionSpec spec;
  for (uint32_t position = 101; position < 117; ++position) EXPECT_TRUE(MeasuresMass(spec, position, 101)) << position;
  for (uint32_t position = 117; position < 300; ++position) {
    EXPECT_EQ(MeasuresMass(spec, position, 101), position % 16 == 0) << position;
  }
}

TEST(MassPositions, RowsOfABatchHaveTheirTurns) {
  for (uint32_t position = 117; position < 300; ++position) {
    int measured = 0;
    for (uint32_t row = 0; row < 16; ++row) measured += MeasuresMassOfRow(position, 101, row);
    EXPECT_EQ(measured, 1) << position;
  }
  for (uint32_t row = 0; row < 16; ++row) {
    int first = 0, later = 0;
    for (uint32_t position = 101; position < 117; ++position) first += MeasuresMassOfRow(position, 101, row);
    for (uint32_t position = 117; position < 277; ++position) later += MeasuresMassOfRow(position, 101, row);
    EXPECT_TRUE(MeasuresMassOfRow(101, 101, row)) << "short answers have a figure";
    EXPECT_GE(first, 4);
    EXPECT_LE(first, 5);
    EXPECT_EQ(later, 10);
  }
}

TEST(MassPositions, WhoeverSharesASelectionHasOneThatIsMeasured) {
  SelectionSpec spec;
  spec.reuse_interval = 4;
  for (uint32_t position = 160; position < 300; ++position) {
    EXPECT_EQ(MeasuresMass(spec, position, 100), position % 16 < 4) << position;
  }
}

}  // namespace
}  // namespace winnow
