#pragma once
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/memory/prefill_arena.h"
#include "inference_rank/metrics.h"
#include "inference_rank/sequence/sequence.h"
#include "inference_rank/step/frame_writer.h"
#include "transport/transport.h"

namespace winnow {

// Queries of the prompt's last positions that the predictor of `spec` needs for its first selections.
uint32_t PromptQueries(const SelectionSpec& spec);

// Rows of one layer in host memory: those of kv head h follow each other from first + h * head_stride bytes on.
struct HostRows {
  const std::byte* first = nullptr;
  size_t head_stride = 0;
};
// Rows from position `first` on of an arena in host memory.
HostRows RowsOfArena(const KvLayout& layout, const PrefillArena& arena, int layer, uint32_t first);
// `kv_rows` [num_kv_heads, count, 2 * head_dim].
HostRows RowsByHead(const KvLayout& layout, const std::byte* kv_rows, uint32_t count);

// Sends what prefill computed of a prompt to the sequence's cache ranks, to each what its shard is of: rows, and the
// last queries where the specification's predictor looks back. Waits while a link's window is used up. Engine thread.
class PromptSender {
 public:
  PromptSender(Transport& transport, const KvLayout& layout, InferenceRankMetrics& metrics, const DataPlaneWaits& waits)
      : transport_(transport), layout_(layout), metrics_(metrics), waits_(waits) {}

  // Rows [first, first + count) of a layer, all kv heads of the model; `rows` begins with position `first`.
  absl::Status SendRows(const Sequence& sequence, const HostRows& rows, int layer, uint32_t first, uint32_t count);
  // The staging place that rows of a layer may be pushed to next, and the push's number; waits while all of
  // them are taken. Null: there is no peer link, or its places are too small for `count` rows.
  struct StagingPlace {
    uint64_t push = 0;
    void* place = nullptr;
  };
  absl::StatusOr<StagingPlace> AwaitStagingPlace(const Sequence& sequence, int layer, uint32_t count);
  // Rows [first, first + count) of a layer lie in that place. Every push is to be told, in order, so that the cache
  // rank frees its place.
  absl::Status SendStaged(const Sequence& sequence, uint64_t push, int layer, uint32_t first, uint32_t count);
  // Of the queries [first, first + count) those that PromptQueries asks for, if any. `q_pre_rope` [count,
  // num_query_heads, head_dim], unrotated, begins with position `first`.
  absl::Status SendQueries(const Sequence& sequence, int layer, uint32_t first, uint32_t count,
                           const float* q_pre_rope);

 private:
  absl::StatusOr<SendBuffer> AwaitBuffer(CacheLink& link, int layer, size_t bytes);
  absl::Status SendRowsOf(const ShardLink& shard, uint64_t sequence_id, const HostRows& rows, int layer, uint32_t first,
                          uint32_t count);

  Transport& transport_;
  const KvLayout layout_;
  InferenceRankMetrics& metrics_;
  const DataPlaneWaits waits_;
};

// Fills the sequence's working set, as it must be for the first position after the prompt, from the prompt's rows.
void LoadPrompt(const KvLayout& layout, const PrefillArena& arena, Sequence& sequence);
// The same of one layer, before FinishLoad.
void LoadPromptLayer(const KvLayout& layout, const PrefillArena& arena, int layer, Sequence& sequence);

}  // namespace winnow
