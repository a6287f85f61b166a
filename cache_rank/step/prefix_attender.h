#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/select/scorer/scratch_buffer.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"
#include "kernels/kernel_table.h"
#include "transport/transport.h"

namespace winnow {

// Attends to the cached prefix of a prompt for the queries of its tail, where the rows are stored, so that not rows
// travel but queries and states. The states are those of prefill attention between two key tiles: what the peer makes
// of them has the bits of an attention over rows that it had itself, given the same kernel set.
//
// Works in pieces of some tiles, so that the owner polls the transport, and lets selections go first, in between; what
// comes of it does not depend on the pieces. Frames of a link are answered in their order, links take turns. Data-plane
// thread; attention runs on the executor.
class PrefixAttender {
 public:
  struct Options {
    // Products of a worker in a piece, about a millisecond: how long a selection may have to wait. At least one tile.
    uint64_t piece_products = uint64_t{1} << 25;
  };

  PrefixAttender(const Options& options, const SelectionModel& model, const KernelTable* kernels, Executor* executor,
                 const SequenceStore* store, Streamer* streamer, CacheRankMetrics* metrics);

  // A kPrefixQueries frame of a layer of the sequence's shard. False when it asks for rows that are not there;
  // INVALID_ARGUMENT for what no correct peer sends.
  absl::StatusOr<bool> Take(InferenceLink& link, const CachedSequence& sequence, int layer, const ReceivedFrame& frame);

  // Does one piece; false when there is none that may be done now.
  bool RunOnce(InferenceLinks& links);

 private:
  // Drops what belongs to nobody any more from the front; the owner of what is there then, or null.
  const CachedSequence* Front(InferenceLink& link);
  void RunPiece(const CachedSequence& sequence, PrefixQueries& work);
  void RunItem(int item, int worker);

  const uint64_t piece_products_;
  const SelectionModel model_;
  const KernelTable* const kernels_;
  Executor* const executor_;
  const SequenceStore* const store_;
  Streamer* const streamer_;
  CacheRankMetrics* const metrics_;
  const int num_workers_;
  uint32_t last_link_ = 0;  // round robin

  // The piece under way.
  const CachedSequence* sequence_ = nullptr;
  PrefixQueries* work_ = nullptr;
  uint32_t end_key_ = 0;
  uint32_t block_queries_ = 0;                     // of one item, which is of one kv head
  int blocks_ = 0;                                 // of queries
  std::vector<ScratchBuffer<std::byte>> scratch_;  // [num_workers]
};

}  // namespace winnow
