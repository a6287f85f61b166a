#include "inference_rank/sequence/mass_summary.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(MassSummary, CountsAMassOfAThousandthInTheBinThatBeginsThere) {
  for (int bin = 0; bin <= MassSummary::kBins; ++bin) {
    MassSummary summary;
    summary.Add(static_cast<float>(bin) / MassSummary::kBins);  // f32, as masses come: half of them a little below
    EXPECT_EQ(summary.in_bin(bin), 1u) << bin;
  }
}

TEST(MassSummary, MeanAndPercentilesAreThoseOfAllMasses) {
  MassSummary summary;
  EXPECT_EQ(summary.count(), 0u);
  summary.Add(0.25, 6);
  summary.Add(0.7505, 94);
  summary.Add(-1);   // outside of [0, 1] by rounding: counts as 0,
  summary.Add(1.5);  // and as 1
  EXPECT_EQ(summary.count(), 102u);
  EXPECT_DOUBLE_EQ(summary.mean(), (0.25 * 6 + 0.7505 * 94 + 1) / 102);
  EXPECT_EQ(summary.percentile(0), 0);
  EXPECT_EQ(summary.percentile(0.05), 0.25);
  EXPECT_EQ(summary.percentile(0.5), 0.75);
  EXPECT_EQ(summary.percentile(1), 1);
}

}  // namespace
}  // namespace winnow
