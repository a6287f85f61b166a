#pragma once
#include <cstdint>

#include "kernels/device/params/selection.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// The queries that a cache rank's GPU selects with, and what a plan's positions say of its lists.

// Of a row of a plan that no sequence sits in; every launcher below leaves such a row alone.
inline constexpr uint32_t kNoPosition = ~0u;

struct RopeParams {
  const float* inv_freq = nullptr;  // [head_dim / 2] device
  float attention_factor = 1;
};

// out = RoPE_p(norm(queries + bias)), head by head: what makes queries of projections, of queries before RoPE (without
// bias and norm), and of an inference rank's queries.
struct RotateQueriesParams {
  const float* queries = nullptr;  // [num_rows, num_heads, head_dim]
  int num_rows = 0;
  int num_heads = 0;
  int head_dim = 0;                    // even, at most 256
  const float* bias = nullptr;         // [num_heads, head_dim], may be null
  const float* norm_weight = nullptr;  // [head_dim], may be null
  float norm_epsilon = 0;
  const uint32_t* positions = nullptr;  // [num_rows]
  RopeParams rope;
  float* out = nullptr;  // [num_rows, num_heads, head_dim]
};

// The newest queries of one layer before RoPE: that of position p of a sequence lies at index p % capacity of its ring.
struct QueryRings {
  float* queries = nullptr;     // [num_sequences] x sequence_stride: [capacity, num_heads, head_dim]
  int64_t sequence_stride = 0;  // in floats
  uint32_t capacity = 0;
};

// Puts a query per row into its sequence's ring.
struct StoreQueriesParams {
  const float* queries = nullptr;  // [num_rows, num_heads, head_dim] before RoPE
  int num_rows = 0;
  int num_heads = 0;
  int head_dim = 0;
  const uint32_t* positions = nullptr;  // [num_rows]
  const uint32_t* sequences = nullptr;  // [num_rows]
  QueryRings rings;
};

enum class BlendWeights : uint8_t { kSoftmax, kRidge, kClipped };

// Predicts the query of each row's position from those before it: the newest query y is expressed by the w before it,
// X: (X X^T + lambda I) v = X y with lambda = 1e-3 mean(diag X X^T); the prediction is v^T Z with Z the newest w
// queries. Softmax, or clipping to >= 0 and normalising, makes v a convex blend. With a window of 0, with a single
// query, or where the equations have no solution, it is the newest query. w is what the ring holds, at most `window`.
// Solved in f64 by Cholesky in a fixed order: the bits of a row depend on its queries alone. What comes out is rotated
// to the row's position, or with `post_rope` the past queries are, each to its own, before they are blended.
struct PredictQueriesParams {
  QueryRings rings;
  const uint32_t* first_positions = nullptr;  // [num_sequences] positions below are not in the rings
  const uint32_t* sequences = nullptr;        // [num_rows]
  const uint32_t* positions = nullptr;        // [num_rows], >= 1: the query of position - 1 is in the ring
  int num_rows = 0;
  int num_heads = 0;
  int head_dim = 0;
  uint32_t window = 0;  // at most 32
  BlendWeights weights = BlendWeights::kSoftmax;
  bool post_rope = false;
  RopeParams rope;
  float* out = nullptr;  // [num_rows, num_heads, head_dim] rotated
};

// Opens the next plan: its number, its rows' positions, and what these say of all lists of all layers. Consecutive
// plans of the same sequences need nothing of the host.
struct BeginPlanParams {
  uint32_t* plan = nullptr;            // one word, += 1
  uint32_t* next_positions = nullptr;  // [num_rows] += 1; kNoPosition stays
  // [num_rows] where set, the positions of rows that next_positions does not say to be kNoPosition come from here, and
  // next_positions stays as it is: those of a decode step that the plan is a part of.
  const uint32_t* step_positions = nullptr;
  uint32_t* positions = nullptr;       // [num_rows]
  uint32_t* list_positions = nullptr;  // [num_rows, num_kv_heads]
  SelectionList* lists = nullptr;      // [num_layers, max_rows, num_kv_heads]: num_keys and last are written
  int num_rows = 0;                    // of the max_rows, the first ones
  int max_rows = 0;
  int num_layers = 0;
  int num_kv_heads = 0;
  uint32_t recent_tokens = 0;  // last = RecentStart(position, recent_tokens, the list's first, kBlockTokens)
};

struct PredictKernels {
  void (*rotate_queries)(Stream, const RotateQueriesParams&);
  void (*store_queries)(Stream, const StoreQueriesParams&);
  void (*predict_queries)(Stream, const PredictQueriesParams&);
  void (*begin_plan)(Stream, const BeginPlanParams&);
};
extern const PredictKernels kPredictKernels;

}  // namespace winnow::device
