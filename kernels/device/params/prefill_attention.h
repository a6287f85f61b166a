#pragma once
#include <cstdint>

#include "common/base/kv_layout.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// Causal attention of a chunk of one sequence over rows 0 .. first_position + num_queries - 1, with an optional
// block-sparse pattern per kv head (streaming heads, LServe arXiv:2502.14866 section 3.2). The bits of a row do not
// depend on the chunk it is in. head_dim is 16, 32, 64, 96, 128 or 256, where values are keys as in latent.h; all
// pointers are aligned to 16 bytes.
struct PrefillAttentionParams {
  const void* q = nullptr;  // [num_queries, num_query_heads, head_dim] bf16, rotated, not scaled
  int num_queries = 0;
  uint32_t first_position = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 0;
  const void* kv = nullptr;    // [num_kv_heads] x kv_head_stride rows: [position, 2 * head_dim] bf16
  int64_t kv_head_stride = 0;  // in rows
  RowLayout row = {};          // with value_is_key one kv head, all of it and no sinks
  // Of rows of int8: `kv` has their codes, and these what keys and values are codes times: [num_kv_heads] x
  // kv_head_stride, by position, zeros for kPrefillScalePad positions behind the last row; both or none.
  const float* key_scales = nullptr;
  const float* value_scales = nullptr;
  const uint32_t* streaming_window = nullptr;  // [num_kv_heads] device: 0 = all, else sinks + that many newest rows
  uint32_t streaming_sinks = 0;
  uint32_t sliding_window = 0;   // without streaming heads: so many newest rows, the query's own included; 0: all
  const float* sinks = nullptr;  // as in DecodeAttentionParams
  // With value_is_key, may be null: [num_queries, selected_count] positions, ascending, that each query attends to in
  // the place of all up to its own.
  const uint32_t* selected = nullptr;
  uint32_t selected_count = 0;
  void* out = nullptr;  // [num_queries, num_query_heads, head_dim] bf16
};

inline constexpr int kPrefillScalePad = 128;

// Rows of int8 [num_kv_heads] x head_stride, as RowLayout has them, to what prefill attention reads: their codes as
// bf16, which holds them exactly, and their scales.
struct WidenRowsParams {
  const void* rows = nullptr;
  int64_t head_stride = 0;  // in rows
  uint32_t num_rows = 0;
  int num_kv_heads = 0;
  int head_dim = 0;             // a multiple of 8
  void* kv = nullptr;           // [num_kv_heads] x kv_head_stride: [2 * head_dim] bf16
  float* key_scales = nullptr;  // [num_kv_heads] x kv_head_stride
  float* value_scales = nullptr;
  int64_t kv_head_stride = 0;  // at least num_rows + kPrefillScalePad, a multiple of 4
};

struct PrefillAttentionKernels {
  void (*prefill_attention)(Stream, const PrefillAttentionParams&);
  // The path of GPUs that are not Hopper's; runs, and can be checked, on those too. Other bits, and slower there.
  void (*prefill_attention_any_gpu)(Stream, const PrefillAttentionParams&);
  void (*widen_rows)(Stream, const WidenRowsParams&);
};
extern const PrefillAttentionKernels kPrefillAttentionKernels;

}  // namespace winnow::device
