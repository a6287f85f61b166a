#include "inference_rank/scheduler/recent_quantile.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

namespace winnow {
namespace {

TEST(RecentQuantile, IsThatOfASortedWindow) {
  constexpr size_t kWindow = 50;
  std::mt19937 random(7);
  RecentQuantile<kWindow> recent;
  EXPECT_TRUE(recent.empty());
  std::deque<double> window;
  for (int i = 0; i < 300; ++i) {
    const double value = std::uniform_int_distribution<int>(0, 40)(random);
    recent.Add(value);
    window.push_back(value);
    if (window.size() > kWindow) window.pop_front();
    for (const double share : {0.0, 0.02, 0.5, 0.9, 0.99, 1.0}) {
      double expected = 1e9;
      for (const double candidate : window) {
        size_t not_above = 0;
        for (const double other : window) not_above += other <= candidate;
        if (static_cast<double>(not_above) >= share * static_cast<double>(window.size())) {
          expected = std::min(expected, candidate);
        }
      }
      ASSERT_EQ(recent.At(share), expected) << "value " << i << " share " << share;
    }
  }
}

}  // namespace
}  // namespace winnow
