#include "cache_rank/select/policy/budget_growth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/cache_rank/reference.h"

namespace winnow::test {
namespace {

constexpr uint32_t kBudget = 100;

TEST(BudgetGrowth, DoublesWhenCorrectionsCostMoreThanDoublingAndNoSoonerThanTwoPositionsLater) {
  BudgetGrowth growth(kBudget, 8);
  EXPECT_EQ(growth.FactorAt(1000), 1u);
  EXPECT_FALSE(growth.Record(50, 450)) << "350 above the cost of doubling, 400 are tolerated";
  EXPECT_TRUE(growth.Record(51, 200));
  EXPECT_EQ(growth.FactorAt(51), 1u);
  EXPECT_EQ(growth.FactorAt(52), 1u) << "Sel(52) may have been made before the verification of 51";
  EXPECT_EQ(growth.FactorAt(53), 2u);
  EXPECT_EQ(growth.BudgetAt(53), 2 * kBudget);
  EXPECT_FALSE(growth.Record(52, 100000)) << "selected with the old budget";
  EXPECT_TRUE(growth.Record(53, 2000));
  EXPECT_EQ(growth.FactorAt(54), 2u);
  EXPECT_EQ(growth.FactorAt(55), 4u);
}

TEST(BudgetGrowth, ChangesAtAnchorsOnly) {
  for (const uint32_t reuse : {2u, 3u, 4u, 16u}) {
    BudgetGrowth growth(kBudget, 8, reuse);
    std::vector<uint32_t> growths;  // positions whose record made the head grow
    for (uint32_t p = 0; p < 200; ++p) {
      if (growth.Record(p, 350)) growths.push_back(p);
    }
    ASSERT_EQ(growths.size(), 2u) << "to 200 and 400 rows a position";
    for (uint32_t p = 0; p < 250; ++p) {
      uint32_t expected = 1;
      for (const uint32_t grew : growths) {
        if (p - p % reuse >= grew + 2) expected *= 2;  // its anchor comes two positions later at least
      }
      EXPECT_EQ(growth.FactorAt(p), expected) << reuse << " " << p;
    }
  }
}

TEST(BudgetGrowth, StaysWhereCorrectionsAreCheap) {
  BudgetGrowth growth(kBudget, 8);
  for (uint32_t p = 0; p < 1000; ++p) growth.Record(p, 90);
  for (uint32_t p = 1000; p < 2000; ++p) growth.Record(p, p % 8 == 0 ? 450 : 0);
  EXPECT_EQ(growth.FactorAt(3000), 1u);
}

TEST(BudgetGrowth, NeverExceedsItsCeiling) {
  for (const uint32_t ceiling : {1u, 2u, 4u, 8u}) {
    BudgetGrowth growth(kBudget, ceiling);
    for (uint32_t p = 0; p < 100; ++p) growth.Record(p, 1'000'000);
    EXPECT_EQ(growth.FactorAt(200), ceiling);
  }
}

TEST(BudgetGrowth, HalvesAfterAQuietTimeThatDoublesWhenItWasTooShort) {
  BudgetGrowth growth(kBudget, 2);
  uint32_t p = 0;
  for (uint32_t quiet = 64; quiet <= 512; quiet *= 2) {
    EXPECT_TRUE(growth.Record(p, 10'000));
    growth.Record(p + 1, 0);
    p += 2;
    for (uint32_t i = 0; i + 1 < quiet; ++i) growth.Record(p++, 0);
    EXPECT_EQ(growth.FactorAt(p + 10), 2u) << quiet;
    growth.Record(p++, 0);
    EXPECT_EQ(growth.FactorAt(p), 2u) << quiet;
    EXPECT_EQ(growth.FactorAt(p + 1), 1u) << quiet;
    growth.Record(p++, 0);
  }
}

TEST(BudgetGrowth, TruncatedItIsAsItWas) {
  constexpr uint32_t kFirst = 37, kEnd = 600;
  const auto rows = [](uint32_t p) { return Noise(3, p) > 0.9f ? static_cast<uint32_t>(3000 * (1 + Noise(4, p))) : 0; };
  for (const uint32_t cut : {kFirst, kFirst + 1, 300u, 301u, kEnd - 1, kEnd}) {
    BudgetGrowth expected(kBudget, 8), growth(kBudget, 8);
    for (uint32_t p = kFirst; p < cut; ++p) expected.Record(p, rows(p));
    for (uint32_t p = kFirst; p < kEnd; ++p) growth.Record(p, rows(p));
    growth.Truncate(cut);
    for (uint32_t p = cut; p < kEnd + 200; ++p) {
      ASSERT_EQ(growth.FactorAt(p), expected.FactorAt(p)) << cut << " " << p;
      ASSERT_EQ(growth.Record(p, rows(p)), expected.Record(p, rows(p))) << cut << " " << p;
    }
  }
}

// A head over a context of `rows`: its softmax in descending order falls off as a power of the rank, whose exponent
// wanders from position to position. The selection is the exact top-k.
struct SimulatedHead {
  const char* name;
  double exponent;
  double wander;
};

struct Spent {
  double rows = 0;    // attended and read for correction, a position
  double needed = 0;  // by the exact mass policy
  uint32_t last_factor = 1;
};

Spent Simulate(const SimulatedHead& head, uint32_t budget, uint32_t ceiling, double wanted) {
  constexpr uint32_t kContext = 4000, kPositions = 1500, kAlways = 100;  // sinks and recent rows come on top
  BudgetGrowth growth(budget, ceiling);
  Spent spent;
  for (uint32_t p = 0; p < kPositions; ++p) {
    const double exponent = head.exponent + head.wander * Noise(9, p);
    std::vector<double> mass(kContext + 1);
    for (uint32_t rank = 1; rank <= kContext; ++rank) mass[rank] = mass[rank - 1] + std::pow(rank, -exponent);
    const auto needed =
        static_cast<uint32_t>(std::lower_bound(mass.begin(), mass.end(), wanted * mass.back()) - mass.begin());
    const uint32_t selected = growth.BudgetAt(p);
    const uint32_t read = selected < needed ? kContext - selected : 0;  // the top-k is attended already
    growth.Record(p, read);
    spent.rows += (kAlways + selected + read) / double{kPositions};
    spent.needed += (kAlways + needed) / double{kPositions};
    spent.last_factor = growth.FactorAt(p + 2);
  }
  return spent;
}

TEST(BudgetGrowth, CostsLittleMoreThanTheBestFixedSizeOfAHead) {
  for (const SimulatedHead& head : {SimulatedHead{"peaked", 1.8, 0.2}, SimulatedHead{"medium", 1.3, 0.1},
                                    SimulatedHead{"broad", 1.1, 0.1}, SimulatedHead{"flat", 0.9, 0.05}}) {
    double best = INFINITY;
    for (const uint32_t factor : {1u, 2u, 4u, 8u}) {
      best = std::min(best, Simulate(head, 128 * factor, 1, 0.95).rows);
    }
    const Spent spent = Simulate(head, 128, 8, 0.95);
    EXPECT_LE(spent.rows, 1.35 * best) << head.name << ": " << spent.needed << " are needed";
    RecordProperty(head.name, std::to_string(spent.rows) + " rows, best fixed " + std::to_string(best) + ", needed " +
                                  std::to_string(spent.needed) + ", factor " + std::to_string(spent.last_factor));
  }
}

}  // namespace
}  // namespace winnow::test
