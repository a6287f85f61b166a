#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/base/dtype.h"
#include "common/base/kv_layout.h"

// Index keys, their scores, and what is chosen by them. What holds for all parameters stands in kernels/kernel_table.h.

namespace winnow {

// Index tiles: the keys of one block transposed, so that scores of 16 keys fall into one vector. A step of the head
// dimension takes 128 bytes in every format:
//   f32: [head_dim][32]   bf16: [head_dim/2][32][2]   int8: [ceil(head_dim/4)][32][4], then f32 scales[32]
//   int4: [ceil(head_dim/8)][32][4], then f32 scales[32]; byte i of step s holds value + 8 of element 8s + i in its low
//   half and of element 8s + 4 + i in its high half
//
// int8 keys are symmetric, one scale per key: scale = max|k| / 127, values round(k / scale), zeros behind head_dim. A
// key whose largest magnitude is below 2^-100 is a zero key (scale 0), and so is a key with an element that is not
// finite: its score is 0 and it spoils no other key's.
//
// int4 keys have one scale per key too, and values in [-8, 7]. The scale may be negative, so that the element of the
// largest magnitude lies on the side of -8. Values are round(k / step) for that one of the steps max|k| / 7, / 8 and /
// 9 that leaves the least squared error (less than the first alone by a quarter on normal keys: the finer ones clip a
// few elements), and the scale is then the one that fits them best, k.v / v.v. Zero keys as above.
constexpr size_t IndexTileBytes(int head_dim, Dtype dtype) {
  const size_t dim = head_dim;
  constexpr size_t kScaleBytes = kBlockTokens * sizeof(float);
  if (dtype == Dtype::kI8) return (dim + 3) / 4 * 4 * kBlockTokens + kScaleBytes;
  if (dtype == Dtype::kI4) return (dim + 7) / 8 * 4 * kBlockTokens + kScaleBytes;
  return dim * kBlockTokens * DtypeBytes(dtype);
}

// Writes keys into a tile. Keys of the tile outside [first_row, first_row + num_rows) keep what they had; tiles start
// zeroed.
struct IndexKeysParams {
  const void* rows = nullptr;  // the first key, [head_dim] dtype; what lies between two keys is never read
  int row_elements = 0;        // from one key to the next; 0: 2 * head_dim. Rows of int8 have their own length
  int num_rows = 0;
  int first_row = 0;           // row of the block that rows[0] is
  int head_dim = 0;            // even
  Dtype dtype = Dtype::kBf16;  // of the rows: kF32, kBf16 or kI8
  void* tile = nullptr;        // IndexTileBytes
  std::optional<Dtype> tile_dtype =
      {};  // kI8 or kI4; none: the rows'. Of rows of int8, whose codes it takes, kI8 alone
};

// How the product of a query with a key becomes a score: scale * q.k, and with a cap above 0 cap * tanh(scale * q.k /
// cap).
struct ScoreForm {
  float scale = 0;
  float cap = 0;
};

inline constexpr int kKeyGroup = 16;  // keys that are scored together: half a tile

// scores[i][j] = scale * queries[i] . key[j], and with a score_cap above 0 score_cap * tanh(that / score_cap).
//
// The bound of a page of keys by a query (Quest, arXiv:2406.10774, section 3) is such a score too: its key is [max of
// the page | min of the page], of twice the dimension, and its query [max(q, 0) | min(q, 0)].
//
// With int8 tiles each query is quantised as keys are, and scores are qs ks scale times an integer dot product: the
// same bits whatever the instruction set. With |x|_1 the sum of magnitudes and qs, ks the steps max|q| / 127, max|k| /
// 127,
//   |score - exact| <= |scale| / 2 * (1 + 2^-12) * (ks |q|_1 + qs |k|_1 + head_dim qs ks / 2)
// because q.k - q'.k' = q.(k - k') + k'.(q - q'), elements err by half a step and |k'|_1 <= |k|_1 + head_dim ks / 2;
// the 2^-12 covers the f32 roundings (k / scale to 3 * 2^-24 of at most 127; the product of scales to 3 * 2^-24). Keys
// and queries that count as zero err by less than 2^-100 |scale| (|q|_1 + |k|_1) more. A query that is not finite has
// NaN scores.
//
// Keys that are scored in their rows have the scores of an int8 tile of their codes and scales, bit for bit; one with a
// scale that is not finite counts as zero.
//
// With int4 tiles queries are int8 still, and with ks = max|k| / 7
//   |score - exact| <= |scale| / 2 * (1 + 2^-8) * (ks sqrt(head_dim) |q|_2 + qs |k|_1 + head_dim qs ks / 2)
// because the chosen values err no more than those of the step ks, whose elements err by half a step: |k - k'|_2 <=
// sqrt(head_dim) ks / 2, hence |q.(k - k')| <= |q|_2 times that and |k'|_1 <= |k|_1 + head_dim ks / 2. The 2^-8 covers
// the f32 roundings of the sums that the choice compares, to head_dim / 8 * 2^-23 of |k|^2.
struct KeyScoreParams {
  const void* const* tiles = nullptr;  // [ceil(num_keys / 32)] index tiles; with groups, all that these name
  int num_keys = 0;
  int head_dim = 0;                // even, at most kMaxScoredHeadDim
  Dtype dtype = Dtype::kBf16;      // of the tiles; with bf16 the queries are rounded to bf16
  bool in_rows = false;            // `tiles` are blocks of rows of int8, whose keys are scored where they lie
  const float* queries = nullptr;  // [num_queries, head_dim]
  int num_queries = 0;
  float scale = 0;
  float score_cap = 0;
  float* scores = nullptr;    // [num_queries, scores_stride]
  int64_t scores_stride = 0;  // >= num_keys rounded up to 32; what lies beyond num_keys is unspecified

  // Null: keys 0, 1, ... Otherwise keys [16 g, 16 g + 16) for each g of groups [num_keys / 16], in that order, and
  // scores lie in the order of the list; num_keys is a multiple of 16.
  const uint32_t* groups = nullptr;
};
inline constexpr int kMaxScoredHeadDim = 1024;  // integer dot products stay below 2^24, exact in f32

// Softmaxes are kept as weights in runs of kSoftmaxRun keys, each relative to the largest score of its run, so that one
// pass over the keys and one exp per score are enough:
//   softmax_j(scores[i]) = weights[i][j] * run_scales[i][j / kSoftmaxRun]
// Exp errs by a few units in the last place of f32, and by that of its argument. Tolerates -inf; a query without any
// finite score has weights and scales 0 and lse -inf.
inline constexpr int kSoftmaxRun = 512;
constexpr size_t SoftmaxRuns(size_t num_keys) {
  return (num_keys + kSoftmaxRun - 1) / kSoftmaxRun;
}

// Scores keys and takes their softmaxes over the num_keys that are scored.
struct KeySoftmaxParams {
  KeyScoreParams score;         // `scores` receives the weights
  float* run_scales = nullptr;  // [num_queries, SoftmaxRuns(num_keys)]
  float* lse = nullptr;         // [num_queries] natural log of sum exp(scores)
  float* scratch = nullptr;     // [num_queries, SoftmaxRuns(num_keys)]
};

// Softmaxes of scores that are there already, in their place: the bits are those of KeySoftmaxParams.
struct ScoreSoftmaxParams {
  float* scores = nullptr;    // [num_queries, scores_stride]; receives the weights
  int64_t scores_stride = 0;  // as KeyScoreParams has it
  int num_queries = 0;
  int num_keys = 0;
  float* run_scales = nullptr;  // [num_queries, SoftmaxRuns(num_keys)]
  float* lse = nullptr;         // [num_queries]
  float* scratch = nullptr;     // [num_queries, SoftmaxRuns(num_keys)]
};

// importance[j] = sum over the queries of softmax_j, for j in [first, last). What is not a number becomes 0.
struct SoftmaxSumParams {
  const float* weights = nullptr;  // [num_queries, weights_stride]
  int64_t weights_stride = 0;
  const float* run_scales = nullptr;  // [num_queries, SoftmaxRuns(num_keys)]
  int num_queries = 0;
  int num_keys = 0;
  int first = 0;
  int last = 0;
  float* importance = nullptr;  // [last]; elements below `first` are left alone
};

// The k largest of values[first .. last), ties to the lower index, written in ascending index order. k >= last - first
// selects all.
struct TopKParams {
  const float* values = nullptr;  // not NaN
  uint32_t first = 0;
  uint32_t last = 0;
  uint32_t k = 0;
  uint32_t* indices = nullptr;  // [min(k, last - first)]
  uint32_t* scratch = nullptr;  // [TopKScratchWords(last - first)]
};
constexpr size_t TopKScratchWords(size_t n) {
  return 2 * n;
}

}  // namespace winnow
