#include <algorithm>

#include "tests/kernels/key_scores.h"

namespace winnow {
namespace {

class Int4ScoresTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(Int4ScoresTest);

int ValueOf(const void* tile, int key, int d) {
  const int byte = static_cast<const uint8_t*>(tile)[(d / 8 * kBlockTokens + key) * 4 + d % 4];
  return (d % 8 < 4 ? byte % 16 : byte / 16) - 8;
}
float ScaleOf(const void* tile, int head_dim, int key) {
  float scale;
  std::memcpy(&scale, static_cast<const char*>(tile) + (head_dim + 7) / 8 * 4 * kBlockTokens + key * 4, 4);
  return scale;
}

struct Key {
  explicit Key(const float* x, int n) : values(x, x + n) {
    for (double k : values) {
      max = std::max(max, std::fabs(k));
      sum += std::fabs(k);
      square += k * k;
    }
  }
  // The least squared error with values in [-8, 7] that are round(k / step) for a step of largest / divisor, the
  // largest on the side of -8. Rounded in f32, which takes sides where k lies half way between two values.
  double ErrorWith(float divisor) const {
    float largest = 0;
    for (double k : values) largest = std::fabs(k) > std::fabs(largest) ? static_cast<float>(k) : largest;
    double kv = 0, vv = 0;
    for (double k : values) {
      const float sevenths = static_cast<float>(k) * (-7 / largest);
      const double v = std::clamp(std::nearbyint(sevenths * (divisor / 7)), -8.0f, 7.0f);
      kv += k * v;
      vv += v * v;
    }
    return square - kv * kv / vv;
  }

  std::vector<double> values;
  double max = 0, sum = 0, square = 0;
};

TEST(Int4Tiles, Bytes) {
  EXPECT_EQ(IndexTileBytes(64, Dtype::kI4), 1024u + 128);
  EXPECT_EQ(IndexTileBytes(30, Dtype::kI4), 512u + 128);
  EXPECT_EQ(IndexTileBytes(2, Dtype::kI4), 128u + 128);
}

TEST_P(Int4ScoresTest, KeysHaveTheLeastErrorOfThreeSteps) {
  std::mt19937 random(1);
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (int head_dim : {2, 6, 16, 30, 64, 96, 128, 512}) {
      const int first = 5, count = 9;
      TypedArray rows = Typed(RandomFloats(random, count * 2 * head_dim, 3), dtype);
      std::vector<uint8_t> tile(IndexTileBytes(head_dim, Dtype::kI4) + 64, 0x5a);
      kernels().index_keys({.rows = rows.data(),
                            .num_rows = count,
                            .first_row = first,
                            .head_dim = head_dim,
                            .dtype = dtype,
                            .tile = tile.data(),
                            .tile_dtype = Dtype::kI4});
      for (int r = 0; r < count; ++r) {
        const Key key(&rows.values[r * 2 * head_dim], head_dim);
        const double scale = ScaleOf(tile.data(), head_dim, first + r);
        double error = 0;
        for (int d = 0; d < (head_dim + 7) / 8 * 8; ++d) {
          const int value = ValueOf(tile.data(), first + r, d);
          if (d < head_dim) {
            error += std::pow(key.values[d] - scale * value, 2);
          } else {
            ASSERT_EQ(value, 0);
          }
        }
        const double least = std::min({key.ErrorWith(7), key.ErrorWith(8), key.ErrorWith(9)});
        // Of f32 sums, as kernels/params/keys.h counts them; a step that is not quite the best may be within that.
        const int roundings = (head_dim / 8 + 8) * 2;
        ASSERT_NEAR(error, least, roundings * kF32Epsilon * key.square) << head_dim;
        ASSERT_LE(error, head_dim * std::pow(key.max / 7 / 2, 2) * (1 + 0x1p-7));
      }
      for (int r = 0; r < kBlockTokens; ++r) {
        if (r >= first && r < first + count) continue;
        uint32_t scale_bits;
        const float scale = ScaleOf(tile.data(), head_dim, r);
        std::memcpy(&scale_bits, &scale, 4);
        ASSERT_EQ(scale_bits, 0x5a5a5a5au) << "a key outside the rows";
        for (int d = 0; d < head_dim; ++d) ASSERT_EQ(ValueOf(tile.data(), r, d), d % 8 < 4 ? 2 : -3);
      }
      ASSERT_EQ(std::count(tile.end() - 64, tile.end(), 0x5a), 64);
    }
  }
}

TEST_P(Int4ScoresTest, ScoresKeepToTheBoundAndAreTheSameEverywhere) {
  std::mt19937 random(2);
  const KernelTable& portable = **CpuKernels("portable");
  for (const ScoreShape& s : ScoreShapes()) {
    std::vector<float> values = RandomFloats(random, static_cast<size_t>(s.keys) * 2 * s.head_dim, 2);
    for (int j = 0; j < s.keys; j += 3) values[j * 2 * s.head_dim + j % s.head_dim] *= 6;  // coarse steps
    const TypedArray rows = Typed(values, Dtype::kBf16);
    std::vector<float> queries = RandomFloats(random, s.queries * s.head_dim);
    queries[0] = 40;  // likewise
    const KeyTiles keys(kernels(), rows, s.keys, s.head_dim, Dtype::kI4);
    const std::vector<float> scores = ScoresOf(kernels().key_score, keys, s.keys, s.head_dim, queries, 0.25f);
    EXPECT_TRUE(SameBits(scores, ScoresOf(portable.key_score, keys, s.keys, s.head_dim, queries, 0.25f)));
    for (int i = 0; i < s.queries; ++i) {
      const Key q(&queries[i * s.head_dim], s.head_dim);
      for (int j = 0; j < s.keys; ++j) {
        const Key k(&rows.values[static_cast<size_t>(j) * 2 * s.head_dim], s.head_dim);
        double exact = 0;
        for (int d = 0; d < s.head_dim; ++d) exact += 0.25 * q.values[d] * k.values[d];
        const double qs = q.max / 127, ks = k.max / 7;
        const double bound =
            0.25 / 2 * (1 + 0x1p-8) * (ks * std::sqrt(s.head_dim * q.square) + qs * k.sum + s.head_dim * qs * ks / 2);
        ASSERT_NEAR(scores[i * s.keys + j], exact, bound) << s.keys << " keys, head_dim " << s.head_dim;
      }
    }
  }
}

// Against what the tile says in so many words: whichever nibble meets the wrong element is found.
TEST_P(Int4ScoresTest, ScoresAreThoseOfTheTilesValues) {
  std::mt19937 random(6);
  for (int head_dim : {2, 30, 64, 100, 128}) {
    constexpr int kKeys = 50;
    const TypedArray rows = Typed(RandomFloats(random, kKeys * 2 * head_dim, 2), Dtype::kF32);
    std::vector<float> query(head_dim);  // integers with a largest of 127 are their own int8
    for (float& q : query) q = static_cast<float>(static_cast<int>(random() % 255) - 127);
    query[0] = -127;
    const KeyTiles keys(kernels(), rows, kKeys, head_dim, Dtype::kI4);
    const std::vector<float> scores = ScoresOf(kernels().key_score, keys, kKeys, head_dim, query, 0.5f);
    for (int j = 0; j < kKeys; ++j) {
      const void* tile = keys.tiles[j / kBlockTokens];
      int dot = 0;
      for (int d = 0; d < head_dim; ++d) dot += static_cast<int>(query[d]) * ValueOf(tile, j % kBlockTokens, d);
      ASSERT_EQ(scores[j], static_cast<float>(dot) * (0.5f * ScaleOf(tile, head_dim, j % kBlockTokens)));
    }
  }
}

}  // namespace
}  // namespace winnow
