#include "cache_rank/select/host/select_head.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/cache_rank/store/stored_keys.h"

namespace winnow {
namespace {

using test::Vector;

// Scores err by head_dim roundings of f32 products below 4 and the exp of kernels by some 1e-6 relative: far below
// this.
constexpr double kTolerance = 1e-4;

struct Queries {
  std::vector<float> values;    // [2, dim]
  std::vector<Vector> vectors;  // the same
};
Queries RandomQueries(uint64_t seed, int group, int dim) {
  Queries queries;
  for (int g = 0; g < group; ++g) {
    Vector q;
    for (int d = 0; d < dim; ++d) {
      queries.values.push_back(3 * test::Noise(seed, g, d));
      q.push_back(queries.values.back());
    }
    queries.vectors.push_back(q);
  }
  return queries;
}

class SelectHeadTest : public testing::Test {
 protected:
  const ServedShape shape_ = test::SmallShape(1);
  const KernelTable& kernels_ = *CpuKernels("portable").value();
  SelectScratch scratch_;
};

class SelectHeadAggregationTest : public SelectHeadTest, public testing::WithParamInterface<GroupAggregation> {};

TEST_P(SelectHeadAggregationTest, TakesTheMostImportantRowsBetweenSinksAndRecentWindow) {
  SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  spec.group_aggregation = GetParam();
  const test::StoredKeys stored(shape_, 5, 1100);
  for (const uint32_t position : {150u, 191u, 192u, 333u, 1024u, 1099u}) {
    for (int head = 0; head < 2; ++head) {
      const Queries q = RandomQueries(position + head, 2, shape_.layout.head_dim);
      std::vector<uint32_t> selected{1, 2, 3};  // of an earlier use
      const float mass = SelectHead(kernels_, shape_.model,
                                    {.spec = &spec,
                                     .position = position,
                                     .budget_tokens = 48,
                                     .index = stored.kv.index(0, head),
                                     .target = q.values.data()},
                                    scratch_, {&selected, 1})
                             .mass;
      EXPECT_TRUE(std::isnan(mass));
      const Vector importance =
          test::ImportanceReference(GetParam(), q.vectors, stored.Keys(head, position), shape_.model.attention_scale);
      const uint32_t end = RecentStart(position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
      EXPECT_EQ(test::CheckTopK(importance, selected, 4, end, 48, kTolerance), "") << position;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Aggregations, SelectHeadAggregationTest,
                         testing::Values(GroupAggregation::kSoftmaxSum, GroupAggregation::kMax,
                                         GroupAggregation::kMean));

TEST_F(SelectHeadTest, MeasuresThePositionBeforeWithoutChangingTheSelection) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kDepth);
  const test::StoredKeys stored(shape_, 6, 400);
  const uint32_t position = 320;
  const Queries prediction = RandomQueries(1, 2, shape_.layout.head_dim),
                real = RandomQueries(2, 2, shape_.layout.head_dim);
  std::vector<uint32_t> previous;
  for (uint32_t p = 20; p < 20 + 48; ++p) previous.push_back(p);
  std::vector<uint32_t> selected = previous;
  HeadQuestion question{.spec = &spec,
                        .position = position,
                        .budget_tokens = 48,
                        .index = stored.kv.index(0, 1),
                        .target = prediction.values.data(),
                        .measured = real.values.data(),
                        .measured_position = position - 1};
  const float mass = SelectHead(kernels_, shape_.model, question, scratch_, {&selected, 1}).mass;
  const uint32_t recent = RecentStart(position - 1, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
  const double expected = test::MassReference(real.vectors, stored.Keys(1, position), 1, 4, previous, recent);
  EXPECT_NEAR(mass, expected, kTolerance);
  EXPECT_LT(expected, 0.9) << "the case must not be trivial";

  question.measured = nullptr;
  std::vector<uint32_t> alone;
  SelectHead(kernels_, shape_.model, question, scratch_, {&alone, 1});
  EXPECT_EQ(selected, alone);
}

// Where a model caps its scores, heads of a group whose softmaxes are sharp count for less, and so does what is missed.
TEST_F(SelectHeadTest, ChoosesAndMeasuresByCappedScores) {
  constexpr float kCap = 1.5f;
  SelectionModel model = shape_.model;
  model.attention_softcap = kCap;
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const test::StoredKeys stored(shape_, 8, 500);
  const uint32_t position = 450;
  const Queries q = RandomQueries(4, 2, shape_.layout.head_dim);
  std::vector<uint32_t> selected;
  const float mass = SelectHead(kernels_, model,
                                {.spec = &spec,
                                 .position = position,
                                 .budget_tokens = 48,
                                 .index = stored.kv.index(0, 1),
                                 .target = q.values.data(),
                                 .measured = q.values.data(),
                                 .measured_position = position},
                                scratch_, {&selected, 1})
                         .mass;
  const uint32_t recent = RecentStart(position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
  const Vector importance =
      test::ImportanceReference(GroupAggregation::kSoftmaxSum, q.vectors, stored.Keys(1, position), 1, kCap);
  EXPECT_EQ(test::CheckTopK(importance, selected, 4, recent, 48, kTolerance), "");
  const std::vector<Vector> keys = stored.Keys(1, position + 1);
  EXPECT_NEAR(mass, test::MassReference(q.vectors, keys, 1, 4, selected, recent, kCap), kTolerance);
  EXPECT_GT(test::MassReference(q.vectors, keys, 1, 4, selected, recent), mass + 0.1) << "the cap must matter";
}

TEST_F(SelectHeadTest, MeasuresItselfOverItsOwnRowToo) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const test::StoredKeys stored(shape_, 7, 400);
  const uint32_t position = 321;
  const Queries q = RandomQueries(3, 2, shape_.layout.head_dim);
  std::vector<uint32_t> selected, alone;
  HeadQuestion question{.spec = &spec,
                        .position = position,
                        .budget_tokens = 48,
                        .index = stored.kv.index(0, 0),
                        .target = q.values.data()};
  SelectHead(kernels_, shape_.model, question, scratch_, {&alone, 1});
  question.measured = q.values.data();
  question.measured_position = position;
  const float mass = SelectHead(kernels_, shape_.model, question, scratch_, {&selected, 1}).mass;
  const uint32_t recent = RecentStart(position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
  EXPECT_NEAR(mass, test::MassReference(q.vectors, stored.Keys(0, position + 1), 1, 4, selected, recent), kTolerance);
  EXPECT_EQ(selected, alone) << "the position's own row has no say in its selection";
}

TEST_F(SelectHeadTest, StaysDefinedWhenQueriesAreNotFinite) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const test::StoredKeys stored(shape_, 8, 300);
  std::vector<float> q(2 * shape_.layout.head_dim, NAN);
  std::vector<uint32_t> selected;
  SelectHead(kernels_, shape_.model,
             {.spec = &spec, .position = 300, .budget_tokens = 48, .index = stored.kv.index(0, 0), .target = q.data()},
             scratch_, {&selected, 1});
  std::vector<uint32_t> lowest;
  for (uint32_t p = 4; p < 4 + 48; ++p) lowest.push_back(p);
  EXPECT_EQ(selected, lowest);
}

}  // namespace
}  // namespace winnow
