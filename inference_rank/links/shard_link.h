#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/kv_shard.h"
#include "inference_rank/links/cache_link.h"

namespace winnow {

// One shard of a sequence's KV: who holds it, and what is known of it there. A sequence that is not sharded has one,
// of the whole model.
struct ShardLink {
  std::shared_ptr<CacheLink> link;
  KvShard shard;
  uint32_t attach_epoch = 0;   // 0: not attached, nothing to release
  uint64_t doubtful_call = 0;  // an AttachSequence without an answer, which may have been carried out; 0: none
  uint32_t watermark = 0;      // rows below are there, in the shard's layers
  // Of fast memory there, which is said after each step; nullopt: it has not decoded.
  std::optional<uint64_t> working_set_bytes = std::nullopt;
};

}  // namespace winnow
