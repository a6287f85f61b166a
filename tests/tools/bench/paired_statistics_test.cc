#include "tools/bench/quality/paired_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

namespace winnow {
namespace {

// By counting: all 2^n ways in which n unequal pairs can fall.
double SignTestReference(int lost, int gained) {
  const int n = lost + gained, most = std::max(lost, gained);
  int extreme = 0;
  for (unsigned ways = 0; ways < (1u << n); ++ways) {
    const int ones = std::popcount(ways);
    extreme += std::max(ones, n - ones) >= most;
  }
  return static_cast<double>(extreme) / (1 << n);
}

TEST(SignTest, CountsSplitsAtLeastAsUneven) {
  for (int lost = 0; lost <= 8; ++lost) {
    for (int gained = 0; gained <= 8; ++gained) {
      const double p = SignTest(lost, gained);
      EXPECT_NEAR(p, SignTestReference(lost, gained), 1e-12) << lost << " " << gained;
    }
  }
}

TEST(SignTest, ManyLossesAreNoChance) {
  EXPECT_LT(SignTest(200, 20), 1e-30);
  EXPECT_EQ(SignTest(200, 200), 1);
}

TEST(WilsonInterval, PublishedValues) {
  // Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
  const auto expect = [](int right, int count, double low, double high) {
    const Interval interval = WilsonInterval(right, count);
    EXPECT_NEAR(interval.low, low, 5e-5) << right << "/" << count;
    EXPECT_NEAR(interval.high, high, 5e-5) << right << "/" << count;
  };
  expect(81, 263, 0.2553, 0.3662);
  expect(15, 148, 0.0624, 0.1605);
  expect(0, 20, 0.0000, 0.1611);
  expect(1, 29, 0.0061, 0.1718);
}

TEST(WilsonInterval, KnowsNothingWithoutPrompts) {
  EXPECT_EQ(WilsonInterval(0, 0).low, 0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
}

}  // namespace
}  // namespace winnow
