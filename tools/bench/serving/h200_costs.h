#pragma once
#include <cstdint>

#include "inference_rank/scheduler/prefill_work.h"

namespace winnow::serving {

// What an iteration of Qwen3-14B (bf16) takes on one H200, in microseconds, from counts. Rates are those of this
// project's kernels and of that machine's links, measured on 21 and 22 November 2026; what was not measured says so.
// Whole steps that were measured come out within a tenth (tests/tools/bench/serving_ladder_test.cc).
struct H200Costs {
  // The model.
  double kv_token_bytes = 163'840;         // 40 layers x 8 kv heads x 512 B
  double index_token_bytes = 5'120;        // cuboids of 32 rows: a sixteenth of the keys
  double activation_token_bytes = 20'480;  // saved between the layers of a segmented prefill: hidden state, f32
  double layers = 40;

  // Memory for KV beside 29.5 GB of weights and workspace: 0.92 of 149.2 GB.
  double kv_memory_bytes = 107.8e9;

  // A decode step with nothing to attend, beside its matmuls.
  double step_overhead_us = 840;
  double dense_attention_bytes_per_us = 4.04e6;  // 0.87 of 4.64 TB/s
  double sparse_attention_bytes_per_us = 2.6e6;  // of whole steps, 8 x 2,048 rows
  double selection_us_per_token = 1.46e-3;       // pages of 32: half of what pages of 16 take at 128k, B = 32
  // Scores, top-k and slots of 40 layers, where a layer waits for its own selection: what a step of `sparseserve` in
  // place (32k, B = 8) takes beside all other terms.
  double selection_chain_us = 1'385;
  // Of everything else in a step, where selection goes on beside it with predicted queries: in place at 40k, B = 4
  // to 12.
  double beside_selection = 1.10;

  double prefill_flops_per_token = 26.4e9;
  double prefill_attention_flops_per_pair = 819'200;  // 4 x 40 heads x 128 x 40 layers
  // Of chunks of 4,096 tokens and more, and of 512 and fewer: both measured; in between by the logarithm.
  double matmul_flops_per_us = 646e6, short_matmul_flops_per_us = 539e6;
  double attention_flops_per_us = 615e6, short_attention_flops_per_us = 412e6;
  // Attention to one earlier token over the matrices of one token.
  PrefillWork prefill_work = {.per_earlier_token = prefill_attention_flops_per_pair / prefill_flops_per_token};

  // Links to host memory.
  double gather_bytes_per_us = 51e3;  // one kernel, rows of 512 B and more (FlashH2D)
  double copies_bytes_per_us = 4e3;   // a copy call per block of 16 KiB, 4 us each: SparseServe's "below 5 GB/s"
  double bulk_bytes_per_us = 55e3;    // contiguous (FlashD2H; histories that are restored whole)
  double scatter_bytes_per_us = 6e3;  // a copy call per block, downwards: SparseServe's "below 6 GB/s"

  // All matmuls of a step of `rows` rows: measured at 1, 8, 32 and 64, then bound by arithmetic.
  double MatmulUs(double rows) const;
  // `tokens` prompt tokens behind `context` others, whose KV is at hand.
  double PrefillUs(double tokens, double context) const;
};

}  // namespace winnow::serving
