#pragma once
#include <absl/status/statusor.h>

#include <memory>
#include <string_view>

#include "kernels/params/attention.h"
#include "kernels/params/delta.h"
#include "kernels/params/experts.h"
#include "kernels/params/keys.h"
#include "kernels/params/matmul.h"
#include "kernels/params/rotation.h"
#include "kernels/params/rows.h"

namespace winnow {

// Where kernels run: a thread team on the CPU, a stream on a GPU. Used by one thread at a time, its creator or one that
// took over from it; kernels called on it run in order. Opaque to callers.
class Executor {
 public:
  virtual ~Executor() = default;
};

// The kernels of one backend. Functions are plain pointers, chosen once at start for the machine's instruction set.
//
// Parameters are plain data (kernels/params/), the shape beside each pointer. Pointers only borrow; the caller owns all
// memory and keeps it alive until the kernel returns. No kernel allocates.
//
// Row invariance: the bits of an output row depend on that row's inputs alone, never on the number of rows, the other
// rows, the number of threads or where a chunk begins. Every kernel keeps to it.
struct KernelTable {
  std::string_view
      name;  // part of the fingerprint's numerics: "cpu-portable", "cpu-avx2", "cpu-avx512", "cpu-avx512bf16"

  // Runs on the executor, all its threads; returns when the result is there.
  void (*decode_matmul)(Executor&, const MatmulParams&);   // 1..64 rows: one algorithm for all of them
  void (*prefill_matmul)(Executor&, const MatmulParams&);  // any number of rows: fixed row tiles
  void (*rope_append)(Executor&, const RopeAppendParams&);
  void (*latent_queries)(Executor&, const LatentQueryParams&);
  void (*latent_append)(Executor&, const LatentAppendParams&);
  void (*rotate_leading)(Executor&, const RotateLeadingParams&);
  void (*decode_attention)(Executor&, const DecodeAttentionParams&);
  void (*prefill_attention)(Executor&, const PrefillAttentionParams&);
  void (*route_experts)(Executor&, const RouteParams&);
  void (*take_rows)(Executor&, const TakeRowsParams&);
  void (*add_scaled_rows)(Executor&, const AddScaledRowsParams&);
  void (*add_normed)(Executor&, const AddNormedParams&);
  void (*gated_delta)(Executor&, const GatedDeltaParams&);
  void (*gate_heads)(Executor&, const GateHeadsParams&);

  // Run on the calling thread alone; callers parallelise over heads and sequences with `parallel_for`.
  void (*query_norm)(const QueryNormParams&);
  void (*rotate)(const RotateParams&);
  void (*attend_blocks)(const AttendBlocksParams&);
  void (*prefix_attention)(const PrefixAttentionParams&);
  void (*merge_states)(const MergeStatesParams&);
  void (*index_keys)(const IndexKeysParams&);
  void (*key_score)(const KeyScoreParams&);
  void (*key_softmax)(const KeySoftmaxParams&);
  void (*score_softmax)(const ScoreSoftmaxParams&);
  void (*softmax_sum)(const SoftmaxSumParams&);
  void (*top_k)(const TopKParams&);
  void (*gather_rows)(const GatherRowsParams&);
  void (*scatter_rows)(const ScatterRowsParams&);
  void (*embed)(const EmbedParams&);
  void (*pack)(const PackParams&);

  // Calls body(context, index, worker) for index in [0, count), spread over the executor's threads; worker <
  // num_workers.
  void (*parallel_for)(Executor&, int count, void (*body)(void* context, int index, int worker), void* context);
  int (*num_workers)(const Executor&);

  // `num_threads` threads, the caller's included; >= 1.
  std::unique_ptr<Executor> (*new_executor)(int num_threads);
};

// The best CPU table for this machine, or the named one ("portable", "avx2", "avx512", "avx512bf16"; "auto");
// INVALID_ARGUMENT names the instruction set that is missing.
absl::StatusOr<const KernelTable*> CpuKernels(std::string_view isa = "auto");

}  // namespace winnow
