#include <algorithm>

#include "common/base/kv_layout.h"
#include "tests/kernels/kernel_test.h"

namespace winnow {
namespace {

class ScoresTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(ScoresTest);

TEST_P(ScoresTest, KeyScoreMatchesDoubles) {
  struct Shape {
    int keys, head_dim, queries;
  };
  std::vector<Shape> shapes;
  for (int head_dim : {2, 16, 30, 32, 64, 80, 96, 128, 256}) shapes.push_back({100, head_dim, 4});
  for (int queries = 1; queries <= 9; ++queries) shapes.push_back({65, 64, queries});
  for (int keys : {1, 16, 31, 32, 33, 64, 96, 97, 128, 1000}) shapes.push_back({keys, 64, 3});
  std::mt19937 random(5);
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    for (const Shape& s : shapes) {
      const int num_tiles = (s.keys + kBlockTokens - 1) / kBlockTokens;
      const TypedArray rows = Typed(RandomFloats(random, static_cast<size_t>(s.keys) * 2 * s.head_dim), dtype);
      const std::vector<float> queries = RandomFloats(random, s.queries * s.head_dim);
      const size_t row_bytes = 2 * s.head_dim * DtypeBytes(dtype);
      const size_t tile_bytes = kBlockTokens * row_bytes / 2;
      AlignedBytes storage(num_tiles * tile_bytes);
      std::vector<const void*> tiles;
      for (int t = 0; t < num_tiles; ++t) {
        char* tile = static_cast<char*>(storage.data()) + t * tile_bytes;
        tiles.push_back(tile);
        // In two parts, as a tail grows.
        const int count = std::min(kBlockTokens, s.keys - t * kBlockTokens);
        const int split = count / 3;
        const char* block = reinterpret_cast<const char*>(rows.bytes.data()) + t * kBlockTokens * row_bytes;
        kernels().index_keys({block, split, 0, s.head_dim, dtype, tile});
        kernels().index_keys({block + split * row_bytes, count - split, split, s.head_dim, dtype, tile});
      }
      const int64_t stride = num_tiles * kBlockTokens + 16;
      std::vector<float> scores(s.queries * stride, kPoison);
      kernels().key_score(
          {tiles.data(), s.keys, s.head_dim, dtype, queries.data(), s.queries, 0.25f, scores.data(), stride});
      for (int i = 0; i < s.queries; ++i) {
        for (int j = 0; j < s.keys; ++j) {
          double sum = 0;
          double magnitude = 0;
          for (int d = 0; d < s.head_dim; ++d) {
            const float q = queries[i * s.head_dim + d];
            const double product = 0.25 * (dtype == Dtype::kBf16 ? Bf16Of(q) : q) *
                                   rows.values[static_cast<size_t>(j) * 2 * s.head_dim + d];
            sum += product;
            magnitude += std::fabs(product);
          }
          ASSERT_NEAR(scores[i * stride + j], sum, magnitude * (s.head_dim + 2) * kF32Epsilon + 1e-30)
              << DtypeName(dtype) << " keys " << s.keys << " head_dim " << s.head_dim << " query " << i << " key " << j;
        }
        for (int64_t j = num_tiles * kBlockTokens; j < stride; ++j) ASSERT_TRUE(std::isnan(scores[i * stride + j]));
      }
    }
  }
}

TEST_P(ScoresTest, KeyScoreDoesNotDependOnTheOtherQueries) {
  std::mt19937 random(6);
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    constexpr int kHeadDim = 64;
    const TypedArray rows = Typed(RandomFloats(random, 160 * 2 * kHeadDim), dtype);
    const size_t tile_bytes = kBlockTokens * kHeadDim * DtypeBytes(dtype);
    AlignedBytes storage(5 * tile_bytes);
    std::vector<const void*> tiles;
    for (int t = 0; t < 5; ++t) {
      tiles.push_back(static_cast<char*>(storage.data()) + t * tile_bytes);
      kernels().index_keys(
          {rows.bytes.data() + t * 2 * tile_bytes, kBlockTokens, 0, kHeadDim, dtype, const_cast<void*>(tiles[t])});
    }
    const std::vector<float> queries = RandomFloats(random, 9 * kHeadDim);
    std::vector<float> together(9 * 160);
    std::vector<float> alone(9 * 160);
    kernels().key_score({tiles.data(), 160, kHeadDim, dtype, queries.data(), 9, 0.5f, together.data(), 160});
    for (int i = 0; i < 9; ++i) {
      // Tile by tile, too: a key's score does not depend on where its tile stands.
      for (int t = 0; t < 5; ++t) {
        kernels().key_score(
            {&tiles[t], 32, kHeadDim, dtype, &queries[i * kHeadDim], 1, 0.5f, &alone[i * 160 + t * 32], 160});
      }
    }
    EXPECT_TRUE(SameBits(together, alone));
  }
}

TEST_P(ScoresTest, SoftmaxSumMatchesDoubles) {
  std::mt19937 random(7);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int keys : {1, 2, 15, 16, 17, 33, 100, 5000}) {
    for (int queries : {1, 4, 7}) {
      const int64_t stride = keys + 37;
      std::vector<float> scores = RandomFloats(random, queries * stride, 8);
      for (int i = 0; i < queries; ++i) {
        for (int j = keys; j < stride; ++j) scores[i * stride + j] = kPoison;
        if (keys > 2) scores[i * stride + i % keys] = -kInfinity;
      }
      std::vector<float> importance(keys + 16, kPoison);
      std::vector<float> lse(queries, kPoison);
      kernels().softmax_sum({scores.data(), stride, queries, keys, importance.data(), lse.data()});
      std::vector<double> expected(keys);
      for (int i = 0; i < queries; ++i) {
        const float* row = &scores[i * stride];
        const double max = *std::max_element(row, row + keys);
        double sum = 0;
        for (int j = 0; j < keys; ++j) sum += std::exp(row[j] - max);
        for (int j = 0; j < keys; ++j) expected[j] += std::exp(row[j] - max) / sum;
        // Summation of `keys` terms, and exp to a few units in the last place of an argument of up to 100.
        ASSERT_NEAR(lse[i], max + std::log(sum), (keys + 200) * kF32Epsilon + 2 * kF32Epsilon * std::fabs(max));
      }
      for (int j = 0; j < keys; ++j)
        ASSERT_NEAR(importance[j], expected[j], expected[j] * (keys + 300) * kF32Epsilon + 1e-30);
      for (int j = keys; j < keys + 16; ++j) ASSERT_TRUE(std::isnan(importance[j]));
    }
  }
}

TEST_P(ScoresTest, SoftmaxSumOfNothing) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> scores(40, -kInfinity);
  std::vector<float> importance(40, kPoison);
  float lse = kPoison;
  kernels().softmax_sum({scores.data(), 40, 1, 40, importance.data(), &lse});
  for (float v : importance) EXPECT_EQ(v, 0);
  EXPECT_EQ(lse, -kInfinity);
  lse = kPoison;
  kernels().softmax_sum({scores.data(), 40, 1, 0, importance.data(), &lse});
  EXPECT_EQ(lse, -kInfinity);
  kernels().softmax_sum({scores.data(), 40, 1, 40, importance.data(), nullptr});
}

}  // namespace
}  // namespace winnow
