#include "cache_rank/select/verify/missed_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cache_rank/reference.h"

namespace winnow::test {
namespace {

// Shares of two queries, drawn so that most of the mass lies in few rows, and an importance that is coarser than the
// shares, so that it has ties and is not their order.
class MissedRowsTest : public testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint32_t kFirst = 4;
  static constexpr double kWeights[] = {0.7, 0.2};

  MissedRowsTest() : last_(GetParam()), importance_(last_), shares_(2 * static_cast<size_t>(last_)) {
    double sums[2] = {};
    for (uint32_t row = 0; row < last_; ++row) {
      for (int q = 0; q < 2; ++q) sums[q] += Share(q, row) = std::exp(6 * Noise(1, q, row));
    }
    for (uint32_t row = 0; row < last_; ++row) {
      for (int q = 0; q < 2; ++q) Share(q, row) /= static_cast<float>(sums[q]);
      importance_[row] = std::round(8 * Noise(1, 0, row)) / 8;
      if (row >= kFirst && row % 7 == 3) selected_.push_back(row);
    }
    run_scales_.assign(2 * SoftmaxRuns(last_), 1);
  }
  float& Share(int query, uint32_t row) { return shares_[query * last_ + row]; }
  double MassOf(uint32_t row) { return kWeights[0] * Share(0, row) + kWeights[1] * Share(1, row); }

  std::vector<uint32_t> Fewest(double held, double target) {
    std::vector<uint32_t> rows{99};
    FewestMissedRows(kernels_,
                     {.softmaxes = {shares_.data(), last_, run_scales_.data(), lse_.data(), 2, last_},
                      .weights = kWeights,
                      .importance = importance_.data(),
                      .first = kFirst,
                      .last = last_,
                      .selected = selected_,
                      .held = held,
                      .target = target},
                     scratch_, &rows);
    return rows;
  }
  // Rows in the order in which they are to be taken.
  std::vector<uint32_t> Order() const {
    std::vector<uint32_t> order;
    for (uint32_t row = kFirst; row < last_; ++row) {
      if (!std::binary_search(selected_.begin(), selected_.end(), row)) order.push_back(row);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return importance_[a] > importance_[b]; });
    return order;
  }
  static std::vector<uint32_t> Prefix(std::vector<uint32_t> order, size_t count) {
    order.resize(count);
    std::sort(order.begin(), order.end());
    return order;
  }

  const KernelTable& kernels_ = *CpuKernels("portable").value();
  const uint32_t last_;
  std::vector<float> importance_, shares_, run_scales_, lse_{0, 0};
  std::vector<uint32_t> selected_;
  MissedRowsScratch scratch_;
};

TEST_P(MissedRowsTest, IsTheShortestPrefixOfTheOrderThatReachesTheTarget) {
  const std::vector<uint32_t> order = Order();
  double sum = 0.125;
  for (size_t count = 1; count <= order.size(); ++count) {
    const double before = sum;
    sum += MassOf(order[count - 1]);
    if (count > 20 && count % 37 != 0 && count != order.size()) continue;
    // Between what one row less and these hold: rounding decides nothing.
    EXPECT_EQ(Fewest(0.125, (before + sum) / 2), Prefix(order, count)) << count;
  }
}

TEST_P(MissedRowsTest, IsEverythingWhereThatDoesNotSuffice) {
  const std::vector<uint32_t> order = Order();
  EXPECT_EQ(Fewest(0.1, 2), Prefix(order, order.size()));
  EXPECT_EQ(Fewest(NAN, 0.5), Prefix(order, order.size()));
  Share(1, order[order.size() / 2]) = NAN;
  EXPECT_EQ(Fewest(0.1, 2), Prefix(order, order.size()));
}

TEST_P(MissedRowsTest, IsNothingWhereNothingIsMissed) {
  selected_.clear();
  for (uint32_t row = kFirst; row < last_; ++row) selected_.push_back(row);
  EXPECT_TRUE(Fewest(0.1, 2).empty());
}

INSTANTIATE_TEST_SUITE_P(Rows, MissedRowsTest, testing::Values(5u, 40u, 80u, 700u, 3000u));

}  // namespace
}  // namespace winnow::test
