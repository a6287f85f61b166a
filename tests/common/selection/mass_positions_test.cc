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

TEST(MassPositions, WhoeverSharesASelectionHasOneThatIsMeasured) {
  SelectionSpec spec;
  spec.reuse_interval = 4;
  for (uint32_t position = 160; position < 300; ++position) {
    EXPECT_EQ(MeasuresMass(spec, position, 100), position % 16 < 4) << position;
  }
}

}  // namespace
}  // namespace winnow
