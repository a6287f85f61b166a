#include "kernels/cpu/avx512/avx512.h"
#include "tests/kernels/key_scores.h"

// What scores of int8 and int4 keys have in common.

namespace winnow {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class QuantizedScoresTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(QuantizedScoresTest);

struct Quantized {
  Dtype dtype;
  int largest;  // value of a key
  void (*without_vnni)(const KeyScoreParams&);
};
const Quantized kQuantized[] = {{Dtype::kI8, 127, avx512::KeyScoreInt8}, {Dtype::kI4, 7, avx512::KeyScoreInt4}};

// The integer part is exact: of small integers with the largest value that there is, nothing is rounded at all.
TEST_P(QuantizedScoresTest, IntegersAreScoredExactly) {
  std::mt19937 random(3);
  constexpr int kKeys = 70, kHeadDim = 128;
  const auto integers = [&](size_t vectors, size_t stride, int largest) {
    std::vector<float> values(vectors * stride);
    for (float& v : values)
      v = static_cast<float>(static_cast<int>(random() % (2 * static_cast<unsigned>(largest) + 1)) - largest);
    for (size_t i = 0; i < values.size(); i += stride) {
      values[i] = static_cast<float>(i / stride % 2 == 0 ? largest : -largest);
    }
    return values;
  };
  for (const Quantized& quantized : kQuantized) {
    SCOPED_TRACE(DtypeName(quantized.dtype));
    const TypedArray rows = Typed(integers(kKeys, 2 * kHeadDim, quantized.largest), Dtype::kF32);
    const std::vector<float> queries = integers(3, kHeadDim, 127);
    const KeyTiles keys(kernels(), rows, kKeys, kHeadDim, quantized.dtype);
    const std::vector<float> scores = ScoresOf(kernels().key_score, keys, kKeys, kHeadDim, queries, 1);
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < kKeys; ++j) {
        double dot = 0;
        for (int d = 0; d < kHeadDim; ++d) dot += double{queries[i * kHeadDim + d]} * rows.values[j * 2 * kHeadDim + d];
        ASSERT_EQ(scores[i * kKeys + j], dot);
      }
    }
  }
}

TEST_P(QuantizedScoresTest, WhatIsNotFiniteStaysAlone) {
  constexpr int kKeys = 40, kHeadDim = 16;
  std::mt19937 random(4);
  std::vector<float> values = RandomFloats(random, kKeys * 2 * kHeadDim);
  const auto key = [&](int j) { return &values[j * 2 * kHeadDim]; };
  key(3)[5] = kPoison;
  key(7)[0] = kInfinity;
  key(8)[15] = -kInfinity;
  std::fill_n(key(9), kHeadDim, 0.0f);
  std::fill_n(key(10), kHeadDim, 0x1p-101f);
  key(11)[0] = std::numeric_limits<float>::max();
  key(12)[kHeadDim] = kPoison;  // a V half
  std::vector<float> queries = RandomFloats(random, 5 * kHeadDim);
  std::fill_n(&queries[kHeadDim], kHeadDim, 0.0f);
  queries[2 * kHeadDim + 1] = kPoison;
  queries[3 * kHeadDim + 1] = kInfinity;
  for (const Quantized& quantized : kQuantized) {
    SCOPED_TRACE(DtypeName(quantized.dtype));
    const KeyTiles keys(kernels(), Typed(values, Dtype::kF32), kKeys, kHeadDim, quantized.dtype);
    const std::vector<float> scores = ScoresOf(kernels().key_score, keys, kKeys, kHeadDim, queries, 0.5f);
    for (int j = 0; j < kKeys; ++j) {
      const bool zero = j == 3 || (j >= 7 && j <= 10);
      for (int i : {0, 4}) {
        EXPECT_TRUE(std::isfinite(scores[i * kKeys + j]));
        EXPECT_EQ(scores[i * kKeys + j] == 0, zero) << j;
      }
      EXPECT_EQ(scores[kKeys + j], 0);
      EXPECT_TRUE(std::isnan(scores[2 * kKeys + j]) && std::isnan(scores[3 * kKeys + j]));
    }
  }
}

// Machines with VNNI never get there through the table.
TEST(QuantizedScores, Avx512WithoutVnniGivesTheSameBits) {
  if (!CpuKernels("avx512").ok()) GTEST_SKIP() << "no AVX-512";
  const KernelTable& portable = **CpuKernels("portable");
  std::mt19937 random(5);
  for (const Quantized& quantized : kQuantized) {
    SCOPED_TRACE(DtypeName(quantized.dtype));
    for (const ScoreShape& s : ScoreShapes()) {
      const TypedArray rows =
          Typed(RandomFloats(random, static_cast<size_t>(s.keys) * 2 * s.head_dim, 2), Dtype::kBf16);
      const std::vector<float> queries = RandomFloats(random, s.queries * s.head_dim);
      const KeyTiles keys(portable, rows, s.keys, s.head_dim, quantized.dtype);
      EXPECT_TRUE(SameBits(ScoresOf(quantized.without_vnni, keys, s.keys, s.head_dim, queries, 0.25f),
                           ScoresOf(portable.key_score, keys, s.keys, s.head_dim, queries, 0.25f)));
    }
  }
}

}  // namespace
}  // namespace winnow
