#pragma once
#include <cstdint>

#include "kernels/cuda/device/stream.h"

namespace winnow::cuda {

// Causal attention of a chunk of one sequence over rows 0 .. first_position + num_queries - 1, with an optional
// block-sparse pattern per kv head (streaming heads, LServe arXiv:2502.14866 section 3.2). The bits of a row do not
// depend on the chunk it is in. head_dim is 16, 32, 64, 96, 128 or 256; all pointers are aligned to 16 bytes.
struct PrefillAttentionParams {
  const void* q = nullptr;  // [num_queries, num_query_heads, head_dim] bf16, rotated, not scaled
  int num_queries = 0;
  uint32_t first_position = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 0;
  const void* kv = nullptr;                    // [num_kv_heads] x kv_head_stride rows: [position, 2 * head_dim] bf16
  int64_t kv_head_stride = 0;                  // in rows
  const uint32_t* streaming_window = nullptr;  // [num_kv_heads] device: 0 = all, else sinks + that many newest rows
  uint32_t streaming_sinks = 0;
  uint32_t sliding_window = 0;   // without streaming heads: so many newest rows, the query's own included; 0: all
  const float* sinks = nullptr;  // as in DecodeAttentionParams
  void* out = nullptr;           // [num_queries, num_query_heads, head_dim] bf16
};

struct PrefillAttentionKernels {
  void (*prefill_attention)(Stream, const PrefillAttentionParams&);
  // The path of GPUs that are not Hopper's; runs, and can be checked, on those too. Other bits, and slower there.
  void (*prefill_attention_any_gpu)(Stream, const PrefillAttentionParams&);
};
extern const PrefillAttentionKernels kPrefillAttentionKernels;

}  // namespace winnow::cuda
