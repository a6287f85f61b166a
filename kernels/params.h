#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/base/dtype.h"
#include "common/base/kv_layout.h"
#include "common/base/latent_shape.h"

// Parameters of every kernel: plain data, the shape beside each pointer. Pointers only borrow; the caller owns all
// memory and keeps it alive until the kernel returns. No kernel allocates.
//
// Row invariance: the bits of an output row depend on that row's inputs alone, never on the number of rows, the other
// rows, the number of threads or where a chunk begins. Every kernel below keeps to it.

namespace winnow {

// A weight matrix of out_features x in_features, packed for streaming by output panels of kPanel:
//   bf16: [ceil(out/64)][in_padded/2][64][2]   f32: [ceil(out/64)][in_padded][64]
// (oneDNN's BA16a64b2a and BA16a64b). in_padded is in_features rounded up to 32; the padding is zero.
//
// A quantised matrix holds codes, and a scale for every output and group of group_size consecutive inputs:
//   fp8: weight = value of the e4m3 code * scale   int8, int4: weight = code * scale - zero * scale
// with unsigned codes and a zero of its own for every scale. Both are rounded to f32 once, and products and sums are
// those of the f32 matrix. Panel by panel its groups follow each other, each as f32 scales [64], for integers i16 zeros
// [64], and codes that lie low bits first by inputs:
//   fp8: [group/2][64] of 16 bits, 2 inputs each   int8: [group/4][64] of 32 bits   int4: [group/8][64] of 32 bits
// The last group ends with in_padded. Where input_order is set, input i of the matrix is input_order[i] of x.
//
// With `mxfp4` codes of int4's layout are e2m1 values (sign, 2 bits of exponent, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3,
// 4, 6), and weight = value of the code * 2^(exponent - 127). A group is 32 inputs and begins with its exponents, bytes
// [64], in the place of scales and zeros.
struct PackedMatrix {
  const void* data = nullptr;
  int out_features = 0;
  int in_features = 0;
  Dtype dtype = Dtype::kBf16;             // kBf16 or kF32; quantised: kF8, kI8 or kI4
  int group_size = 0;                     // quantised: a multiple of 32, at most in_padded
  const uint32_t* input_order = nullptr;  // [in_features] or null
  bool mxfp4 = false;                     // of kI4
};

inline constexpr int kPanel = 64;
constexpr int PackedInFeatures(int in_features) {
  return (in_features + 31) / 32 * 32;
}
constexpr size_t PackedBytes(int out_features, int in_features, Dtype dtype) {
  return static_cast<size_t>((out_features + kPanel - 1) / kPanel) * kPanel * PackedInFeatures(in_features) *
         DtypeBytes(dtype);
}
constexpr bool IsQuantized(Dtype dtype) {
  return dtype == Dtype::kF8 || dtype == Dtype::kI8 || dtype == Dtype::kI4;
}
// Of one panel's scales and zeros of one group.
constexpr size_t GroupScaleBytes(const PackedMatrix& matrix) {
  if (matrix.mxfp4) return kPanel;
  return kPanel * (sizeof(float) + (matrix.dtype == Dtype::kF8 ? 0 : sizeof(int16_t)));
}
constexpr size_t PanelBytes(const PackedMatrix& matrix) {
  const int in_padded = PackedInFeatures(matrix.in_features);
  if (!IsQuantized(matrix.dtype)) return PackedBytes(kPanel, in_padded, matrix.dtype);
  const size_t groups = static_cast<size_t>((in_padded + matrix.group_size - 1) / matrix.group_size);
  return DtypeBytes(matrix.dtype, static_cast<size_t>(in_padded) * kPanel) + groups * GroupScaleBytes(matrix);
}
// A multiple of 64.
constexpr size_t PackedBytes(const PackedMatrix& matrix) {
  return static_cast<size_t>((matrix.out_features + kPanel - 1) / kPanel) * PanelBytes(matrix);
}

// What a matmul does to its input rows first.
enum class InputTransform : uint8_t {
  kNone,
  kRmsNorm,  // x * rsqrt(mean(x^2) + eps) * norm_weight
  // x holds gate then up, 2 * in_features wide:
  kSiluMul,         // silu(gate) * up
  kGeluTanhMul,     // gelu(gate) * up, in the approximation by tanh
  kClampedSiluMul,  // g * sigmoid(1.702 g) * (u + 1) with g = min(gate, 7), u = clamp(up, -7, 7)
};

// y = transform(x) W^T (+ bias), or y += ... when accumulate. Activations are f32 and products are summed
// in f32. With bf16 weights a prefill matmul may round its transformed input to bf16; a decode matmul never does.
struct MatmulParams {
  const float* x = nullptr;  // [num_rows, x_stride]
  int64_t x_stride = 0;
  int num_rows = 0;
  InputTransform transform = InputTransform::kNone;
  const float* norm_weight = nullptr;  // [in_features], kRmsNorm only
  float norm_epsilon = 0;
  PackedMatrix weight;
  const float* bias = nullptr;  // [out_features], may be null
  bool accumulate = false;
  float* y = nullptr;  // [num_rows, y_stride]
  int64_t y_stride = 0;
};

// Splits fused projections into heads, normalises q and k per head (Qwen3), rotates both, and writes K and V as rows.
//
// Rotation of pair i (elements i and i + head_dim/2, Hugging Face's "rotate half") at position p: angle p *
// inv_freq[i], cos and sin times attention_factor. Angles are computed in f64 or by f32 cos/sin of the f32 product p *
// inv_freq[i], as the reference does.
struct RopeAppendParams {
  const float* qkv = nullptr;  // [num_rows, qkv_stride]: q heads, then k heads, then v heads
  int64_t qkv_stride = 0;
  int num_rows = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  const float* q_norm_weight = nullptr;  // [head_dim], may be null
  const float* k_norm_weight = nullptr;  // [head_dim], may be null
  float norm_epsilon = 0;
  bool norms_projection = false;         // all q heads are one vector to the norm, and all k heads: weights as long
  const uint32_t* positions = nullptr;   // [num_rows]
  const float* rope_inv_freq = nullptr;  // [head_dim / 2]
  float rope_attention_factor = 1;
  Dtype kv_dtype = Dtype::kBf16;  // kBf16, kF32 or kI8
  float* q_pre_rope = nullptr;    // [num_rows, num_query_heads, head_dim] after q_norm, before rotation; may be null
  float* q = nullptr;             // [num_rows, num_query_heads, head_dim]
  void* kv_rows = nullptr;        // [num_rows, num_kv_heads] rows of kv_dtype: K after rotation, then V
};

// Norm (optional) of projected queries, by head or of all heads as one vector, in place: [num_rows, num_query_heads,
// head_dim].
struct QueryNormParams {
  float* q = nullptr;
  int num_rows = 0;
  int num_query_heads = 0;
  int head_dim = 0;
  const float* q_norm_weight = nullptr;  // [head_dim], may be null
  float norm_epsilon = 0;
  bool norms_projection = false;  // as in RopeAppendParams
};

// Rotates queries to their positions (see RopeAppendParams).
struct RotateParams {
  const float* q_pre_rope = nullptr;  // [num_rows, num_heads, head_dim]
  int num_rows = 0;
  int num_heads = 0;
  int head_dim = 0;
  const uint32_t* positions = nullptr;   // [num_rows]
  const float* rope_inv_freq = nullptr;  // [head_dim / 2]
  float rope_attention_factor = 1;
  float* q = nullptr;  // [num_rows, num_heads, head_dim]
};

// Completes queries of latent attention, whose latent parts are there already (the query of each head multiplied with
// the head's key projection): brings their turning parts to their places, and rotates them.
struct LatentQueryParams {
  const float* heads = nullptr;  // [num_rows, num_heads, nope_dim + rope_dim] projected queries, of which the last turn
  int num_rows = 0;
  int num_heads = 0;
  int nope_dim = 0;
  LatentShape shape;
  bool interleaved = false;              // pairs of `heads` are neighbours; otherwise rope_dim / 2 apart
  const uint32_t* positions = nullptr;   // [num_rows], with q
  const float* rope_inv_freq = nullptr;  // [rope_dim / 2], with q
  float* q_pre_rope = nullptr;           // [num_rows, num_heads, key_dim]; latent places are left alone
  float* q = nullptr;                    // the same rotated; may be null
};

// Writes rows of latent attention: the latent normalised, the turning part rotated, and the index key, where there is
// one, normalised (mean and variance, weight and bias) and its first rope_dim elements rotated.
struct LatentAppendParams {
  const float* projected = nullptr;  // [num_rows, stride]: latent, turning part
  int64_t stride = 0;
  int num_rows = 0;
  const float* norm_weight = nullptr;  // [rank]
  float norm_epsilon = 0;
  LatentShape shape;
  bool interleaved = false;  // pairs of the turning part are neighbours
  const uint32_t* positions = nullptr;
  const float* rope_inv_freq = nullptr;  // [rope_dim / 2]
  // cos and sin of index keys are multiplied with it, and those of keys with its square: queries do without it.
  float rope_attention_factor = 1;
  const float* index_keys = nullptr;         // [num_rows, row.index_dim]; null without an indexer
  const float* index_norm_weight = nullptr;  // [row.index_dim]
  const float* index_norm_bias = nullptr;
  bool index_interleaved = false;  // pairs of index keys are neighbours, as in RotateLeadingParams
  RowLayout row = {.value_is_key = true};
  Dtype kv_dtype = Dtype::kBf16;
  void* kv_rows = nullptr;  // [num_rows] rows of kv_dtype
};

// Rotates the first rope_dim elements of every head in place; of pairs that are neighbours the first elements come
// first afterwards, which is no matter where both factors of a product are rotated so.
struct RotateLeadingParams {
  float* x = nullptr;  // [num_rows] x stride: [num_heads, head_dim]
  int64_t stride = 0;
  int num_rows = 0;
  int num_heads = 0;
  int head_dim = 0;
  int rope_dim = 0;
  bool interleaved = false;  // pairs are neighbours; otherwise rope_dim / 2 apart
  const uint32_t* positions = nullptr;
  const float* rope_inv_freq = nullptr;
  float rope_attention_factor = 1;
};

// Attention of one query position per row over lists of slots, in each list's order. Partial states (o, lse) of fixed
// runs of kAttentionTile slots are merged in order, so the result of a query head depends on its list alone, and has
// the same bits whoever else reads that list.
//
// Lists lie in the order of their query heads, row by row: a list is read by the next list_heads[i] heads, which belong
// to one kv head.
struct DecodeAttentionParams {
  const float* q = nullptr;  // [num_rows, num_query_heads, head_dim], rotated, not scaled
  int num_rows = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 0;
  const void* slot_pool = nullptr;  // [num_slots] rows of kv_dtype
  Dtype kv_dtype = Dtype::kBf16;
  RowLayout row = {};
  const uint32_t* const* slots = nullptr;  // [num_lists] -> slot ids, position order
  const uint32_t* slot_counts = nullptr;   // [num_lists], each >= 1
  const uint32_t* list_heads = nullptr;    // [num_lists], num_rows * num_query_heads in all; null: a whole group each
  float* out = nullptr;                    // [num_rows, num_query_heads, head_dim]
  float* lse = nullptr;                    // [num_rows, num_query_heads] natural log; may be null
  void* scratch = nullptr;                 // DecodeAttentionScratchBytes
  // Scores that take part in each softmax without a value: [num_query_heads], may be null. The states hold them.
  const float* sinks = nullptr;
};

inline constexpr int kAttentionTile = 256;
// For the partial states of `num_heads` query heads, over all rows, that read `head_slots` slots in all: one that is
// read by four heads counts four times.
constexpr size_t DecodeAttentionScratchBytes(size_t head_slots, size_t num_heads, int head_dim) {
  return (head_slots / kAttentionTile + num_heads) * (head_dim + 2) * sizeof(float) + 64;
}

// Attention of a group of queries over listed rows of one (layer, kv head) where they are stored, as a partial state
// that MergeStates takes. Runs of kAttentionTile listed rows are merged in order, so the result depends on the list
// alone. An empty list gives 0 and -inf.
struct AttendBlocksParams {
  const float* q = nullptr;  // [num_queries, head_dim], rotated, not scaled
  int num_queries = 0;
  int head_dim = 0;
  float scale = 0;
  const void* const* blocks = nullptr;  // [num_blocks] -> [32] rows of kv_dtype
  Dtype kv_dtype = Dtype::kBf16;        // kF32, kBf16 or kI8
  RowLayout row = {};
  const uint32_t* positions = nullptr;  // [num_rows]; ascending reads memory best
  uint32_t num_rows = 0;
  float* o = nullptr;       // [num_queries, head_dim]
  float* lse = nullptr;     // [num_queries] natural log
  void* scratch = nullptr;  // AttendBlocksScratchBytes
};
constexpr size_t AttendBlocksScratchBytes(int num_queries, int head_dim) {
  return static_cast<size_t>(num_queries) * (head_dim + 4) * sizeof(float) + 64;
}

// Merges partial attention states: out = sum_i w_i o_i with w_i = exp(lse_i) / sum exp(lse). Empty states (lse = -inf)
// drop out; all empty gives 0 and -inf.
struct MergeStatesParams {
  const float* const* o = nullptr;    // [num_states] -> [num_rows, head_dim]
  const float* const* lse = nullptr;  // [num_states] -> [num_rows]
  int num_states = 0;
  int num_rows = 0;
  int head_dim = 0;
  float* out = nullptr;      // [num_rows, head_dim]
  float* out_lse = nullptr;  // [num_rows], may be null
};

// Prefill attention takes keys in tiles of so many positions, aligned to absolute positions, one tile after the other.
// Between two tiles a query head is a state of head_dim + 2 numbers: o, not divided; the largest score; the sum of
// weights. Units are the kernel set's own: only the same set goes on from a state, and then every bit is that of an
// attention that was not interrupted.
inline constexpr int kPrefillKeyTile = 128;
constexpr int PrefillStateFloats(int head_dim) {
  return head_dim + 2;
}

// Causal attention of a chunk of one sequence over contiguous rows 0 .. first_position + num_queries - 1.
struct PrefillAttentionParams {
  const float* q = nullptr;  // [num_queries, num_query_heads, head_dim], rotated, not scaled
  int num_queries = 0;
  uint32_t first_position = 0;  // position of query 0
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 0;
  const void* kv = nullptr;    // [num_kv_heads] x kv_head_stride: [position] rows of kv_dtype
  int64_t kv_head_stride = 0;  // in rows
  Dtype kv_dtype = Dtype::kBf16;
  RowLayout row = {};
  float* out = nullptr;  // [num_queries, num_query_heads, head_dim]
  // Rows below first_key, whole tiles and at most first_position, are not read: `state` has them already
  // [num_queries, num_query_heads, PrefillStateFloats], null with first_key 0.
  uint32_t first_key = 0;
  const float* state = nullptr;
  uint32_t window = 0;           // position p attends to (p - window, p]; 0: to all. Then first_key is 0
  const float* sinks = nullptr;  // as in DecodeAttentionParams
};

// The part of prefill attention over keys [first_key, end_key), whole tiles that every query attends to, of one
// (layer, kv head), where they are stored. Goes on from the states that it is given, or begins where first_key is 0.
struct PrefixAttentionParams {
  const float* q = nullptr;  // [num_queries] x q_stride: [group_size, head_dim], rotated, not scaled
  int64_t q_stride = 0;      // in floats
  int num_queries = 0;
  int group_size = 0;  // num_queries * group_size <= kMaxPrefixRows
  int head_dim = 0;
  float scale = 0;
  const void* const* blocks = nullptr;  // [end_key / 32] -> [32] rows of kv_dtype
  Dtype kv_dtype = Dtype::kBf16;
  RowLayout row = {};
  uint32_t first_key = 0, end_key = 0;
  float* state = nullptr;    // [num_queries] x state_stride: [group_size, PrefillStateFloats]
  int64_t state_stride = 0;  // in floats
  void* scratch = nullptr;   // PrefixAttentionScratchBytes
};
inline constexpr int kMaxPrefixRows = 256;
constexpr size_t PrefixAttentionScratchBytes(int head_dim) {
  return (2 * kMaxPrefixRows * (static_cast<size_t>(head_dim) + 1) + 2 * kPrefillKeyTile * head_dim +
          48 * kPrefillKeyTile) *
             sizeof(float) +
         64;
}

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

inline constexpr int kKeyGroup = 16;  // keys that are scored together: half a tile

// scores[i][j] = scale * queries[i] . key[j]
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

// Copies rows: out[i] = blocks[position / 32][position % 32].
struct GatherRowsParams {
  const void* const* blocks = nullptr;  // [num_blocks] -> [32, row_bytes]
  const uint32_t* positions = nullptr;  // [num_rows]
  uint32_t num_rows = 0;
  size_t row_bytes = 0;
  void* out = nullptr;  // [num_rows, row_bytes]
};

// Copies rows: slot_pool[slots[i]] = rows[i].
struct ScatterRowsParams {
  const void* rows = nullptr;  // [num_rows, row_bytes]
  const uint32_t* slots = nullptr;
  uint32_t num_rows = 0;
  size_t row_bytes = 0;
  void* slot_pool = nullptr;
};

// Tokens to rows of activations: out[i] = scale * table[ids[i]].
struct EmbedParams {
  const void* table = nullptr;  // [vocab_size, hidden_size] row-major, as stored in the checkpoint
  Dtype dtype = Dtype::kBf16;   // kF32, kBf16 or kF16
  int hidden_size = 0;
  const uint32_t* token_ids = nullptr;  // [num_rows]
  int num_rows = 0;
  float scale = 1;
  float* out = nullptr;  // [num_rows, hidden_size]
};

// Chooses the experts of tokens: from router logits of a row come probabilities, by softmax over all experts or by a
// sigmoid of each; the `experts_per_token` experts of the largest probability plus `correction` are chosen, ties to the
// lower expert, and written in ascending order with their probabilities as weights. With several groups of consecutive
// experts only the groups_per_token best ones take part, by the sum of their group_scores largest corrected
// probabilities.
struct RouteParams {
  const float* logits = nullptr;  // [num_rows, num_experts]
  int num_rows = 0;
  int num_experts = 0;
  int experts_per_token = 0;
  bool sigmoid = false;
  const float* correction = nullptr;  // [num_experts], may be null
  int groups = 1;                     // divides num_experts
  int groups_per_token = 1;
  int group_scores = 2;         // 1 or 2
  bool normalizes = false;      // the chosen probabilities are divided by their sum
  float scale = 1;              // and then multiplied with this
  uint32_t* experts = nullptr;  // [num_rows, experts_per_token]
  float* weights = nullptr;     // [num_rows, experts_per_token]
};

// Copies rows of activations: out[i] = x[rows[i]].
struct TakeRowsParams {
  const float* x = nullptr;  // [.., width]
  int width = 0;
  const uint32_t* rows = nullptr;  // [num_rows]
  int num_rows = 0;
  float* out = nullptr;  // [num_rows, width]
};

// Adds rows with a factor each: y[rows[i]] += scales[i] * x[i]. No row is named twice.
struct AddScaledRowsParams {
  const float* x = nullptr;  // [num_rows, width]
  int width = 0;
  const uint32_t* rows = nullptr;  // [num_rows]
  const float* scales = nullptr;   // [num_rows]
  int num_rows = 0;
  float* y = nullptr;  // [.., width]
};

// Adds normalised rows: y += x * rsqrt(mean(x^2) + eps) * norm_weight.
struct AddNormedParams {
  const float* x = nullptr;  // [num_rows, width]
  int num_rows = 0;
  int width = 0;
  const float* norm_weight = nullptr;  // [width]
  float norm_epsilon = 0;
  float* y = nullptr;  // [num_rows, width]
};

// Packs a row-major weight [out_features, in_features] of any dtype (used at load, allowed to be slow).
struct PackParams {
  const void* weight = nullptr;
  Dtype dtype = Dtype::kBf16;
  int out_features = 0;
  int in_features = 0;
  Dtype packed_dtype = Dtype::kBf16;
  void* packed = nullptr;  // PackedBytes, 64-byte aligned
};

}  // namespace winnow
