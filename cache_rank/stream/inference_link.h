#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache_rank/stream/device_peer_link.h"
#include "cache_rank/stream/outgoing_item.h"
#include "cache_rank/stream/ring_queue.h"
#include "common/base/kv_shard.h"
#include "common/base/status.h"
#include "transport/transport.h"

namespace winnow {

// A plan of one link, from its StepPlan until newer ones push it out.
struct OpenPlan {
  struct Row {
    uint64_t sequence_id;
    uint32_t attach_epoch;
    uint32_t position;
    KvShard shard;  // what its sections carry
  };
  uint64_t plan = 0;  // 0: none
  std::vector<Row> rows;
};

// Score one (sequence, layer) for `position`, send what was selected for it, or verify that with the real query.
struct SelectionTask {
  uint64_t sequence_id = 0;
  uint32_t attach_epoch = 0;
  uint32_t position = 0;
  uint16_t layer = 0;
  bool verifies = false;
};

// A sequence that waits for a batch row of the link's GPU.
struct BatchRowRequest {
  uint64_t sequence_id = 0;
  uint32_t attach_epoch = 0;
  uint32_t position = 0;  // that it decodes next
  uint32_t batch_row = 0;
  std::vector<uint32_t> pages;
};

// Rows of a prompt that have been pushed to the GPU and are not in host memory yet.
struct StagedRows {
  uint64_t push = 0;
  uint64_t sequence_id = 0;  // 0: nobody's
  uint32_t attach_epoch = 0;
  uint32_t first = 0;
  uint32_t count = 0;
  int layer = 0;
};

// Queries of a prompt at one layer of the shard, and the states of their attention to rows [0, next_key).
struct PrefixQueries {
  uint64_t sequence_id = 0;
  uint32_t attach_epoch = 0;
  uint32_t first = 0;  // position of the first
  uint32_t count = 0;
  int layer = 0;
  uint32_t end_key = 0;  // rows below are attended to
  uint32_t next_key = 0;
  std::vector<float> q;       // [count, num_query_heads, head_dim] rotated
  std::vector<float> states;  // [count, num_query_heads, PrefillStateFloats]
};

// An inference rank's channel and everything that waits on it. Data-plane thread.
struct InferenceLink {
  static constexpr size_t kOpenPlans = 4;

  uint32_t id = 0;  // ExchangeResponse::channel_id; never reused, never 0
  std::string rank;
  std::unique_ptr<Channel> channel;
  std::unique_ptr<DevicePeerLink> peer_link;  // may be null
  RingQueue<BatchRowRequest> batch_row_requests;
  RingQueue<StagedRows> staged;
  RingQueue<uint64_t> to_copy;  // sequences that began with a cached prefix, which the peer link's GPU has not seen
  std::function<void(const absl::Status&)> on_closed;  // called once, when the cache rank gives the link up
  absl::Status failure;                                // set: to be closed outside of Progress

  std::array<OpenPlan, kOpenPlans> plans;
  size_t next_plan = 0;                  // in `plans`: the oldest, to be replaced
  RingQueue<SelectionTask> to_send;      // selected already, the plan has come
  RingQueue<SelectionTask> to_score;     // scored or verified in the order in which their inputs became complete
  RingQueue<SelectionTask> to_prefetch;  // rows to move ahead for `position` + 1, when there is nothing else to do
  RingQueue<std::unique_ptr<PrefixQueries>> to_attend;
  RingQueue<OutgoingItem> outgoing;
  RingQueue<OutgoingItem>
      bulk;  // kRefill, kStateRefill, kRefillDone, kPrefixStates: goes out behind the others, and in half of the window
  bool bulk_waits = false;                         // for room in it
  std::set<std::pair<uint64_t, uint32_t>> fenced;  // (sequence, epoch) that were answered kFenced

  size_t queued() const { return outgoing.size() + bulk.size(); }
  bool HasStaged(uint64_t sequence_id) {
    for (size_t i = 0; i < staged.size(); ++i) {
      if (staged.at(i).sequence_id == sequence_id) return true;
    }
    return false;
  }
  OpenPlan* FindPlan(uint64_t plan) {
    for (OpenPlan& open : plans) {
      if (plan != 0 && open.plan == plan) return &open;
    }
    return nullptr;
  }
  void Fail(absl::Status status) {
    if (failure.ok()) failure = std::move(status);
  }
};

}  // namespace winnow
