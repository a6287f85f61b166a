#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/base/kv_layout.h"

// The data plane's format, shared by writer and reader: fixed-size little-endian headers, then the payload that the
// frame type names. gRPC decides who may send what; these frames only move bytes into memory that the receiver granted.
//
// Positions, plans and slots. An iteration of an inference rank opens with one StepPlan per cache rank, naming its rows
// (one sequence at one position each). Layer, Delta and Watermark frames refer to that plan, their rows in plan order.
// Where a cache rank holds a shard of a sequence, its frames carry that shard's kv heads and layers alone, and each
// section of a Layer frame skips the plan rows whose shard lacks the section's layer. Layers and kv heads in frames are
// always those of the model.
// Per (sequence, layer, kv head) the inference rank's resident rows are the sinks, a ring that holds the newest
// RingTokens positions, and the pool, of as many slots as the specification says (common/selection/attended_set.h). The
// cache rank assigns rows to the pool only, by pool index. While a list attends everything, pool index i holds position
// sink_tokens + i for all positions below the recent window, which both sides know without a frame.

namespace winnow::wire {

inline constexpr uint32_t kMagic = 0x574e4e57;  // "WNNW"
inline constexpr uint16_t kVersion = 10;
inline constexpr size_t kMaxPayloadBytes = size_t{1} << 20;
inline constexpr size_t kRowAlignment = 64;  // row bytes inside a payload start at a multiple of this

enum class FrameType : uint8_t {
  // inference rank -> cache rank
  kStepPlan = 1,       // PlanRow[]
  kLayer = 2,          // per (plan, layer): the sections named by LayerFlags, in that order
  kAppendRange = 3,    // prefill: rows [num_kv_heads][count] of one sequence and layer from apply_position
                       // on
  kPromptQueries = 4,  // prefill: f32 [count][num_query_heads][head_dim] before RoPE, from apply_position on
  kBatchRow = 5,  // asks for batch row `row_count` of the peer link for a sequence that decodes apply_position next:
                  // its slot pages,
                  // uint32_t [num_lists][pages_per_list], as many as reach the pools' ends
  kStaged = 6,    // prefill, instead of kAppendRange: push number `plan` of the peer link holds the rows, in the cache
                  // rank's GPU
  kPrefixQueries = 7,  // prefill: f32 [count][num_query_heads][head_dim] rotated queries of one sequence and layer, of
  // positions from apply_position on; attention over rows [0, flags), whole key tiles, is asked for
  kStepRows = 8,  // rows of steps that needed nothing of the cache rank, outside of plans: StepRowEntry
                  // [row_count], then, from a multiple of kRowAlignment on, the rows of each entry
  kState = 9,  // what a sequence of a hybrid model keeps in the place of rows, of all positions below apply_position:
               // bytes from offset `plan` on; the pieces of one state follow each other
  // cache rank -> inference rank
  // per (plan, layer), possibly several frames: DeltaEntry + its arrays, repeated. With Phase::kPrefetch: outside of
  // plans (plan 0), one sequence and layer, entries that carry streamed rows alone
  kDelta = 16,
  kWatermark = 17,       // WatermarkEntry[]; after the last layer of a plan, and as prefill rows arrive
  kRefill = 18,          // after an attach: rows [num_kv_heads][count] of one layer from apply_position on
  kRefillDone = 19,      // all Refill frames of the sequence have been sent; apply_position = restart position
  kBatchRowAnswer = 21,  // answers kBatchRow: the same sequence, epoch and row_count; kBatchRowGranted in flags, or not
  kStagingFree = 22,     // pushes up to number `plan` have been taken: their places may be used again
  kPartial = 20,  // per (plan, layer) of plan rows that wait for verifications, possibly several frames: PartialEntry +
                  // its state, repeated
  kStateRefill = 24,   // after an attach, ahead of the rows: as kState, what was stored at the restart position
  kPrefixStates = 23,  // answers kPrefixQueries, whose header fields it repeats: f32
                       // [count][num_query_heads][head_dim + 2], states of prefill attention (kernels/params.h)
  // both ways
  kFenced = 32,  // the frame's attach_epoch or incarnation is not the current one; attach_epoch = the current one
  kTransferFailed = 33,  // frames of this sequence and plan (and layer) will not come, or are to be dropped
  // inside the transport
  kCredit = 64,  // payload bytes consumed by the receiver: returns send window
};

enum class Phase : uint8_t {
  kRefine = 0,    // what this step waits for
  kPrefetch = 1,  // may be dropped by the sender before it is posted
};

// LayerFlags: sections of a kLayer payload, each starting at a multiple of kRowAlignment.
inline constexpr uint32_t kSectionAppend = 1;  // [num_rows][num_kv_heads] rows (common/base/kv_layout.h) of layer_first
inline constexpr uint32_t kSectionQuery =
    2;  // f32 [num_rows][num_query_heads][head_dim] before RoPE: queries of layer_first
inline constexpr uint32_t kSectionPrediction = 4;  // f32, same shape: queries predicted for layer `prediction_layer`
inline constexpr uint32_t kSectionHidden = 8;  // f32 [num_rows][hidden_size]: residuals that enter layer_first, from
                                               // which the cache rank predicts queries of layer `prediction_layer`
inline constexpr uint32_t kSectionIndexQuery =
    16;  // f32 [num_rows][KvLayout::index_query_floats]: what the model's indexer scores layer_first with, rotated

struct FrameHeader {
  using Tag = std::array<uint8_t, 16>;

  uint32_t magic;
  uint16_t version;
  FrameType type;
  Phase phase;
  uint64_t frame_number;        // consecutive per channel and direction from 1; a gap or repeat is an error
  uint64_t source_incarnation;  // of the sending process
  uint32_t channel;             // number of the channel at the receiver
  uint32_t flags;               // by type
  uint64_t plan;                // 0 outside plans
  uint64_t sequence_id;         // 0 in frames of a whole plan
  uint32_t attach_epoch;
  uint32_t apply_position;
  uint16_t layer_first;
  uint16_t prediction_layer;
  uint32_t row_count;  // rows of the plan (StepPlan, Layer), rows per kv head (AppendRange, Refill), queries
                       // (PromptQueries, PrefixQueries, PrefixStates), entries (StepRows, Delta, Partial, Watermark)
  uint64_t payload_bytes;
  uint32_t payload_crc32c;  // 0 where `tag` covers the payload
  uint32_t header_crc32c;   // over the header with this field 0
  Tag tag;                  // of links with a key (transport/seal/frame_seal.h); zeros without one
};
static_assert(sizeof(FrameHeader) == 96 && std::is_trivially_copyable_v<FrameHeader>);

// FrameHeader::flags of kStepPlan: the plan runs over the peer link, between the two GPUs
// (kernels/device/params/exchange.h). Rows, and what is selected for them, travel without frames; PlanRow::flags is the
// row of the batch, apply_position the number of the step, which grows from plan to plan of a link.
inline constexpr uint32_t kPlanByPeer = 1;
// Of a wait on the inference rank, a backstop: the other host may have much to do before it begins its part. The end of
// its process ends all waits at once. A cache rank waits longer: what it waits for may wait for another cache rank.
inline constexpr uint32_t kPeerTimeoutUs = 5'000'000;
inline constexpr uint32_t kPeerTimeoutOfCacheUs = 2 * kPeerTimeoutUs;
inline constexpr uint32_t kBatchRowGranted = 1;  // FrameHeader::flags of kBatchRowAnswer

inline constexpr uint32_t kPlanAttendsEverything = 1;  // every list does: no Delta entries for this row
inline constexpr uint32_t kPlanTellsPositions = 2;     // Delta entries of this row name the streamed rows' positions

// Queries in one kPrefixQueries frame: their states fit one frame, and a cache rank works on a frame as a whole.
constexpr uint32_t MaxPrefixQueries(int num_query_heads, int head_dim) {
  const size_t token_bytes = static_cast<size_t>(num_query_heads) * (head_dim + 2) * sizeof(float);
  const size_t most = kMaxPayloadBytes / token_bytes;
  return static_cast<uint32_t>(most < 256 ? most : 256);
}
// kPrefixQueries frames of one sequence and cache rank that may be unanswered: a cache rank keeps their queries.
inline constexpr uint32_t kMaxPrefixFrames = 4;

struct PlanRow {
  uint64_t sequence_id;
  uint32_t attach_epoch;
  uint32_t position;
  uint32_t token_id;          // the row's input token, over a peer link that of the position before: the journal
  uint32_t pool_slots;        // over all lists of the shard: both sides must have worked out the same
  uint32_t grant_generation;  // of those pool slots
  uint32_t flags;             // over a peer link: the row of the batch
  // What of the sequence the cache rank holds.
  uint16_t first_kv_head;
  uint16_t num_kv_heads;
  uint16_t first_layer;
  uint16_t num_layers;
};
static_assert(sizeof(PlanRow) == 40);

// One position of one sequence that attends to everything, which needs no plan and no answer but a watermark. Its rows
// are [num_layers][num_kv_heads] of the shard.
struct StepRowEntry {
  uint64_t sequence_id;
  uint32_t attach_epoch;
  uint32_t position;
  uint32_t token_id;  // the input token of the position: the journal
  // What of the sequence the cache rank holds.
  uint16_t first_kv_head;
  uint16_t num_kv_heads;
  uint16_t first_layer;
  uint16_t num_layers;
  uint32_t reserved;  // 0
};
static_assert(sizeof(StepRowEntry) == 32);

inline constexpr uint16_t kDeltaFirst = 1;        // the entry carries the selection
inline constexpr uint16_t kDeltaLast = 2;         // no more entries of this row and kv head
inline constexpr uint16_t kDeltaMassIsBound = 4;  // captured_mass is a lower bound: not every key was scored
inline constexpr uint16_t kDeltaMembers = 8;      // with kDeltaFirst: each query head has a list of its own
inline constexpr uint16_t kDeltaPositions = 16;   // the positions of the streamed rows follow their pool indices

// One row and kv head of a Delta, or a part of it when it would not fit one frame. After the entry, each array starting
// at a multiple of 4 bytes, the rows at a multiple of kRowAlignment (offsets from the payload's start):
//   uint32_t selected[num_selected]      pool indices of Sel(p, l, h) in position order (first part only)
//   QueryHeadMask members[num_selected]  with kDeltaMembers: query heads of the group whose list holds each, at least
//                                        one; Sel is then the union of their lists
//   uint32_t streamed[num_streamed]      pool indices that the rows below go to
//   uint32_t positions[num_streamed]     with kDeltaPositions: of those rows
//   LocalRow local[num_local]            rows to copy from the ring, because they are still there
//   rows     [num_streamed]
struct DeltaEntry {
  uint32_t plan_row;
  uint16_t kv_head;
  uint16_t flags;
  uint32_t num_selected;
  uint32_t num_streamed;
  uint32_t num_local;
  float captured_mass;  // of the sequence's previous position at this layer and kv head; NaN when not measured
};
static_assert(sizeof(DeltaEntry) == 24);

struct LocalRow {
  uint32_t pool_index;
  uint32_t position;
};

inline constexpr uint16_t kPartialMissedTopK = 1;  // the state is over rows of the real query's top-k that A lacks
inline constexpr uint16_t kPartialWidened = 2;     // it is over more rows than those: the top-k held too little mass

// The verification of one plan row and kv head with the real query, exactly one per (plan row, layer, kv head). After
// the entry, in entries with kPartialMissedTopK or kPartialWidened, the attention state to be merged after that of A:
//   float o[group_size][head_dim]
//   float lse[group_size]          natural log
struct PartialEntry {
  uint32_t plan_row;
  uint16_t kv_head;
  uint16_t flags;
  float mass_before;   // captured by A; exact, as verifications score every key
  float mass_after;    // with the rows of the state
  uint32_t rows_read;  // of the state; 0 without one
};
static_assert(sizeof(PartialEntry) == 20);

constexpr size_t PartialStateBytes(int group_size, int head_dim) {
  return static_cast<size_t>(group_size) * (head_dim + 1) * sizeof(float);
}

struct WatermarkEntry {
  uint64_t sequence_id;
  uint32_t attach_epoch;
  uint32_t watermark;  // rows below are on the cache rank in every layer that it holds
  // For the scheduler. Rows of the blocks that the sequence's last selections read on the cache rank, over all lists;
  // and rows that were read from the large tier for it since it was opened.
  uint64_t working_set_rows;
  uint64_t loaded_rows;
  // Bytes of rows that the cache rank's fast tier can hold of this channel's sequences; kOneTier without tiers.
  uint64_t fast_rows_bytes;
  uint32_t state_position;  // of the newest state that is stored whole; 0 without one
  uint32_t reserved;        // 0
};
static_assert(sizeof(WatermarkEntry) == 48);
inline constexpr uint64_t kOneTier = UINT64_MAX;

// Capacity of the ring of an inference rank: the recent window at its longest, one block that is on its way out,
// rounded up to whole slot pages. At position p, once its row is written, the ring holds positions (p - RingTokens, p].
constexpr uint32_t RingTokens(uint32_t recent_tokens, uint32_t block_tokens, uint32_t slot_page_tokens) {
  return (recent_tokens + 2 * block_tokens + slot_page_tokens - 1) / slot_page_tokens * slot_page_tokens;
}

constexpr size_t AlignUp(size_t n, size_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

}  // namespace winnow::wire
