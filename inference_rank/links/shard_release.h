#pragma once
#include <chrono>
#include <cstdint>
#include <memory>

#include "inference_rank/links/shard_link.h"

namespace winnow {

// The freeing, or detaching, of one shard of a sequence on its cache rank, for as long as that may take: it outlives
// the link, of which it keeps nothing but the gRPC channel. One thread.
class ShardRelease {
 public:
  ShardRelease(const ShardLink& shard, uint64_t sequence_id, bool detach);

  // There is something to be told: the shard is or may be attached, and its cache rank does not come to it by itself.
  // When a link ends, the cache rank detaches what was attached over it. That such a sequence is over, so that nobody
  // will attach to it again, it must be told also then: it may only have stopped for a while, and would keep the
  // sequence for as long as it keeps detached ones.
  bool IsNeeded() const;
  // One call. True when it is over: done, no longer needed, or nothing that another call could change.
  bool Call(std::chrono::milliseconds timeout) const;

 private:
  std::weak_ptr<CacheLink> link_;
  std::shared_ptr<grpc::Channel> channel_;
  v1::ReleaseSequenceRequest request_;
};

}  // namespace winnow
