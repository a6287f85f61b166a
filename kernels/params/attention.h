#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/kv_layout.h"

// Attention over rows. What holds for all parameters stands in kernels/kernel_table.h. With a score_cap above 0 a score
// s, which is scale * q.k, becomes score_cap * tanh(s / score_cap) before the softmax.

namespace winnow {

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
  float score_cap = 0;
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
  float score_cap = 0;
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
  float score_cap = 0;
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
  float score_cap = 0;
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

}  // namespace winnow
