#include "cache_rank/select/predictor/regression.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cache_rank/select/predictor/query_ring.h"
#include "tests/cache_rank/reference.h"

namespace winnow {
namespace {

using test::Vector;

// Queries that drift, as those of neighbouring positions do.
std::vector<std::vector<float>> Drift(uint64_t seed, int count, int dim) {
  std::vector<std::vector<float>> queries(count, std::vector<float>(dim));
  for (int i = 0; i < count; ++i) {
    for (int d = 0; d < dim; ++d) queries[i][d] = 2 * test::Noise(seed, d) + 0.5f * test::Noise(seed, i + 1, d);
  }
  return queries;
}

std::vector<float> Predict(TemporalVariant variant, const std::vector<std::vector<float>>& queries) {
  std::vector<const float*> pointers;
  for (const auto& q : queries) pointers.push_back(q.data());
  std::vector<float> prediction(queries[0].size(), NAN);
  PredictNext(variant, pointers, static_cast<int>(prediction.size()), prediction.data());
  return prediction;
}

class RegressionTest : public testing::TestWithParam<TemporalVariant> {};

TEST_P(RegressionTest, EqualsTheNormalEquationsSolvedByElimination) {
  for (int window : {1, 2, 8, 32}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const auto queries = Drift(seed, window + 1, 64);
      const std::vector<float> prediction = Predict(GetParam(), queries);
      std::vector<Vector> reference;
      for (const auto& q : queries) reference.emplace_back(q.begin(), q.end());
      const Vector expected = test::RegressReference(GetParam(), reference);
      // Both solve in f64; the ridge bounds the condition number by w / 1e-3, so 1e-10 of the result, rounded to f32.
      for (size_t d = 0; d < expected.size(); ++d)
        ASSERT_NEAR(prediction[d], expected[d], 4e-7 * (1 + std::abs(expected[d])));
    }
  }
}

TEST_P(RegressionTest, FallsBackToTheNewestQuery) {
  EXPECT_EQ(Predict(GetParam(), {{1, 2, 3, 4}}), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(Predict(GetParam(), {{0, 0}, {0, 0}, {5, 6}}), (std::vector<float>{5, 6}));
  EXPECT_EQ(Predict(GetParam(), {{NAN, 0}, {1, 1}, {5, 6}}), (std::vector<float>{5, 6}));
}

INSTANTIATE_TEST_SUITE_P(Variants, RegressionTest,
                         testing::Values(TemporalVariant::kSoftmax, TemporalVariant::kRidge,
                                         TemporalVariant::kClipped));

TEST(QueryRing, HoldsTheNewestConsecutivePositions) {
  QueryRing ring(4, 1);
  for (uint32_t p = 10; p < 17; ++p) *ring.Push(p).pre = static_cast<float>(p);
  EXPECT_EQ(ring.first(), 13u);
  EXPECT_EQ(ring.end(), 17u);
  for (uint32_t p = 13; p < 17; ++p) EXPECT_EQ(*ring.pre(p), static_cast<float>(p));
  ring.Truncate(15);
  EXPECT_FALSE(ring.Holds(15));
  EXPECT_TRUE(ring.Holds(14));
  *ring.Push(15).pre = 1;
  EXPECT_EQ(ring.first(), 13u);
  ring.Push(40);  // a gap: what came before is of no use
  EXPECT_EQ(ring.first(), 40u);
  EXPECT_EQ(ring.end(), 41u);
}

TEST(FromPast, PredictsBeforeOrAfterRotationFromWhatIsThere) {
  const ServedShape shape = test::SmallShape();
  const int dim = shape.layout.head_dim, heads = shape.layout.num_query_heads;
  const KernelTable& kernels = *CpuKernels("portable").value();
  for (const bool post_rope : {false, true}) {
    for (const uint32_t held : {1u, 4u, 20u}) {
      SelectionSpec spec = test::SmallSpec(Predictor::kTemporal);
      spec.post_rope = post_rope;
      spec.window = 8;
      QueryRing ring(RingQueries(spec), heads * dim);
      const uint32_t position = 200;
      std::vector<Vector> past;  // of head 3
      for (uint32_t p = position - held; p < position; ++p) {
        const QueryRing::Slot slot = ring.Push(p);
        for (int i = 0; i < heads * dim; ++i) slot.pre[i] = test::Noise(9, i) + 0.3f * test::Noise(9, p, i);
        kernels.rotate({.q_pre_rope = slot.pre,
                        .num_rows = 1,
                        .num_heads = heads,
                        .head_dim = dim,
                        .positions = &p,
                        .rope_inv_freq = shape.model.rope.inv_freq.data(),
                        .rope_attention_factor = 1,
                        .q = slot.rotated});
        Vector q(slot.pre + 3 * dim, slot.pre + 4 * dim);
        past.push_back(post_rope ? test::RotateReference(q, p, shape.model.rope) : q);
      }
      std::vector<float> predicted(2 * dim, NAN);
      PredictFromPast(kernels, shape.model.rope, spec, ring, position, 2, 2, dim, predicted.data());

      if (past.size() > 9) past.erase(past.begin(), past.end() - 9);
      Vector expected = test::RegressReference(spec.temporal_variant, past);
      if (!post_rope) expected = test::RotateReference(expected, position, shape.model.rope);
      // Angles up to 200 rad may be rounded to f32: 200 * 2^-24, and as much again in the inputs of a post-RoPE blend.
      for (int d = 0; d < dim; ++d) EXPECT_NEAR(predicted[dim + d], expected[d], 1e-4) << post_rope << " " << held;
    }
  }
}

}  // namespace
}  // namespace winnow
