#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/kv_layout.h"
#include "kernels/device/params/attended_mass.h"
#include "kernels/device/params/attention.h"
#include "kernels/device/params/exchange_peer.h"
#include "kernels/device/params/row_digest.h"

namespace winnow::device {

// What an inference rank's GPU and a cache rank's GPU hold for each other, for one attachment of up to max_rows
// sequences: each side owns regions and maps the other's (same process, handles between processes, or one GPU). All
// writes cross the link as plain stores; a flag that has reached the number of the plan says that what lies before it
// has arrived.
//
// An inference rank's step may have rows of several cache ranks, each row of one of them: row r is row r to both. What
// belongs to rows is then one region that all of these cache ranks map, each writing to its own rows alone; flags and
// counts are a region for each. A plan's number is that of the step, so that a cache rank's plans leave out those in
// which it had no row.
//
// One layer l of plan n, inference rank on the left:
//   hidden[l]  <- residual entering l;      hidden_flags[l] = n   ->  selection for layer l + lookahead
//   rows[l], queries[l] <- after RoPE;      rows_flags[l] = n     ->  append; selection with real queries
//   attention of l waits for delta_flags[l] >= n  <-  rows into slots, pool_indices, lists[].selected_count;
//   delta_flags[l]
// The rows of (p, l) are pushed into slots only once rows_flags of a later layer of p - 1, or hidden_flags[0] of p, has
// been seen: attention (p - 1, l) has read the slots then.
//
// counts of plan n are there when the last of its delta_flags is, and stay until that of plan n + 1.
// masses of plan n, where any is measured, and digests of plan n are there when a flag of the next plan is. They stay
// until plan n + 2 begins.
struct ExchangeShape {
  KvLayout layout;
  int max_rows = 0;  // sequences in a plan
  int hidden_size = 0;
  uint32_t max_budget = 0;
  int lists_per_kv_head = 1;  // selections: one, or one for each query head
  size_t lists_per_layer() const { return static_cast<size_t>(max_rows) * layout.num_kv_heads; }
  size_t masses_per_plan() const { return layout.num_layers * lists_per_layer(); }
  size_t selections_per_layer() const { return lists_per_layer() * lists_per_kv_head; }
  // InferenceInbox::counts go layer by layer in whole 16 bytes.
  size_t counts_per_layer() const { return (selections_per_layer() + 3) / 4 * 4; }
};

// In the cache rank's memory. [layer] strides are those of the arrays' own shapes.
struct CacheInbox {
  float* hidden = nullptr;           // [num_layers][max_rows][hidden_size]
  float* queries = nullptr;          // [num_layers][max_rows][num_query_heads][head_dim] before RoPE
  void* rows = nullptr;              // [num_layers][max_rows][num_kv_heads][2 * head_dim] bf16
  uint32_t* hidden_flags = nullptr;  // [num_layers]
  uint32_t* rows_flags = nullptr;    // [num_layers]
  void* region() const { return hidden; }
};
// Where its arrays begin in the region.
struct CacheInboxOffsets {
  size_t hidden = 0, queries = 0, rows = 0, hidden_flags = 0, rows_flags = 0;
};

// In the inference rank's memory.
struct InferenceInbox {
  void* slot_pool = nullptr;  // the rank's slots: pushes go here
  // [num_layers][max_rows][num_kv_heads][lists_per_kv_head]: selected_count is written by the cache rank
  AttentionList* lists = nullptr;
  uint32_t* pool_indices = nullptr;  // [the same][max_budget]
  // [2][num_layers][max_rows][num_kv_heads], of even and odd plans; an entry is of the plan that it names
  MeasuredMass* masses = nullptr;
  // [3][max_rows][num_kv_heads]: of even and odd plans, by the cache rank; the inference rank's own of the newest plan
  RowDigest* digests = nullptr;
  // Of each cache rank:
  uint32_t* delta_flags = nullptr;  // [num_layers]
  // [2][num_layers][counts_per_layer()]: of the newest plan's lists [max_rows][num_kv_heads], how many rows are
  // selected, and how many of them were pushed
  uint32_t* counts = nullptr;
  uint32_t* counts_flag = nullptr;  // one word
};

// Where prompts' rows are staged in the cache rank's memory: places that pushes take in turn. Push n = 1, 2, ... lies
// in place (n - 1) % kPushStagingPlaces as [num_kv_heads][count][2 * head_dim] bf16 of one layer, count <=
// kPushStagingTokens. Frames say what it is, once it is there, and when its place is free again
// (wire::FrameType::kStaged, kStagingFree).
inline constexpr int kPushStagingPlaces = 16;
inline constexpr uint32_t kPushStagingTokens = 4096;
inline size_t PushStagingPlaceBytes(const KvLayout& layout) {
  return kPushStagingTokens * layout.num_kv_heads * layout.row_bytes();
}
inline size_t PushStagingBytes(const KvLayout& layout) {
  return kPushStagingPlaces * PushStagingPlaceBytes(layout);
}
inline void* PushStagingPlace(const KvLayout& layout, void* region, uint64_t push) {
  return static_cast<std::byte*>(region) + (push - 1) % kPushStagingPlaces * PushStagingPlaceBytes(layout);
}

// Regions are one allocation each, arrays aligned to 256 bytes in the order of the members.
size_t CacheInboxBytes(const ExchangeShape& shape);
CacheInboxOffsets OffsetsInCacheInbox(const ExchangeShape& shape);
CacheInbox CacheInboxAt(const ExchangeShape& shape, void* region);
// What belongs to rows, without the slot pool, which is an allocation of its own; and what belongs to a cache rank.
size_t InferenceInboxBytes(const ExchangeShape& shape);
size_t InferenceFlagsBytes(const ExchangeShape& shape);
InferenceInbox InferenceInboxAt(const ExchangeShape& shape, void* region, void* flags_region, void* slot_pool);

}  // namespace winnow::device
