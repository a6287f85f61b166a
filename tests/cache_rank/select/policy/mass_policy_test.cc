#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cache_rank/select/host/select_head.h"
#include "cache_rank/select/policy/mass.h"
#include "common/selection/presets.h"
#include "tests/cache_rank/store/stored_keys.h"

namespace winnow {
namespace {

using test::Vector;

constexpr uint32_t kSinks = 4;

// Keys that make estimates wrong: pages whose box is large though their keys score low, single huge keys, flat runs.
float Adversarial(uint32_t p) {
  if (p % 128 < 32) return p % 2 == 0 ? 3.0f : -3.0f;
  if (p % 251 == 17) return 6;
  return p % 96 < 32 ? 0.05f : 1.0f;
}
float Spiky(uint32_t p) {
  return p % 173 == 40 ? 4.0f : 0.2f;
}
float Plain(uint32_t) {
  return 1;
}
using Spread = float (*)(uint32_t);

struct Case {
  Scorer scorer;
  uint32_t page;
  int group;
  Dtype dtype = Dtype::kF32;
  GroupAggregation aggregation = GroupAggregation::kSoftmaxSum;
};

class MassPolicyTest : public testing::TestWithParam<Case> {
 protected:
  MassPolicyTest() {
    shape_.layout.num_query_heads = GetParam().group * shape_.layout.num_kv_heads;
    shape_.model.group_size = GetParam().group;
    spec_.scorer = GetParam().scorer;
    spec_.page_tokens = GetParam().page;
    spec_.group_aggregation = GetParam().aggregation;
    spec_.policy = Policy::kMass;
    spec_.candidate_factor = 2;
    spec_.min_candidate_tokens = 0;
    if (GetParam().dtype == Dtype::kI8) spec_.key_copy = KeyCopy::kInt8;
  }
  std::vector<uint32_t> Select(const test::StoredKeys& stored, uint32_t position, uint32_t budget) {
    std::vector<uint32_t> selected;
    SelectHead(kernels_, shape_.model,
               {.spec = &spec_,
                .position = position,
                .budget_tokens = budget,
                .index = stored.kv.index(0, 1),
                .target = values_.data()},
               scratch_, {&selected, 1});
    return selected;
  }
  void DrawQueries(uint64_t seed) {
    values_.clear();
    queries_.assign(GetParam().group, {});
    for (Vector& q : queries_) {
      for (int d = 0; d < shape_.layout.head_dim; ++d) {
        values_.push_back(static_cast<float>(1 + seed % 3) * test::Noise(seed, values_.size()));
        q.push_back(values_.back());
      }
    }
  }
  double Mass(const test::StoredKeys& stored, uint32_t position, const std::vector<uint32_t>& selected) const {
    const uint32_t end = RecentStart(position, spec_.recent_tokens, kSinks, kBlockTokens);
    return test::MassReference(queries_, stored.Keys(1, position), 1, kSinks, selected, end);
  }

  ServedShape shape_ = test::SmallShape(1);
  const KernelTable& kernels_ = *CpuKernels("portable").value();
  SelectionSpec spec_ = test::SmallSpec(Predictor::kExact);
  SelectScratch scratch_;
  std::vector<float> values_;
  std::vector<Vector> queries_;
};

TEST_P(MassPolicyTest, NeverMissesMoreThanEpsilonUnderTheTrueBound) {
  spec_.stop_rule = StopRule::kBound;
  // With int8 keys the bound holds for scores that err by the steps of query and key.
  const double slack = GetParam().dtype == Dtype::kI8 ? 0.05 : 1e-4;
  int stopped = 0;
  for (const Spread spread : {&Adversarial, &Spiky, &Plain}) {
    const test::StoredKeys stored(shape_, 3, 1100, 50, IndexLayoutFor(spec_), spread);
    for (uint64_t seed = 0; seed < 24; ++seed) {
      DrawQueries(seed);
      spec_.epsilon = seed % 2 == 0 ? 0.05f : 0.3f;
      const uint32_t position = 300 + static_cast<uint32_t>(seed * 33), budget = seed % 3 == 0 ? 100 : 5000;
      const std::vector<uint32_t> selected = Select(stored, position, budget);
      const uint32_t end = RecentStart(position, spec_.recent_tokens, kSinks, kBlockTokens);
      ASSERT_LE(selected.size(), budget);
      for (size_t i = 0; i < selected.size(); ++i) {
        ASSERT_GE(selected[i], i == 0 ? kSinks : selected[i - 1] + 1);
        ASSERT_LT(selected[i], end);
      }
      if (selected.size() == std::min(budget, end - kSinks)) continue;
      ++stopped;
      EXPECT_GE(Mass(stored, position, selected), 1 - spec_.epsilon - slack) << seed;
    }
  }
  EXPECT_GT(stopped, 0) << "the cases must let it stop";
}

TEST_P(MassPolicyTest, TakesMoreUnderTheBoundThanUnderTheEstimate) {
  const test::StoredKeys stored(shape_, 4, 1100, 50, IndexLayoutFor(spec_), Spiky);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    DrawQueries(seed);
    spec_.stop_rule = StopRule::kEstimate;
    const std::vector<uint32_t> estimate = Select(stored, 1000, 5000);
    spec_.stop_rule = StopRule::kBound;
    const std::vector<uint32_t> bound = Select(stored, 1000, 5000);
    if (GetParam().scorer == Scorer::kToken) {
      EXPECT_EQ(estimate, bound) << "every key is known";
    } else {
      // Both read pages in the same order, so one is the other's beginning.
      const auto& fewer = estimate.size() < bound.size() ? estimate : bound;
      const auto& more = estimate.size() < bound.size() ? bound : estimate;
      EXPECT_TRUE(std::includes(more.begin(), more.end(), fewer.begin(), fewer.end()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scorers, MassPolicyTest,
                         testing::Values(Case{Scorer::kToken, 16, 1}, Case{Scorer::kToken, 16, 5},
                                         Case{Scorer::kPageMinmax, 16, 4}, Case{Scorer::kPageMinmax, 64, 1},
                                         Case{Scorer::kPageCuboid, 32, 4},
                                         Case{Scorer::kPageCuboid, 32, 5, Dtype::kF32, GroupAggregation::kMax},
                                         Case{Scorer::kHierarchical, 16, 5}, Case{Scorer::kTwoStage, 16, 4},
                                         Case{Scorer::kPageMinmax, 16, 4, Dtype::kI8},
                                         Case{Scorer::kToken, 16, 4, Dtype::kI8}));

class TokenMassTest : public MassPolicyTest {};

TEST_P(TokenMassTest, TakesTheFewestTokensThatReachTheTarget) {
  const test::StoredKeys stored(shape_, 5, 700, 50, {}, Plain);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    DrawQueries(seed);
    spec_.epsilon = 0.02f * static_cast<float>(1 + seed);
    const uint32_t position = 400 + static_cast<uint32_t>(seed) * 20;
    const std::vector<uint32_t> selected = Select(stored, position, 5000);
    EXPECT_GE(Mass(stored, position, selected), 1 - spec_.epsilon - 1e-5);
    if (selected.empty()) continue;
    const Vector importance =
        test::ImportanceReference(GroupAggregation::kSoftmaxSum, queries_, stored.Keys(1, position), 1);
    const auto least = std::min_element(selected.begin(), selected.end(),
                                        [&](uint32_t a, uint32_t b) { return importance[a] < importance[b]; });
    std::vector<uint32_t> without = selected;
    without.erase(without.begin() + (least - selected.begin()));
    EXPECT_LT(Mass(stored, position, without), 1 - spec_.epsilon + 1e-5);
    const uint32_t end = RecentStart(position, spec_.recent_tokens, kSinks, kBlockTokens);
    EXPECT_EQ(test::CheckTopK(importance, selected, kSinks, end, static_cast<uint32_t>(selected.size()), 1e-5), "");
  }
}
INSTANTIATE_TEST_SUITE_P(Groups, TokenMassTest,
                         testing::Values(Case{Scorer::kToken, 16, 1}, Case{Scorer::kToken, 16, 5}));

// Algorithm 1 step by step, in double, over pages in a given order.
TEST(PageMass, FollowsAlgorithmOne) {
  ServedShape shape = test::SmallShape(1);
  const KernelTable& kernels = *CpuKernels("portable").value();
  const test::StoredKeys stored(shape, 11, 700, 50, {.page_tokens = 32});
  const int dim = shape.layout.head_dim;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const uint32_t position = 420 + static_cast<uint32_t>(seed) * 7;
    const uint32_t end = RecentStart(position, 32, kSinks, kBlockTokens);
    const uint32_t budget = seed % 4 == 0 ? 70 : 5000;
    const double epsilon = 0.1 + 0.05 * static_cast<double>(seed % 3);
    std::vector<float> values;
    std::vector<Vector> queries(2);
    for (int i = 0; i < 2 * dim; ++i) {
      values.push_back(1.5f * test::Noise(seed, i, 3));
      queries[i / dim].push_back(values.back());
    }
    std::vector<float> importance;
    for (uint32_t u = 0; u * 32 < end; ++u) importance.push_back(test::Noise(seed, u, 99));
    const PageUnits units{importance.data(), 32, kSinks, end};
    PageMassScratch scratch;
    std::vector<uint32_t> selected{9};
    SelectMassOfPages(kernels,
                      {.keys = {stored.kv.tiles(0, 0), 0, dim, Dtype::kF32},
                       .queries = values.data(),
                       .num_queries = 2,
                       .form = {.scale = 1},
                       .units = units,
                       .fixed = {kSinks, end, 32, position},
                       .bounds = {},
                       .budget = budget,
                       .epsilon = static_cast<float>(epsilon)},
                      scratch, &selected);

    const std::vector<Vector> keys = stored.Keys(0, position);
    const auto mass = [&](int i, uint32_t first, uint32_t last) {
      double sum = 0;
      for (uint32_t r = first; r < last; ++r) {
        double score = 0;
        for (int d = 0; d < dim; ++d) score += queries[i][d] * keys[r][d];
        sum += std::exp(score);
      }
      return sum;
    };
    std::vector<uint32_t> order(importance.size()), expected;
    for (uint32_t u = 0; u < order.size(); ++u) order[u] = u;
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return importance[a] > importance[b]; });
    double held[2], least[2] = {INFINITY, INFINITY};
    for (int i = 0; i < 2; ++i) held[i] = mass(i, 0, kSinks) + mass(i, end, position);
    for (size_t read = 0; read < order.size(); ++read) {
      const uint32_t first = std::max(order[read] * 32, kSinks), last = std::min((order[read] + 1) * 32, end);
      for (uint32_t r = first; r < last && expected.size() < budget; ++r) expected.push_back(r);
      double share = 0;
      for (int i = 0; i < 2; ++i) {
        const double page = mass(i, first, last);
        held[i] += page;
        least[i] = std::min(least[i], page);
        share += held[i] / (held[i] + least[i] * static_cast<double>(order.size() - 1 - read)) / 2;
      }
      if (share >= 1 - epsilon || expected.size() == budget) break;
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(selected, expected) << seed;
  }
}

// What the presets say of themselves, over the 16k rows of one head at a budget of 256.
class PresetReadsTest : public testing::Test {
 protected:
  uint64_t Read(const SelectionSpec& spec, std::vector<uint32_t>* selected) {
    const test::StoredKeys stored(shape_, 2, kRows, 512, IndexLayoutFor(spec));
    std::vector<float> query;
    for (int i = 0; i < 2 * shape_.layout.head_dim; ++i) query.push_back(test::Noise(1, i));
    SelectScratch scratch;
    SelectHead(kernels_, shape_.model,
               {.spec = &spec,
                .position = kRows,
                .budget_tokens = 256,
                .index = stored.kv.index(0, 0),
                .target = query.data()},
               scratch, {selected, 1});
    return scratch.scored_key_bytes;
  }
  static constexpr uint32_t kRows = 16384;
  const ServedShape shape_ = test::SmallShape(1);
  const KernelTable& kernels_ = *CpuKernels("portable").value();
  const uint64_t all_bytes_ = uint64_t{kRows} * shape_.layout.head_dim * sizeof(float);
};

TEST_F(PresetReadsTest, TwoStageReadsAtMostAQuarterOfTheKeys) {
  std::vector<uint32_t> selected;
  SelectionSpec spec = FindPreset("depth").value();
  spec.scorer = Scorer::kTwoStage;
  spec.min_candidate_tokens = 0;
  const uint64_t two_stage = Read(spec, &selected);
  EXPECT_GT(two_stage, 0u);
  EXPECT_LE(two_stage, all_bytes_ / 4);
  EXPECT_EQ(selected.size(), 256u);
  spec.min_candidate_tokens = FindPreset("depth")->min_candidate_tokens;
  const uint64_t half = Read(spec, &selected);
  EXPECT_GT(half, all_bytes_ / 2) << "8,192 candidates, however small the budget, and bounds";
  EXPECT_LE(half, all_bytes_ * 5 / 8 + all_bytes_ / 64);
  spec.scorer = Scorer::kToken;
  EXPECT_EQ(Read(spec, &selected), all_bytes_);
  spec.key_copy = KeyCopy::kInt8;
  EXPECT_EQ(Read(spec, &selected), all_bytes_ / 4) << "a quarter of f32, half of bf16";
  spec.key_copy = KeyCopy::kInt4;
  EXPECT_EQ(Read(spec, &selected), all_bytes_ / 8);
}

TEST_F(PresetReadsTest, QuestReadsBoundsOnlyAndPicksPages) {
  std::vector<uint32_t> selected;
  EXPECT_EQ(Read(FindPreset("quest").value(), &selected), all_bytes_ / 8);
  ASSERT_EQ(selected.size(), 256u);
  int partial = 0;
  for (uint32_t page = 0; page < kRows / 16; ++page) {
    const auto first = std::lower_bound(selected.begin(), selected.end(), page * 16);
    const auto count = std::lower_bound(first, selected.end(), page * 16 + 16) - first;
    partial += count % 16 != 0;
  }
  EXPECT_LE(partial, 2) << "the page of the sinks, and the one that meets the budget";
}

}  // namespace
}  // namespace winnow
