#include <algorithm>

#include "kernels/cpu/avx512/avx512.h"
#include "tests/kernels/key_scores.h"

namespace winnow {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Int8ScoresTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(Int8ScoresTest);

const int8_t* ValueOf(const void* tile, int key, int d) {
  return static_cast<const int8_t*>(tile) + (d / 4 * kBlockTokens + key) * 4 + d % 4;
}
float ScaleOf(const void* tile, int head_dim, int key) {
  float scale;
  std::memcpy(&scale, static_cast<const char*>(tile) + (head_dim + 3) / 4 * 4 * kBlockTokens + key * 4, 4);
  return scale;
}

TEST(IndexTiles, Bytes) {
  EXPECT_EQ(IndexTileBytes(64, Dtype::kF32), 8192u);
  EXPECT_EQ(IndexTileBytes(64, Dtype::kBf16), 4096u);
  EXPECT_EQ(IndexTileBytes(64, Dtype::kI8), 2048u + 128);
  EXPECT_EQ(IndexTileBytes(30, Dtype::kI8), 1024u + 128);
}

TEST_P(Int8ScoresTest, KeysAreWithinHalfAStep) {
  std::mt19937 random(1);
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (int head_dim : {2, 6, 16, 30, 64, 96, 128, 512}) {
      const int first = 5, count = 9;
      TypedArray rows = Typed(RandomFloats(random, count * 2 * head_dim, 3), dtype);
      std::vector<uint8_t> tile(IndexTileBytes(head_dim, Dtype::kI8) + 64, 0x5a);
      kernels().index_keys({rows.data(), count, first, head_dim, dtype, tile.data(), Dtype::kI8});
      for (int r = 0; r < count; ++r) {
        const float* key = &rows.values[r * 2 * head_dim];
        float max = 0;
        for (int d = 0; d < head_dim; ++d) max = std::max(max, std::fabs(key[d]));
        const float scale = ScaleOf(tile.data(), head_dim, first + r);
        ASSERT_NEAR(scale, max / 127.0, max * kF32Epsilon);
        for (int d = 0; d < (head_dim + 3) / 4 * 4; ++d) {
          const int value = *ValueOf(tile.data(), first + r, d);
          ASSERT_LE(std::abs(value), 127);
          // 127 elements of a step, to three roundings.
          ASSERT_NEAR(value, d < head_dim ? double{key[d]} / scale : 0, 0.5 + 127 * 4 * kF32Epsilon);
        }
      }
      for (int r = 0; r < kBlockTokens; ++r) {
        if (r >= first && r < first + count) continue;
        uint32_t scale_bits;
        const float scale = ScaleOf(tile.data(), head_dim, r);
        std::memcpy(&scale_bits, &scale, 4);
        ASSERT_EQ(scale_bits, 0x5a5a5a5au) << "a key outside the rows";
        for (int d = 0; d < head_dim; ++d) ASSERT_EQ(*ValueOf(tile.data(), r, d), 0x5a);
      }
      ASSERT_EQ(std::count(tile.end() - 64, tile.end(), 0x5a), 64);
    }
  }
}

TEST_P(Int8ScoresTest, ScoresKeepToTheBoundAndAreTheSameEverywhere) {
  std::mt19937 random(2);
  const KernelTable& portable = **CpuKernels("portable");
  for (const ScoreShape& s : ScoreShapes()) {
    const TypedArray rows = Typed(RandomFloats(random, static_cast<size_t>(s.keys) * 2 * s.head_dim, 2), Dtype::kBf16);
    std::vector<float> queries = RandomFloats(random, s.queries * s.head_dim);
    queries[0] = 40;  // one element far above the others: coarse steps
    const KeyTiles keys(kernels(), rows, s.keys, s.head_dim, Dtype::kI8);
    const std::vector<float> scores = ScoresOf(kernels().key_score, keys, s.keys, s.head_dim, queries, 0.25f);
    EXPECT_TRUE(SameBits(scores, ScoresOf(portable.key_score, keys, s.keys, s.head_dim, queries, 0.25f)));
    for (int i = 0; i < s.queries; ++i) {
      for (int j = 0; j < s.keys; ++j) {
        const float* q = &queries[i * s.head_dim];
        const float* k = &rows.values[static_cast<size_t>(j) * 2 * s.head_dim];
        double exact = 0, q_max = 0, k_max = 0, q_sum = 0, k_sum = 0;
        for (int d = 0; d < s.head_dim; ++d) {
          exact += 0.25 * q[d] * k[d];
          q_max = std::max(q_max, std::fabs(double{q[d]}));
          k_max = std::max(k_max, std::fabs(double{k[d]}));
          q_sum += std::fabs(q[d]);
          k_sum += std::fabs(k[d]);
        }
        const double qs = q_max / 127, ks = k_max / 127;
        const double bound = 0.25 / 2 * (1 + 0x1p-12) * (ks * q_sum + qs * k_sum + s.head_dim * qs * ks / 2);
        ASSERT_NEAR(scores[i * s.keys + j], exact, bound) << s.keys << " keys, head_dim " << s.head_dim;
      }
    }
  }
}

// The integer part is exact: of small integers with a largest of 127, nothing is rounded at all.
TEST_P(Int8ScoresTest, IntegersAreScoredExactly) {
  std::mt19937 random(3);
  constexpr int kKeys = 70, kHeadDim = 128;
  const auto integers = [&](size_t vectors, size_t stride) {
    std::vector<float> values(vectors * stride);
    for (float& v : values) v = static_cast<float>(static_cast<int>(random() % 255) - 127);
    for (size_t i = 0; i < values.size(); i += stride) values[i] = i / stride % 2 == 0 ? 127 : -127;
    return values;
  };
  const TypedArray rows = Typed(integers(kKeys, 2 * kHeadDim), Dtype::kF32);
  const std::vector<float> queries = integers(3, kHeadDim);
  const KeyTiles keys(kernels(), rows, kKeys, kHeadDim, Dtype::kI8);
  const std::vector<float> scores = ScoresOf(kernels().key_score, keys, kKeys, kHeadDim, queries, 1);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < kKeys; ++j) {
      double dot = 0;
      for (int d = 0; d < kHeadDim; ++d) dot += double{queries[i * kHeadDim + d]} * rows.values[j * 2 * kHeadDim + d];
      ASSERT_EQ(scores[i * kKeys + j], dot);
    }
  }
}

TEST_P(Int8ScoresTest, WhatIsNotFiniteStaysAlone) {
  constexpr int kKeys = 40, kHeadDim = 16;
  std::mt19937 random(4);
  TypedArray rows = Typed(RandomFloats(random, kKeys * 2 * kHeadDim), Dtype::kF32);
  std::vector<float> values = rows.values;
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
  const KeyTiles keys(kernels(), Typed(values, Dtype::kF32), kKeys, kHeadDim, Dtype::kI8);
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

// Machines with VNNI never get there through the table.
TEST(Int8Scores, Avx512WithoutVnniGivesTheSameBits) {
  if (!CpuKernels("avx512").ok()) GTEST_SKIP() << "no AVX-512";
  const KernelTable& portable = **CpuKernels("portable");
  std::mt19937 random(5);
  for (const ScoreShape& s : ScoreShapes()) {
    const TypedArray rows = Typed(RandomFloats(random, static_cast<size_t>(s.keys) * 2 * s.head_dim, 2), Dtype::kBf16);
    const std::vector<float> queries = RandomFloats(random, s.queries * s.head_dim);
    const KeyTiles keys(portable, rows, s.keys, s.head_dim, Dtype::kI8);
    EXPECT_TRUE(SameBits(ScoresOf(avx512::KeyScoreInt8, keys, s.keys, s.head_dim, queries, 0.25f),
                         ScoresOf(portable.key_score, keys, s.keys, s.head_dim, queries, 0.25f)));
  }
}

}  // namespace
}  // namespace winnow
