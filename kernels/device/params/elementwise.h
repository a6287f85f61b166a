#pragma once
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/device/params/activation.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// Rows are independent, and their bits do not depend on the number of rows. Kernels are launched as programmatic
// dependents (dependent_launch.cuh): norm weights and rope_inv_freq may be read while the kernel before still runs, so
// they must have been written before the stream's work began; everything else may come from the kernel before.

// x[i] = scale * embedding[token_ids[i]] as f32. hidden_size is a multiple of 8.
struct EmbedParams {
  const uint32_t* token_ids = nullptr;  // [num_rows] device
  int num_rows = 0;
  const void* embedding = nullptr;  // [vocab, hidden_size] bf16
  int hidden_size = 0;
  float scale = 1;
  float* x = nullptr;  // [num_rows, hidden_size]
};

// out = bf16(x * rsqrt(mean(x^2) + eps) * weight), where there is a bias of x + bias, which goes to `biased`.
// hidden_size is a multiple of 4, at most 32768.
struct RmsNormParams {
  const float* x = nullptr;     // [num_rows, x_stride]
  int64_t x_stride = 0;         // a multiple of 4; 0: hidden_size
  const float* bias = nullptr;  // [hidden_size], may be null
  float* biased = nullptr;      // [num_rows, x_stride], may be x
  int num_rows = 0;
  int hidden_size = 0;
  const float* weight = nullptr;  // null: out = bf16(x)
  float epsilon = 0;
  void* out = nullptr;  // [num_rows, hidden_size] bf16
};

// y = x * rsqrt(mean(x^2) + eps) * weight, or y += that. width is a multiple of 4, at most 32768, and so are strides.
struct NormRowsParams {
  const float* x = nullptr;  // [num_rows, x_stride]
  int64_t x_stride = 0;
  int num_rows = 0;
  int width = 0;
  const float* weight = nullptr;
  float epsilon = 0;
  float* y = nullptr;  // [num_rows, y_stride], may be x
  int64_t y_stride = 0;
  bool accumulate = false;
};

// Splits qkv into heads, adds biases, normalises q and k per head (Qwen3), rotates both, and writes K and V of row i as
// one row of kv_dtype (RowLayout) to kv_destinations[i * num_kv_heads + h] (device addresses: a slot, an arena, a
// peer's mailbox; null drops the row), and, where kv_copy is set, to kv_copy [num_rows, num_kv_heads] rows too.
// head_dim is a multiple of 4 up to 256, above 128 of 8. Where a part of a head turns, elements of q and k come out in
// the order of ModelConfig::HeadShape. Codes and scales of int8 have the bits of the CPU backend's, from the same
// rotated elements.
struct RopeAppendParams {
  const float* qkv = nullptr;  // [num_rows, qkv_stride]
  int64_t qkv_stride = 0;
  const float* qkv_bias = nullptr;  // may be null
  int num_rows = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;                    // elements of a head that turn, which qkv has first; 0: all
  const float* q_norm_weight = nullptr;  // may be null
  const float* k_norm_weight = nullptr;
  float norm_epsilon = 0;
  const uint32_t* positions = nullptr;   // [num_rows] device
  const float* rope_inv_freq = nullptr;  // [head_dim / 2] device
  float rope_attention_factor = 1;
  float* q = nullptr;                      // [num_rows, num_query_heads, head_dim] rotated; may be null
  void* q_bf16 = nullptr;                  // the same rounded to bf16, for prefill attention; may be null
  float* q_pre_rope = nullptr;             // may be null; may be a peer's memory
  int64_t q_pre_rope_stride = 0;           // floats from row to row; 0: no gaps
  Dtype kv_dtype = Dtype::kBf16;           // of rows: kBf16 or kI8
  void* const* kv_destinations = nullptr;  // may be null
  // kI8: destinations are the codes of slots of slot_pool, 2 * head_dim bytes each, whose scales lie apart: [slots][2].
  // Null: scales lie behind a row's codes.
  float* slot_scales = nullptr;
  const void* slot_pool = nullptr;
  void* kv_copy = nullptr;     // may be null
  int64_t kv_copy_stride = 0;  // bytes from row to row; 0: no gaps
  // [num_rows] device memory that no kernel writes, may be null: q_pre_rope and kv_copy are then offsets, not 0, into
  // the region that a row has here. Rows without one are not copied.
  void* const* copy_regions = nullptr;
};

// out = bf16(activation(gate, up)), gate_up [num_rows, 2 * intermediate_size] f32 or bf16; intermediate_size is a
// multiple of 8.
struct GatedMulParams {
  GatedActivation activation = GatedActivation::kSilu;
  const void* gate_up = nullptr;
  Dtype dtype = Dtype::kF32;
  int num_rows = 0;
  int intermediate_size = 0;
  void* out = nullptr;  // [num_rows, intermediate_size] bf16
};

// token_ids[i] = the token that Sampler of inference_rank/sequence/sampler.h draws from the same logits (penalties and
// biases are the caller's): temperature, top_k, top_p, min_p, then a draw by Philox(seed, sample, token index).
// Temperature 0 takes the largest logit, ties to the lower id. Probabilities are summed in fixed point of 2^-44 of the
// largest, in any order, where Sampler sums f64 in descending order: the two differ only where a uniform lies within
// vocab * 2^-45 of the border between two tokens.
struct SampleRow {
  float temperature = 1;
  float top_p = 1;     // 1: off
  uint32_t top_k = 0;  // 0: off
  float min_p = 0;     // 0: off
  uint32_t sample_index = 0;
  uint32_t token_index = 0;
  uint64_t seed = 0;
};
struct SampleParams {
  float* logits = nullptr;  // [num_rows, vocab_size]; of a masked row, what may not be drawn becomes -inf
  int num_rows = 0;
  int vocab_size = 0;
  const SampleRow* rows = nullptr;  // [num_rows] device
  uint32_t* token_ids = nullptr;    // [num_rows] device
  float* logprobs = nullptr;        // [num_rows] natural log of the token's probability at temperature 1; may be null
  void* scratch = nullptr;          // sample_scratch_bytes; null where that is 0
  // Which tokens may be drawn, for rows whose bit is set in masked_rows: bit i % 64 of word i / 64 is token i's. Such
  // rows are among the first 64. At least one token may be drawn.
  const uint64_t* masks = nullptr;  // [num_rows][mask_words] device
  int mask_words = 0;               // (vocab_size + 63) / 64
  uint64_t masked_rows = 0;
};

struct ElementwiseKernels {
  void (*embed)(Stream, const EmbedParams&);
  void (*rms_norm)(Stream, const RmsNormParams&);
  void (*rope_append)(Stream, const RopeAppendParams&);
  void (*norm_rows)(Stream, const NormRowsParams&);
  void (*gated_mul)(Stream, const GatedMulParams&);
  size_t (*sample_scratch_bytes)(int num_rows, int vocab_size);
  void (*sample)(Stream, const SampleParams&);
  // Normal bf16 values of the given standard deviation: element i from Philox4x32(seed, {i / 4, 0, 0}).
  void (*fill_normal)(Stream, void* out, size_t elements, uint64_t seed, float stddev);
};
extern const ElementwiseKernels kElementwiseKernels;

}  // namespace winnow::device
