#include <algorithm>

#include "tests/kernels/key_tiles.h"

namespace winnow {
namespace {

class KeyGroupsTest : public KernelTest {
 protected:
  std::vector<float> Scores(const KeyTiles& keys, int head_dim, const std::vector<float>& queries, int num_keys,
                            const std::vector<uint32_t>* groups) {
    const int num_queries = static_cast<int>(queries.size()) / head_dim;
    const int64_t stride = (num_keys + 31) / 32 * 32 + 16;
    std::vector<float> padded(num_queries * stride, kPoison);
    kernels().key_score(Params(keys, head_dim, queries, num_keys, groups, padded, stride));
    std::vector<float> scores;
    for (int i = 0; i < num_queries; ++i) {
      scores.insert(scores.end(), padded.begin() + i * stride, padded.begin() + i * stride + num_keys);
      for (int64_t j = stride - 16; j < stride; ++j) EXPECT_TRUE(std::isnan(padded[i * stride + j]));
    }
    return scores;
  }

  static KeyScoreParams Params(const KeyTiles& keys, int head_dim, const std::vector<float>& queries, int num_keys,
                               const std::vector<uint32_t>* groups, std::vector<float>& out, int64_t stride) {
    return {.tiles = keys.tiles.data(),
            .num_keys = num_keys,
            .head_dim = head_dim,
            .dtype = keys.dtype,
            .queries = queries.data(),
            .num_queries = static_cast<int>(queries.size()) / head_dim,
            .scale = 0.125f,
            .scores = out.data(),
            .scores_stride = stride,
            .groups = groups == nullptr ? nullptr : groups->data()};
  }
};
WINNOW_FOR_EACH_TABLE(KeyGroupsTest);

constexpr Dtype kTileDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kI8, Dtype::kI4};

TypedArray RandomRows(std::mt19937& random, int keys, int head_dim, Dtype tile_dtype) {
  return Typed(RandomFloats(random, static_cast<size_t>(keys) * 2 * head_dim),
               tile_dtype == Dtype::kF32 ? Dtype::kF32 : Dtype::kBf16);
}

TEST_P(KeyGroupsTest, ScoresAreThoseOfAllKeysInTheOrderOfTheList) {
  std::mt19937 random(1);
  constexpr int kKeys = 200;  // the last group is 12: keys 192 .. 199, zeros behind
  for (Dtype dtype : kTileDtypes) {
    for (auto [head_dim, num_queries] : {std::pair{2, 1}, {30, 3}, {64, 1}, {64, 5}, {128, 9}, {512, 4}}) {
      const KeyTiles keys(kernels(), RandomRows(random, kKeys, head_dim, dtype), kKeys, head_dim, dtype);
      const std::vector<float> queries = RandomFloats(random, num_queries * head_dim);
      const std::vector<float> all = Scores(keys, head_dim, queries, 208, nullptr);
      for (const std::vector<uint32_t>& groups : std::vector<std::vector<uint32_t>>{
               {0}, {12}, {3}, {2, 3}, {3, 2}, {1, 4, 6}, {0, 5, 5, 12, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}) {
        const int count = static_cast<int>(groups.size()) * kKeyGroup;
        const std::vector<float> chosen = Scores(keys, head_dim, queries, count, &groups);
        for (int i = 0; i < num_queries; ++i) {
          for (int j = 0; j < count; ++j) {
            ASSERT_EQ(chosen[i * count + j], all[i * 208 + groups[j / 16] * 16 + j % 16])
                << DtypeName(dtype) << " head_dim " << head_dim << " query " << i << " key " << j;
          }
        }
      }
    }
  }
}

// Runs of softmaxes count chosen keys, so that lists longer than one run begin in the middle of the tiles.
TEST_P(KeyGroupsTest, SoftmaxesAreOverTheChosenKeys) {
  std::mt19937 random(2);
  constexpr int kKeys = 2048, kHeadDim = 64, kQueries = 5;
  for (Dtype dtype : kTileDtypes) {
    const KeyTiles keys(kernels(), RandomRows(random, kKeys, kHeadDim, dtype), kKeys, kHeadDim, dtype);
    const std::vector<float> queries = RandomFloats(random, kQueries * kHeadDim, 4);
    for (int num_groups : {1, 31, 32, 33, 75}) {
      std::vector<uint32_t> groups;
      for (uint32_t g = 0; g < kKeys / kKeyGroup; ++g) groups.push_back(g);
      std::shuffle(groups.begin(), groups.end(), random);
      groups.resize(num_groups);
      const int count = num_groups * kKeyGroup;
      const int64_t stride = (count + 31) / 32 * 32;
      const size_t runs = SoftmaxRuns(count);
      std::vector<float> weights(kQueries * stride, kPoison), scales(kQueries * runs, kPoison), lse(kQueries, kPoison);
      std::vector<float> scratch(kQueries * runs);
      kernels().key_softmax({Params(keys, kHeadDim, queries, count, &groups, weights, stride), scales.data(),
                             lse.data(), scratch.data()});
      const std::vector<float> scores = Scores(keys, kHeadDim, queries, count, &groups);
      for (int i = 0; i < kQueries; ++i) {
        double sum = 0;
        for (int j = 0; j < count; ++j) sum += std::exp(double{scores[i * count + j]});
        ASSERT_NEAR(lse[i], std::log(sum), (count + 400) * kF32Epsilon + 2 * kF32Epsilon * std::fabs(std::log(sum)));
        for (int j = 0; j < count; ++j) {
          const double softmax = std::exp(double{scores[i * count + j]}) / sum;
          ASSERT_NEAR(weights[i * stride + j] * scales[i * runs + j / kSoftmaxRun], softmax,
                      softmax * (count + 600) * kF32Epsilon + 1e-30);
        }
      }
    }
  }
}

// A page's bound, scored as one key of twice the dimension: sum over d of max(q max_d, q min_d). Bounds are never int4.
TEST_P(KeyGroupsTest, PageBoundsAreScoresOfPseudoKeys) {
  std::mt19937 random(3);
  constexpr int kPages = 45, kPageKeys = 8, kQueries = 5;
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kI8}) {
    for (int head_dim : {16, 64, 96, 128, 256}) {
      const TypedArray rows = RandomRows(random, kPages * kPageKeys, head_dim, dtype);
      std::vector<float> bounds(static_cast<size_t>(kPages) * 4 * head_dim);  // the "V half" is never read
      for (int p = 0; p < kPages; ++p) {
        for (int d = 0; d < head_dim; ++d) {
          const auto element = [&](int j) {
            return rows.values[static_cast<size_t>(p * kPageKeys + j) * 2 * head_dim + d];
          };
          float max = element(0), min = element(0);
          for (int j = 1; j < kPageKeys; ++j) {
            max = std::max(max, element(j));
            min = std::min(min, element(j));
          }
          bounds[static_cast<size_t>(p) * 4 * head_dim + d] = max;
          bounds[static_cast<size_t>(p) * 4 * head_dim + head_dim + d] = min;
        }
      }
      const std::vector<float> q = Typed(RandomFloats(random, kQueries * head_dim), rows.dtype).values;
      std::vector<float> queries(2 * q.size());
      for (int i = 0; i < kQueries; ++i) {
        for (int d = 0; d < head_dim; ++d) {
          queries[i * 2 * head_dim + d] = std::max(q[i * head_dim + d], 0.0f);
          queries[i * 2 * head_dim + head_dim + d] = std::min(q[i * head_dim + d], 0.0f);
        }
      }
      const KeyTiles keys(kernels(), Typed(bounds, rows.dtype), kPages, 2 * head_dim, dtype);
      const std::vector<float> scores = Scores(keys, 2 * head_dim, queries, kPages, nullptr);
      for (int i = 0; i < kQueries; ++i) {
        for (int p = 0; p < kPages; ++p) {
          const float* bound = &bounds[static_cast<size_t>(p) * 4 * head_dim];
          double expected = 0, magnitude = 0, q_max = 0, k_max = 0, q_sum = 0, k_sum = 0;
          for (int d = 0; d < head_dim; ++d) {
            const double x = q[i * head_dim + d];
            const double product = 0.125 * std::max(x * bound[d], x * bound[head_dim + d]);
            expected += product;
            magnitude += std::fabs(product);
            q_max = std::max(q_max, std::fabs(x));
            q_sum += std::fabs(x);
            for (int half : {0, head_dim}) {
              k_max = std::max(k_max, std::fabs(double{bound[half + d]}));
              k_sum += std::fabs(bound[half + d]);
            }
          }
          const double qs = q_max / 127, ks = k_max / 127;
          const double bound_int8 = 0.125 / 2 * (1 + 0x1p-12) * (ks * q_sum + qs * k_sum + 2 * head_dim * qs * ks / 2);
          const double tolerance =
              dtype == Dtype::kI8 ? bound_int8 : magnitude * (2 * head_dim + 2) * kF32Epsilon + 1e-30;
          ASSERT_NEAR(scores[i * kPages + p], expected, tolerance) << DtypeName(dtype) << " head_dim " << head_dim;
        }
      }
    }
  }
}

}  // namespace
}  // namespace winnow
