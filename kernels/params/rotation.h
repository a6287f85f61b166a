#pragma once
#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/kv_layout.h"
#include "common/base/latent_shape.h"

// Heads of projections: normalised, rotated, written as rows. What holds for all parameters stands in
// kernels/kernel_table.h.

namespace winnow {

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

}  // namespace winnow
