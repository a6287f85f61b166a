#include "tools/bench/gpu/checks/selection_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cache_rank/select/host/select_head.h"
#include "tests/cache_rank/reference.h"
#include "tests/cache_rank/store/stored_keys.h"

namespace winnow {
namespace {

constexpr uint32_t kPosition = 400, kBudget = 48;
constexpr int kGroup = 3, kDim = 16;

class SelectionReferenceTest : public testing::Test {
 protected:
  SelectionReferenceTest() {
    spec_ = test::SmallSpec(Predictor::kExact);
    for (int i = 0; i < kGroup * kDim; ++i) queries_.push_back(3 * test::Noise(1, i));
    for (uint32_t p = 0; p < kPosition; ++p) {
      reference_.keys.emplace_back();
      for (int d = 0; d < kDim; ++d) reference_.keys.back().push_back(2 * test::Noise(2, p, d));
    }
    reference_.spec = &spec_;
    reference_.position = kPosition;
    reference_.budget = kBudget;
    reference_.queries = queries_.data();
    reference_.group = kGroup;
    reference_.head_dim = kDim;
    reference_.scale = 0.25;
    reference_.query_rounding = 0x1p-12;
  }
  uint32_t last() const { return RecentStart(kPosition, spec_.recent_tokens, spec_.sink_tokens, kBlockTokens); }
  // Selectable rows, the most important first.
  std::vector<uint32_t> Order() const {
    std::vector<test::Vector> queries(kGroup), keys;
    for (int g = 0; g < kGroup; ++g) queries[g].assign(queries_.begin() + g * kDim, queries_.begin() + (g + 1) * kDim);
    for (const std::vector<float>& key : reference_.keys) keys.emplace_back(key.begin(), key.end());
    const test::Vector importance = test::ImportanceReference(spec_.group_aggregation, queries, keys, 0.25);
    std::vector<uint32_t> order(last() - spec_.sink_tokens);
    std::iota(order.begin(), order.end(), spec_.sink_tokens);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return importance[a] > importance[b]; });
    return order;
  }
  std::string CheckFirst(size_t count, std::vector<uint32_t> order) const {
    order.resize(count);
    std::sort(order.begin(), order.end());
    return reference_.Check(order);
  }

  SelectionSpec spec_;
  std::vector<float> queries_;
  SelectionReference reference_;
};

TEST_F(SelectionReferenceTest, TakesTheMostImportantRows) {
  EXPECT_EQ(CheckFirst(kBudget, Order()), "");
}

TEST_F(SelectionReferenceTest, MissesAnImportantRow) {
  std::vector<uint32_t> order = Order();
  std::swap(order[0], order[2 * kBudget]);
  EXPECT_NE(CheckFirst(kBudget, order), "");
}

TEST_F(SelectionReferenceTest, LetsRoundingDecideBetweenEqualRows) {
  std::vector<uint32_t> order = Order();
  reference_.keys[order[kBudget]] = reference_.keys[order[kBudget - 1]];
  std::swap(order[kBudget - 1], order[kBudget]);
  EXPECT_EQ(CheckFirst(kBudget, order), "");
}

TEST_F(SelectionReferenceTest, WantsAsManyRowsAsTheBudget) {
  EXPECT_NE(CheckFirst(kBudget - 1, Order()), "");
  EXPECT_NE(CheckFirst(kBudget + 1, Order()), "");
}

TEST_F(SelectionReferenceTest, WantsTheFewestRowsThatHoldTheMass) {
  spec_.policy = Policy::kMass;
  spec_.epsilon = 0.3f;
  reference_.budget = 300;
  size_t good = 0, count = 0;
  for (; count <= 300; ++count) {
    if (CheckFirst(count, Order()).empty()) ++good;
  }
  EXPECT_GE(good, 1u);
  EXPECT_LE(good, 3u) << "within what roundings of the mass can change";
}

TEST_F(SelectionReferenceTest, RowsOfPagesThatAreNoCandidatesAreWrong) {
  spec_.scorer = Scorer::kTwoStage;
  spec_.candidate_factor = 1;
  spec_.min_candidate_tokens = 0;
  reference_.budget = 16;
  EXPECT_NE(CheckFirst(16, Order()), "") << "the best rows lie in many pages";
}

// What SelectHead selects is right by the reference, whether or not the newest rows fill a group of keys.
class SelectHeadReferenceTest
    : public testing::TestWithParam<std::tuple<std::pair<Scorer, Policy>, uint64_t, uint32_t>> {};

TEST_P(SelectHeadReferenceTest, TheCpuBackendsSelectionIsRight) {
  const auto& [choice, seed, position] = GetParam();
  SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  spec.scorer = choice.first;
  spec.policy = choice.second;
  spec.epsilon = 0.2f;
  spec.page_tokens = 16;
  spec.candidate_factor = 3;
  spec.min_candidate_tokens = 0;
  const ServedShape shape = test::SmallShape(1);
  const int group = shape.layout.group_size(), dim = shape.layout.head_dim;
  const test::StoredKeys stored(shape, seed, position, 7, IndexLayoutFor(spec));
  std::vector<float> queries;
  for (int i = 0; i < group * dim; ++i) queries.push_back(4 * test::Noise(seed + 100, i));
  SelectScratch scratch;
  std::vector<std::vector<uint32_t>> lists(1);
  SelectHead(*CpuKernels().value(), shape.model,
             {.spec = &spec,
              .position = position,
              .budget_tokens = kBudget,
              .index = stored.kv.index(0, 0),
              .first_query_head = 0,
              .target = queries.data()},
             scratch, lists);
  SelectionReference reference{.spec = &spec,
                               .position = position,
                               .budget = kBudget,
                               .queries = queries.data(),
                               .group = group,
                               .head_dim = dim,
                               .scale = shape.model.attention_scale,
                               .query_rounding = 0x1p-20};
  for (const test::Vector& key : stored.Keys(0, position)) reference.keys.emplace_back(key.begin(), key.end());
  EXPECT_EQ(reference.Check(lists[0]), "");
}

INSTANTIATE_TEST_SUITE_P(, SelectHeadReferenceTest,
                         testing::Combine(testing::Values(std::pair{Scorer::kToken, Policy::kTopK},
                                                          std::pair{Scorer::kToken, Policy::kMass},
                                                          std::pair{Scorer::kPageMinmax, Policy::kTopK},
                                                          std::pair{Scorer::kTwoStage, Policy::kTopK},
                                                          std::pair{Scorer::kTwoStage, Policy::kMass}),
                                          testing::Values(5, 8), testing::Values(kPosition, kPosition + 11)));

}  // namespace
}  // namespace winnow
