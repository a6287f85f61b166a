#pragma once
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/cuda/stream.h"

namespace winnow::cuda {

// x[i] = embedding[token_ids[i]] as f32.
struct EmbedParams {
  const uint32_t* token_ids = nullptr;  // [num_rows] device
  int num_rows = 0;
  const void* embedding = nullptr;  // [vocab, hidden_size] bf16
  int hidden_size = 0;
  float* x = nullptr;  // [num_rows, hidden_size]
};

// out = bf16(x * rsqrt(mean(x^2) + eps) * weight)
struct RmsNormParams {
  const float* x = nullptr;  // [num_rows, hidden_size]
  int num_rows = 0;
  int hidden_size = 0;
  const float* weight = nullptr;
  float epsilon = 0;
  void* out = nullptr;  // [num_rows, hidden_size] bf16
};

// Splits qkv into heads, adds biases, normalises q and k per head (Qwen3), rotates both, and writes K and V of row i as
// one row of bf16 to kv_destinations[i * num_kv_heads + h] (device addresses: a slot, an arena, a peer's mailbox), and,
// where kv_mirror is set, to kv_mirror [num_rows, num_kv_heads, 2 * head_dim] too.
struct RopeAppendParams {
  const float* qkv = nullptr;  // [num_rows, qkv_stride]
  int64_t qkv_stride = 0;
  const float* qkv_bias = nullptr;  // may be null
  int num_rows = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  const float* q_norm_weight = nullptr;  // may be null
  const float* k_norm_weight = nullptr;
  float norm_epsilon = 0;
  const uint32_t* positions = nullptr;   // [num_rows] device
  const float* rope_inv_freq = nullptr;  // [head_dim / 2] device
  float rope_attention_factor = 1;
  float* q = nullptr;                      // [num_rows, num_query_heads, head_dim] rotated
  float* q_pre_rope = nullptr;             // may be null; may be a peer's memory
  void* const* kv_destinations = nullptr;  // may be null
  void* kv_mirror = nullptr;               // may be null
};

// out = bf16(silu(gate) * up), gate_up [num_rows, 2 * intermediate_size] f32 or bf16.
struct SiluMulParams {
  const void* gate_up = nullptr;
  Dtype dtype = Dtype::kF32;
  int num_rows = 0;
  int intermediate_size = 0;
  void* out = nullptr;  // [num_rows, intermediate_size] bf16
};

// token_ids[i] = the sampled token of row i: Philox(seed, sample, token index) as inference_rank/philox.h counts;
// temperature 0 takes the largest logit, ties to the lower id.
struct SampleRow {
  float temperature;
  float top_p;     // 1: off
  uint32_t top_k;  // 0: off
  uint32_t sample_index;
  uint64_t seed;
  uint64_t token_index;
};
struct SampleParams {
  const float* logits = nullptr;  // [num_rows, vocab_size]
  int num_rows = 0;
  int vocab_size = 0;
  const SampleRow* rows = nullptr;  // [num_rows] device
  uint32_t* token_ids = nullptr;    // [num_rows] device
  float* logprobs = nullptr;        // [num_rows] natural log of the token's probability at temperature 1; may be null
  void* scratch = nullptr;          // sample_scratch_bytes
};

struct ElementwiseKernels {
  void (*embed)(Stream, const EmbedParams&);
  void (*rms_norm)(Stream, const RmsNormParams&);
  void (*rope_append)(Stream, const RopeAppendParams&);
  void (*silu_mul)(Stream, const SiluMulParams&);
  size_t (*sample_scratch_bytes)(int num_rows, int vocab_size);
  void (*sample)(Stream, const SampleParams&);
  // Normal bf16 values of the given standard deviation from Philox(seed, element index).
  void (*fill_normal)(Stream, void* out, size_t elements, uint64_t seed, float stddev);
};
extern const ElementwiseKernels kElementwiseKernels;

}  // namespace winnow::cuda
