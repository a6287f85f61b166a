#include "kernels/cpu/score_cap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace winnow {
namespace {

TEST(ScoreCapTest, IsTheCapTimesATangent) {
  for (const float cap : {0.7f, 30.0f, 50.0f}) {
    std::vector<float> scores;
    for (float score = 1e-6f; score < 1e6f; score *= 1.01f) scores.insert(scores.end(), {score, -score});
    std::vector<float> capped = scores;
    CapScores(capped.data(), static_cast<int>(capped.size()), cap);
    for (size_t i = 0; i < scores.size(); ++i) {
      const double expected = cap * std::tanh(double{scores[i]} / cap);
      EXPECT_NEAR(capped[i], expected, 5e-7 * std::fabs(expected)) << scores[i];
    }
  }
}

TEST(ScoreCapTest, KeepsZeroAndWhatIsNoNumberAndBoundsInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float scores[] = {0, kInfinity, -kInfinity, std::nanf("")};
  CapScores(scores, 4, 50);
  EXPECT_EQ(scores[0], 0);
  EXPECT_NEAR(scores[1], 50, 2e-5);
  EXPECT_NEAR(scores[2], -50, 2e-5);
  EXPECT_TRUE(std::isnan(scores[3]));
}

}  // namespace
}  // namespace winnow
