#pragma once
#include <cstdint>

#include "common/base/kv_layout.h"
#include "common/base/latent_shape.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// What models with latent attention compute beside the products and norms that all have. Keys and values of heads are
// never computed: a head's query is multiplied with its key projection, and what it attends to, a mean of latents, with
// its value projection. So attention sees one kv head, whose keys (LatentShape) are the values, too.
//
// Rows are independent, and their bits do not depend on the number of rows. All kernels are programmatic dependents
// (dependent_launch.cuh): weights, norms and frequencies must have been written before the stream's work began.

// Both sizes of a latent shape are multiples of this, so that 16 bytes of a key are of one of its parts.
inline constexpr int kLatentPiece = 16;
inline constexpr int kMaxLatentKeyDim = 576;
inline constexpr int kMaxLatentHeads = 128;
// Of a model's own indexer; the elements of a head are a multiple of 8.
inline constexpr int kMaxIndexHeads = 128;
inline constexpr int kMaxIndexDim = 128;

// What the model's own indexer has of rows (kernels/indexer.h): their index keys, normalised and rotated, go behind the
// keys of rows, and what scores them to `queries`.
struct IndexAppendParams {
  int num_heads = 0;  // 0: the model brings none
  int dim = 0;
  const float* keys = nullptr;  // [num_rows, keys_stride]: index key, then a weight of each head
  int64_t keys_stride = 0;
  const float* heads = nullptr;  // [num_rows, heads_stride]: [num_heads, dim]
  int64_t heads_stride = 0;
  const float* norm_weight = nullptr;  // [dim] of the LayerNorm of keys
  const float* norm_bias = nullptr;    // [dim]
  bool interleaved = false;            // turning pairs, the first elements of a head, are neighbours
  float weight_factor = 1;             // that weights are multiplied with
  // [num_rows, num_heads * (dim + 1)]: rotated queries, rounded to bf16 as index keys are, then weights.
  float* queries = nullptr;
};

// Takes queries of heads apart: what does not turn as bf16, for the product with the heads' key projections; what turns
// to its places in q, rotated, and in q_pre_rope. Writes rows: the latent normalised, the turning part rotated, as bf16
// to kv_destinations[row] (null drops the row), and, where kv_copy is set, there too.
struct LatentAppendParams {
  const float* heads = nullptr;  // [num_rows, heads_stride]: [num_heads, nope_dim + rope_dim]
  int64_t heads_stride = 0;
  const float* latents = nullptr;  // [num_rows, latents_stride]: latent, turning part
  int64_t latents_stride = 0;
  const float* latent_bias = nullptr;  // [rank + rope_dim]; may be null
  int num_rows = 0;
  int num_heads = 0;
  int nope_dim = 0;  // a multiple of 8
  LatentShape shape = {};
  bool interleaved = false;            // turning pairs are neighbours; otherwise rope_dim / 2 apart
  const float* norm_weight = nullptr;  // [rank]
  float norm_epsilon = 0;
  const uint32_t* positions = nullptr;   // [num_rows] device
  const float* rope_inv_freq = nullptr;  // [rope_dim / 2] device
  float rope_attention_factor = 1;       // keys take its square, what belongs to an indexer takes it, queries do not
  void* nope = nullptr;                  // [num_rows, num_heads, nope_dim] bf16
  // [num_rows, num_heads, key_dim], of which latent places are left alone; each may be null.
  float* q = nullptr;
  void* q_bf16 = nullptr;
  float* q_pre_rope = nullptr;
  void* const* kv_destinations = nullptr;  // may be null
  void* kv_copy = nullptr;                 // may be null
  int64_t kv_copy_stride = 0;              // elements from row to row; 0: those of a row
  IndexAppendParams index = {};
};

// A product for each head. To latents: y[row, head] at the latent places of a key = W[head] x[row, head], with W
// [num_heads, rank, width]; the places that turn are left alone. From latents: y[row, head] = W[head] times the latent
// places of x[row, head], with W [num_heads, width, rank]. x is bf16, sums are f32; of a row they have one order for
// any number of rows, and another where rows are those of a prompt.
struct HeadProductsParams {
  bool to_latents = false;
  bool of_prompt = false;
  LatentShape shape = {};
  int width = 0;  // a multiple of 8 to latents, else of 2
  int num_rows = 0;
  int num_heads = 0;
  const void* weight = nullptr;  // bf16
  const void* x = nullptr;       // [num_rows, num_heads, width or key_dim] bf16
  // [num_rows, num_heads, key_dim or width]; each may be null.
  float* y = nullptr;
  float* y_again = nullptr;  // the same
  void* y_bf16 = nullptr;    // the same rounded
};

struct LatentKernels {
  void (*append)(Stream, const LatentAppendParams&);
  void (*head_products)(Stream, const HeadProductsParams&);
};
extern const LatentKernels kLatentKernels;

}  // namespace winnow::device
