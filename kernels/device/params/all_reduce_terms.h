#pragma once
#include <cstdint>

#include "kernels/device/stream.h"

namespace winnow::device {

// What the GPUs of a tensor-parallel group add up in a decode step, without a launch between the products that give it
// and the norm that wants the sum. A product over a part of the weights stores its result, a term, with every GPU
// of the group as its tiles are done (DecodeMatmulParams::term); the launch behind it takes the terms as they
// come.
//
// A word of a term that has not come yet is +0, so that words tell of themselves and nobody needs a flag or a fence.
// A +0 goes as -0, which adds up to the same. Who takes terms leaves zeros for the next.
inline constexpr int kMaxTerms = 4;

// Where a rank's term goes: one place with each rank, also with itself. Zeroed once. Two of them in turn are enough:
// a rank that has ended a sum knows that all ranks have ended the sum before.
struct TermPlaces {
  int num_ranks = 0;
  float* of_rank[kMaxTerms] = {};  // [num_rows, y_stride] of the product
};

// x += term of rank 0 + of rank 1 + ..., in this order on every rank, so that all have the same bits. Then, with a
// weight, out = bf16(rms_norm(x)), the bits of RmsNormParams. The launch before on the stream is the decode_matmul that
// gives this rank's term. Waits end as those of WaitParams do; after one that failed x and out are worthless.
struct AddTermsParams {
  int num_ranks = 0;
  float* terms = nullptr;   // with this rank: [num_ranks] x term_stride, each [num_rows, hidden_size]
  int64_t term_stride = 0;  // floats, a multiple of 4
  float* x = nullptr;       // [num_rows, hidden_size]
  int num_rows = 0;
  int hidden_size = 0;            // a multiple of 4, at most 8192
  const float* weight = nullptr;  // [hidden_size], written before the stream's work began; null: the sum alone
  float epsilon = 0;
  void* out = nullptr;  // [num_rows, hidden_size] bf16
  const uint32_t* abort = nullptr;
  uint32_t* error = nullptr;
  uint32_t timeout_us = 1000000;
};

struct AllReduceKernels {
  void (*add_terms)(Stream, const AddTermsParams&);
};
extern const AllReduceKernels kAllReduceKernels;

}  // namespace winnow::device
