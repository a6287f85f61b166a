#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

class ExpertsTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(ExpertsTest);

TEST_P(ExpertsTest, RoutesToTheMostLikely) {
  std::mt19937 random(5);
  const auto executor = kernels().new_executor(3);
  for (const int num_experts : {1, 4, 7, 128}) {
    for (const int chosen : {1, 2, 8}) {
      if (chosen > num_experts) continue;
      constexpr int kRows = 40;
      std::vector<float> logits = RandomFloats(random, kRows * num_experts);
      // Ties: some values twice, a row of one value.
      for (size_t i = 0; i < logits.size(); i += 3) logits[i] = logits[i / 2];
      std::fill_n(logits.begin(), num_experts, 1.5f);
      for (const bool normalizes : {false, true}) {
        std::vector<uint32_t> experts(kRows * chosen);
        std::vector<float> weights(experts.size(), kPoison);
        kernels().route_experts(*executor, {.logits = logits.data(),
                                            .num_rows = kRows,
                                            .num_experts = num_experts,
                                            .experts_per_token = chosen,
                                            .normalizes = normalizes,
                                            .experts = experts.data(),
                                            .weights = weights.data()});
        for (int row = 0; row < kRows; ++row) {
          const float* const of_row = logits.data() + row * num_experts;
          std::vector<uint32_t> best(num_experts);
          std::iota(best.begin(), best.end(), 0u);
          std::stable_sort(best.begin(), best.end(), [&](uint32_t a, uint32_t b) { return of_row[a] > of_row[b]; });
          std::vector<uint32_t> expected(best.begin(), best.begin() + chosen);
          std::sort(expected.begin(), expected.end());
          double total = 0;
          for (int i = 0; i < (normalizes ? chosen : num_experts); ++i) total += std::exp(double{of_row[best[i]]});
          for (int i = 0; i < chosen; ++i) {
            ASSERT_EQ(experts[row * chosen + i], expected[i]) << row;
            ASSERT_NEAR(weights[row * chosen + i], std::exp(double{of_row[expected[i]]}) / total, 1e-6) << row;
          }
        }
      }
    }
  }
}

// Three groups of two: the best expert is in the first, the best pair in the second.
TEST_P(ExpertsTest, AGroupIsAsGoodAsItsBestExpertOrItsBestTwo) {
  const auto executor = kernels().new_executor(1);
  const std::vector<double> shares = {0.4, 0.01, 0.25, 0.24, 0.05, 0.05};
  std::vector<float> logits;
  for (const double share : shares) logits.push_back(static_cast<float>(std::log(share)));
  for (const int group_scores : {1, 2}) {
    std::vector<uint32_t> experts(2);
    std::vector<float> weights(2);
    kernels().route_experts(*executor, {.logits = logits.data(),
                                        .num_rows = 1,
                                        .num_experts = 6,
                                        .experts_per_token = 2,
                                        .groups = 3,
                                        .groups_per_token = 1,
                                        .group_scores = group_scores,
                                        .scale = 16,
                                        .experts = experts.data(),
                                        .weights = weights.data()});
    const uint32_t first = group_scores == 1 ? 0 : 2;
    EXPECT_EQ(experts, (std::vector<uint32_t>{first, first + 1}));
    EXPECT_NEAR(weights[0], 16 * shares[first], 1e-5);
    EXPECT_NEAR(weights[1], 16 * shares[first + 1], 1e-5);
  }
}

TEST_P(ExpertsTest, TakesRowsAndAddsThemScaled) {
  std::mt19937 random(6);
  const auto executor = kernels().new_executor(3);
  constexpr int kWidth = 37, kRows = 50;
  const std::vector<float> x = RandomFloats(random, kRows * kWidth);
  for (const int count : {1, 3, 29}) {
    std::vector<uint32_t> rows(kRows);
    std::iota(rows.begin(), rows.end(), 0u);
    std::shuffle(rows.begin(), rows.end(), random);
    rows.resize(count);
    std::vector<float> taken(count * kWidth, kPoison);
    kernels().take_rows(*executor,
                        {.x = x.data(), .width = kWidth, .rows = rows.data(), .num_rows = count, .out = taken.data()});
    const std::vector<float> before = RandomFloats(random, kRows * kWidth), scales = RandomFloats(random, count);
    std::vector<float> y = before;
    kernels().add_scaled_rows(*executor, {.x = taken.data(),
                                          .width = kWidth,
                                          .rows = rows.data(),
                                          .scales = scales.data(),
                                          .num_rows = count,
                                          .y = y.data()});
    std::vector<float> expected = before;
    for (int i = 0; i < count; ++i) {
      for (int c = 0; c < kWidth; ++c) {
        ASSERT_EQ(taken[i * kWidth + c], x[rows[i] * kWidth + c]);
        expected[rows[i] * kWidth + c] += scales[i] * x[rows[i] * kWidth + c];
      }
    }
    EXPECT_EQ(y, expected);
  }
}

}  // namespace
}  // namespace winnow
