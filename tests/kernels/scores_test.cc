#include <algorithm>

#include "tests/kernels/key_tiles.h"

namespace winnow {
namespace {

class ScoresTest : public KernelTest {};
WINNOW_FOR_EACH_TABLE(ScoresTest);

TEST_P(ScoresTest, KeyScoreMatchesDoubles) {
  struct Shape {
    int keys, head_dim, queries;
  };
  std::vector<Shape> shapes;
  for (int head_dim : {2, 6, 16, 30, 32, 64, 80, 96, 128, 192, 256, 512, 1024}) shapes.push_back({100, head_dim, 4});
  for (int queries = 1; queries <= 9; ++queries) shapes.push_back({65, 64, queries});
  for (int keys : {1, 16, 31, 32, 33, 64, 96, 97, 128, 1000}) shapes.push_back({keys, 64, 3});
  std::mt19937 random(5);
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    for (const Shape& s : shapes) {
      const int num_tiles = (s.keys + kBlockTokens - 1) / kBlockTokens;
      const TypedArray rows = Typed(RandomFloats(random, static_cast<size_t>(s.keys) * 2 * s.head_dim), dtype);
      const std::vector<float> queries = RandomFloats(random, s.queries * s.head_dim);
      const KeyTiles keys(kernels(), rows, s.keys, s.head_dim);
      const int64_t stride = num_tiles * kBlockTokens + 16;
      std::vector<float> scores(s.queries * stride, kPoison);
      kernels().key_score({.tiles = keys.tiles.data(),
                           .num_keys = s.keys,
                           .head_dim = s.head_dim,
                           .dtype = dtype,
                           .queries = queries.data(),
                           .num_queries = s.queries,
                           .scale = 0.25f,
                           .scores = scores.data(),
                           .scores_stride = stride});
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
  constexpr int kHeadDim = 64;
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32, Dtype::kI8, Dtype::kI4}) {
    const bool integers = dtype == Dtype::kI8 || dtype == Dtype::kI4;
    const TypedArray rows = Typed(RandomFloats(random, 160 * 2 * kHeadDim), integers ? Dtype::kBf16 : dtype);
    const KeyTiles keys(kernels(), rows, 160, kHeadDim, dtype);
    const std::vector<const void*>& tiles = keys.tiles;
    const std::vector<float> queries = RandomFloats(random, 9 * kHeadDim);
    std::vector<float> together(9 * 160);
    std::vector<float> alone(9 * 160);
    KeyScoreParams params{.tiles = tiles.data(),
                          .num_keys = 160,
                          .head_dim = kHeadDim,
                          .dtype = dtype,
                          .queries = queries.data(),
                          .num_queries = 9,
                          .scale = 0.5f,
                          .scores = together.data(),
                          .scores_stride = 160};
    kernels().key_score(params);
    params.num_keys = 32;
    params.num_queries = 1;
    for (int i = 0; i < 9; ++i) {
      // Tile by tile, too: a key's score does not depend on where its tile stands.
      for (int t = 0; t < 5; ++t) {
        params.tiles = &tiles[t];
        params.queries = &queries[i * kHeadDim];
        params.scores = &alone[i * 160 + t * 32];
        kernels().key_score(params);
      }
    }
    EXPECT_TRUE(SameBits(together, alone));
  }
}

// Scores with a cap are those without, bent, and softmaxes are of these: the bits agree whichever kernel makes them.
TEST_P(ScoresTest, CapBendsScoresAndSoftmaxes) {
  std::mt19937 random(9);
  constexpr int kHeadDim = 64, kKeys = 700, kQueries = 5, kStride = 704;
  constexpr float kCap = 2.5f;
  const auto runs = static_cast<int64_t>(SoftmaxRuns(kKeys));
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32, Dtype::kI8, Dtype::kI4}) {
    const bool integers = dtype == Dtype::kI8 || dtype == Dtype::kI4;
    const TypedArray rows = Typed(RandomFloats(random, kKeys * 2 * kHeadDim), integers ? Dtype::kBf16 : dtype);
    const KeyTiles keys(kernels(), rows, kKeys, kHeadDim, dtype);
    const std::vector<float> queries = RandomFloats(random, kQueries * kHeadDim);
    std::vector<float> plain(kQueries * kStride), capped(plain.size()), weights(plain.size());
    KeyScoreParams params{.tiles = keys.tiles.data(),
                          .num_keys = kKeys,
                          .head_dim = kHeadDim,
                          .dtype = dtype,
                          .queries = queries.data(),
                          .num_queries = kQueries,
                          .scale = 0.5f,
                          .scores = plain.data(),
                          .scores_stride = kStride};
    kernels().key_score(params);
    params.score_cap = kCap;
    params.scores = capped.data();
    kernels().key_score(params);
    for (int i = 0; i < kQueries; ++i) {
      for (int j = 0; j < kKeys; ++j) {
        const double expected = kCap * std::tanh(double{plain[i * kStride + j]} / kCap);
        ASSERT_NEAR(capped[i * kStride + j], expected, 5e-7 * std::fabs(expected)) << DtypeName(dtype);
      }
    }
    std::vector<float> scales(kQueries * runs), lse(kQueries), scratch(kQueries * runs);
    std::vector<float> other_scales = scales, other_lse = lse;
    params.scores = weights.data();
    kernels().key_softmax({.score = params, .run_scales = scales.data(), .lse = lse.data(), .scratch = scratch.data()});
    kernels().score_softmax({.scores = capped.data(),
                             .scores_stride = kStride,
                             .num_queries = kQueries,
                             .num_keys = kKeys,
                             .run_scales = other_scales.data(),
                             .lse = other_lse.data(),
                             .scratch = scratch.data()});
    EXPECT_TRUE(SameBits(lse, other_lse) && SameBits(scales, other_scales)) << DtypeName(dtype);
    for (int i = 0; i < kQueries; ++i) {
      const auto row = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + i * kStride, all.begin() + i * kStride + kKeys);
      };
      EXPECT_TRUE(SameBits(row(weights), row(capped))) << DtypeName(dtype);
    }
  }
}

// Keys and queries of one kv head as kernels take them; what key_softmax and softmax_sum make of them.
struct Softmaxes {
  Softmaxes(const KernelTable& kernels, const std::vector<float>& keys, int num_keys, int head_dim,
            const std::vector<float>& queries, int num_queries)
      : num_keys(num_keys), num_queries(num_queries), stride((num_keys + 31) / 32 * 32 + 16) {
    const size_t tile_floats = static_cast<size_t>(kBlockTokens) * head_dim;
    AlignedBytes storage((stride / 32 + 1) * tile_floats * 4);
    std::vector<const void*> tiles;
    for (int first = 0; first < num_keys; first += kBlockTokens) {
      float* tile = static_cast<float*>(storage.data()) + tiles.size() * tile_floats;
      const int count = std::min(kBlockTokens, num_keys - first);
      kernels.index_keys({.rows = &keys[static_cast<size_t>(first) * 2 * head_dim],
                          .num_rows = count,
                          .head_dim = head_dim,
                          .dtype = Dtype::kF32,
                          .tile = tile});
      tiles.push_back(tile);
    }
    weights.assign(num_queries * stride, kPoison);
    scales.assign(num_queries * SoftmaxRuns(num_keys), kPoison);
    lse.assign(num_queries, kPoison);
    importance.assign(num_keys + 16, kPoison);
    std::vector<float> scratch(scales.size());
    kernels.key_softmax({.score = {.tiles = tiles.data(),
                                   .num_keys = num_keys,
                                   .head_dim = head_dim,
                                   .dtype = Dtype::kF32,
                                   .queries = queries.data(),
                                   .num_queries = num_queries,
                                   .scale = 1,
                                   .scores = weights.data(),
                                   .scores_stride = stride},
                         .run_scales = scales.data(),
                         .lse = lse.data(),
                         .scratch = scratch.data()});
    Sum(kernels, 0, num_keys);
  }

  void Sum(const KernelTable& kernels, int first, int last) {
    kernels.softmax_sum({.weights = weights.data(),
                         .weights_stride = stride,
                         .run_scales = scales.data(),
                         .num_queries = num_queries,
                         .num_keys = num_keys,
                         .first = first,
                         .last = last,
                         .importance = importance.data()});
  }

  int num_keys, num_queries;
  int64_t stride;
  std::vector<float> weights, scales, lse, importance;
};

// Keys of two elements, the second 0: with queries (q, 0), scores are exactly q * key, rounded once.
std::vector<float> KeysOf(const std::vector<float>& values) {
  std::vector<float> rows(4 * values.size());
  for (size_t j = 0; j < values.size(); ++j) rows[4 * j] = values[j];
  return rows;
}

TEST_P(ScoresTest, SoftmaxesMatchDoubles) {
  std::mt19937 random(7);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int keys : {1, 2, 15, 16, 17, 33, 100, 511, 512, 513, 1024, 5000}) {
    for (int queries : {1, 4, 7}) {
      std::vector<float> values = RandomFloats(random, keys, 8);
      if (keys > 2) values[keys / 3] = -kInfinity;
      std::vector<float> multipliers;
      for (int i = 0; i < queries; ++i) multipliers.insert(multipliers.end(), {1.0f + 0.25f * i, 0});
      Softmaxes got(kernels(), KeysOf(values), keys, 2, multipliers, queries);
      std::vector<double> expected(keys);
      for (int i = 0; i < queries; ++i) {
        std::vector<double> scores;
        for (float value : values) scores.push_back(multipliers[2 * i] * value);
        const double max = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double score : scores) sum += std::exp(score - max);
        for (int j = 0; j < keys; ++j) {
          const double softmax = std::exp(scores[j] - max) / sum;
          expected[j] += softmax;
          // Summation of `keys` terms; exp to a few units in the last place of an argument of up to 200.
          ASSERT_NEAR(got.weights[i * got.stride + j] * got.scales[i * SoftmaxRuns(keys) + j / kSoftmaxRun], softmax,
                      softmax * (keys + 600) * kF32Epsilon + 1e-30);
        }
        ASSERT_NEAR(got.lse[i], max + std::log(sum), (keys + 400) * kF32Epsilon + 2 * kF32Epsilon * std::fabs(max));
      }
      for (int j = 0; j < keys; ++j)
        ASSERT_NEAR(got.importance[j], expected[j], expected[j] * (keys + 600) * kF32Epsilon + 1e-30);
      for (int j = keys; j < keys + 16; ++j) ASSERT_TRUE(std::isnan(got.importance[j]));
    }
  }
}

TEST_P(ScoresTest, SoftmaxesDoNotDependOnTheOtherQueriesNorSumsOnTheirRange) {
  std::mt19937 random(8);
  constexpr int kKeys = 1100, kHeadDim = 16;
  const std::vector<float> keys = RandomFloats(random, kKeys * 2 * kHeadDim);
  const std::vector<float> queries = RandomFloats(random, 9 * kHeadDim);
  Softmaxes together(kernels(), keys, kKeys, kHeadDim, queries, 9);
  for (int i = 0; i < 9; ++i) {
    const std::vector<float> query(&queries[i * kHeadDim], &queries[i * kHeadDim] + kHeadDim);
    const Softmaxes alone(kernels(), keys, kKeys, kHeadDim, query, 1);
    EXPECT_EQ(alone.lse[0], together.lse[i]);
    const float* row = &together.weights[i * together.stride];
    EXPECT_TRUE(SameBits({alone.weights.begin(), alone.weights.begin() + kKeys}, {row, row + kKeys}));
  }
  std::vector<float> expected(together.importance.begin() + 5, together.importance.begin() + 1030);
  std::fill(together.importance.begin(), together.importance.end(), kPoison);
  together.Sum(kernels(), 5, 1030);
  EXPECT_TRUE(SameBits({together.importance.begin() + 5, together.importance.begin() + 1030}, expected));
  EXPECT_TRUE(std::isnan(together.importance[4]) && std::isnan(together.importance[1030]));
}

TEST_P(ScoresTest, SoftmaxesOfNothing) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Softmaxes empty(kernels(), KeysOf(std::vector<float>(600, -kInfinity)), 600, 2, {1, 0}, 1);
  for (int j = 0; j < 600; ++j) EXPECT_EQ(empty.importance[j], 0);
  EXPECT_EQ(empty.lse[0], -kInfinity);
  EXPECT_EQ(Softmaxes(kernels(), {}, 0, 2, {1, 0}, 1).lse[0], -kInfinity);
  // A run without finite scores beside one with some.
  std::vector<float> values(600, -kInfinity);
  values[599] = 3;
  Softmaxes one(kernels(), KeysOf(values), 600, 2, {1, 0}, 1);
  EXPECT_EQ(one.importance[0], 0);
  EXPECT_EQ(one.importance[599], 1);
  EXPECT_EQ(one.lse[0], 3);
  // What is not a number is the least important.
  Softmaxes nan(kernels(), KeysOf(values), 600, 2, {kPoison, 0}, 1);
  for (int j = 0; j < 600; ++j) EXPECT_EQ(nan.importance[j], 0);
}

}  // namespace
}  // namespace winnow
