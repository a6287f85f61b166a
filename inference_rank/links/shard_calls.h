#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "common/tracing/trace_context.h"
#include "inference_rank/links/link_table.h"
#include "inference_rank/links/shard_link.h"
#include "winnow/v1/cache.pb.h"

namespace winnow {

// Where one shard of a sequence is, or is to be.
struct ShardPlace {
  v1::Identity cache_rank;
  KvShard shard;
};

// The calls that concern all cache ranks of a sequence, as one: either every shard is as it was asked for, all of them
// at one position, or the call has failed and nothing of what it opened is left, or will be once `release_later` has
// been through with it. Control threads; they block.
struct ShardCalls {
  LinkTable& links;
  KvLayout layout;
  std::chrono::milliseconds timeout;  // of one call to a cache rank
  // Takes shards that a failed call has opened, or may have, on cache ranks that have not answered: they are to be
  // released once these do.
  std::function<void(std::vector<ShardLink>, uint64_t sequence_id, bool detach)> release_later = nullptr;

  struct Attached {
    std::vector<ShardLink> shards;  // in the order of the places
    uint32_t position = 0;          // rows below are in every shard
    uint32_t cached_tokens = 0;     // of a position within the prompt: those below that the prefix cache had
  };
  // `request` but for channel, shard and the shard's specification, which is cut from `spec`. The position is where the
  // shortest cached prefix ends: shards that have more of it give that up. Cached rows are not pushed: PushPrefix.
  // `trace`, here and below: the span that the cache ranks' spans are to be below; null: there is none.
  absl::StatusOr<Attached> Open(std::span<const ShardPlace> places, const SelectionSpec& spec,
                                v1::OpenSequenceRequest request, const TraceContext* trace = nullptr) const;
  // The position is where all shards restart. NOT_FOUND when one of them is gone: then the others are freed; after
  // other errors those that were attached are detached, so that another rank may attach. One that has not answered may
  // attach the sequence yet, when nobody waits for that any more: it is told to undo the call.
  // Rows follow, all of them or what a working set begins with, unless the position lies within the prompt: then the
  // prompt is to be computed from there, as behind a cached prefix. `request` but for channel, shard and call;
  // NOT_FOUND also means that its salt forbids to go on.
  absl::StatusOr<Attached> Attach(std::span<const ShardPlace> places, v1::AttachSequenceRequest request,
                                  const TraceContext* trace = nullptr) const;
  // A fork on the cache ranks of its source. Shards that forked at another position than `position` are an INTERNAL
  // error.
  absl::StatusOr<Attached> Fork(std::span<const ShardLink> source, v1::ForkSequenceRequest request, uint32_t position,
                                const TraceContext* trace = nullptr) const;
  // Pushes rows [0, sinks) and [first, end) of `num_layers` layers from `first_layer` on; each shard that has some of
  // them ends with RefillDone.
  struct PrefixRows {
    uint32_t sinks = 0, first = 0, end = 0;
  };
  absl::Status PushPrefix(std::span<const ShardLink> shards, uint64_t sequence_id, int first_layer, int num_layers,
                          const PrefixRows& rows) const;
  // Frees, or detaches, what is attached. Returns the shards whose cache ranks have not answered and have to be told
  // (ShardRelease).
  std::vector<ShardLink> Release(std::span<const ShardLink> shards, uint64_t sequence_id, bool detach) const;

 private:
  // Of a call that has failed: the shards that it opened, and those of which it does not know.
  void Undo(std::span<const ShardLink> opened, std::vector<ShardLink> doubtful, uint64_t sequence_id,
            bool detach) const;
};

}  // namespace winnow
