#pragma once
#include <memory>
#include <span>
#include <vector>

#include "inference_rank/backend/shard_threads.h"
#include "model/forward.h"

namespace winnow {

// How GPUs share the heads of a model: each the same number of kv heads, in order, with their query heads.
struct HeadShards {
  int num_shards = 1;
  int kv_heads_each = 0;
  int group_size = 0;
  HeadRange kv_heads(int shard) const { return {shard * kv_heads_each, kv_heads_each}; }
};

// The KV side of a pass for GPUs that share the heads: each has one of its own, which shows it its heads alone. What
// they publish lies in one place already, and is published once; slots and corrections are awaited once, and shared
// out. The one that all of them stand for is called on the thread that serves the others, but for what is constant in a
// pass. After a failure of one GPU the others go on with nothing, to the end of their pass.
class ShardedDecodeKv {
 public:
  // `first_slots`: by shard, any slot that it has.
  ShardedDecodeKv(DecodeKv& whole, ShardThreads& threads, const HeadShards& shards,
                  std::span<const uint32_t> first_slots, int num_rows);
  ~ShardedDecodeKv();
  DecodeKv& part(int shard);
  // Does what the threads wait for.
  void Serve();

 private:
  class Part;
  enum class Request { kPublish, kSlots, kPartials };
  // Of shard 0, whose request is that of all; nothing otherwise. False when there will be no answer.
  bool Ask(int shard, Request request, int layer);

  DecodeKv& whole_;
  ShardThreads& threads_;
  const HeadShards shards_;
  const int num_rows_;
  Request request_ = Request::kPublish;
  int layer_ = 0;
  DecodeLayerOutput output_;
  SlotLists lists_;
  std::span<const PartialAttention> partials_;
  std::vector<std::unique_ptr<Part>> parts_;
};

// The same for a chunk of a prompt.
class ShardedPrefillKv {
 public:
  ShardedPrefillKv(PrefillKv& whole, ShardThreads& threads, const HeadShards& shards);
  ~ShardedPrefillKv();
  PrefillKv& part(int shard);
  void Serve();

 private:
  class Part;
  PrefillKv& whole_;
  ShardThreads& threads_;
  int layer_ = 0;
  const std::byte* kv_rows_ = nullptr;
  const float* q_pre_rope_ = nullptr;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace winnow
