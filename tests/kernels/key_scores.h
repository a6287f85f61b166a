#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/key_tiles.h"

namespace winnow {

// What a scoring call gives, for comparison across tables: [num_queries, num_keys].
inline std::vector<float> ScoresOf(void (*key_score)(const KeyScoreParams&), const KeyTiles& keys, int num_keys,
                                   int head_dim, const std::vector<float>& queries, float scale) {
  const int num_queries = static_cast<int>(queries.size()) / head_dim;
  const int64_t stride = (num_keys + 31) / 32 * 32 + 16;
  std::vector<float> padded(num_queries * stride, kPoison);
  key_score({.tiles = keys.tiles.data(),
             .num_keys = num_keys,
             .head_dim = head_dim,
             .dtype = keys.dtype,
             .queries = queries.data(),
             .num_queries = num_queries,
             .scale = scale,
             .scores = padded.data(),
             .scores_stride = stride});
  std::vector<float> scores;
  for (int i = 0; i < num_queries; ++i) {
    scores.insert(scores.end(), padded.begin() + i * stride, padded.begin() + i * stride + num_keys);
    for (int64_t j = stride - 16; j < stride; ++j) EXPECT_TRUE(std::isnan(padded[i * stride + j]));
  }
  return scores;
}

struct ScoreShape {
  int keys, head_dim, queries;
};
inline std::vector<ScoreShape> ScoreShapes() {
  std::vector<ScoreShape> shapes;
  for (int head_dim : {2, 6, 16, 30, 64, 80, 96, 128, 192, 256, 512, 1024}) shapes.push_back({77, head_dim, 4});
  for (int queries : {1, 2, 3, 5, 6, 7, 8, 9, 33}) shapes.push_back({65, 64, queries});
  for (int keys : {1, 15, 16, 17, 31, 32, 33, 48, 97, 1000}) shapes.push_back({keys, 64, 5});
  return shapes;
}

}  // namespace winnow
