#include <algorithm>

#include "tests/kernels/key_scores.h"

namespace winnow {
namespace {

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
      kernels().index_keys({.rows = rows.data(),
                            .num_rows = count,
                            .first_row = first,
                            .head_dim = head_dim,
                            .dtype = dtype,
                            .tile = tile.data(),
                            .tile_dtype = Dtype::kI8});
      for (int r = 0; r < count; ++r) {
        const float* key = &rows.values[r * 2 * head_dim];
        float max = 0;
        for (int d = 0; d < head_dim; ++d) max = std::max(max, std::fabs(key[d]));
        const float scale = ScaleOf(tile.data(), head_dim, first + r);
        ASSERT_NEAR(scale, max / 127.0, max * kF32Epsilon);
        for (int d = 0; d < (head_dim + 3) / 4 * 4; ++d) {
          const int8_t value = *ValueOf(tile.data(), first + r, d);
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

}  // namespace
}  // namespace winnow
