#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/device/params/selection.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// Appends the newest rows of each (sequence, kv head) to its blocks, and keeps the index: the fp8 key copy and the page
// bounds. A key is copied as e4m3 of k / scale, scale = max|k| / 448 (1 for a key of zeros). Rows of a page are
// appended in order: the bounds of a page start with its first row.
struct AppendParams {
  // [num_lists, rows_per_list, 2 * head_dim] bf16; null: they lie in their blocks in row_pool already, and the index
  // alone is kept
  const void* rows = nullptr;
  int num_lists = 0;
  int rows_per_list = 1;
  int head_dim = 0;                     // 64, 96, 128 or 256
  const uint32_t* positions = nullptr;  // [num_lists] of each list's first row
  const SelectionList* lists = nullptr;
  const uint32_t* blocks = nullptr;
  void* row_pool = nullptr;     // [num_blocks][32][2 * head_dim] bf16; null: the index alone is kept
  void* key_copy = nullptr;     // [num_blocks][32][head_dim] fp8; may be null
  float* key_scales = nullptr;  // [num_blocks][32]
  void* bounds = nullptr;       // PageStore::bounds; may be null
  int page_tokens = 16;
  int64_t page_block_stride = 0;  // PageStore::block_stride
  void* group_bounds = nullptr;   // PageStore::group_bounds, kept with bounds; may be null
  // Set: rows of int8 lie in their blocks, row_pool [num_blocks][32] codes of key and value, and these are their
  // scales, [num_blocks][32][2]. Their pages' bounds alone are kept, rounded outwards to bf16.
  const float* row_scales = nullptr;
};

// What is resident in an inference rank's pool of one list, as the cache rank knows it: all device memory of the cache
// rank, one per (sequence, layer, kv head). Pool indices are below pool_slots.
struct ResidencyList {
  uint32_t* position_of;  // [pool_slots] ~0u where free
  uint32_t* last_plan;    // [pool_slots] plan that selected it last
  uint32_t pool_slots;
};

// Positions of rows that are sent or staged lie below this: a block's shared memory has no room to mark more.
inline constexpr uint32_t kMostPooledPositions = 768 * 1024;

// One delta per list: which selected rows are missing and where they go. A row that is resident keeps its pool index.
// The i-th missing row takes the i-th target: free indices first, then victims, both ascending. Victims are the least
// recently selected (by the distance of plans, which wrap around), ties to the lower index; a row selected by this plan
// is never one. The residency is updated. A selection larger than its pool is cut to the pool's size. Of a list without
// a pool, whose rows are read where they lie, the pool indices are the positions, and nothing is missing.
struct AssignSlotsParams {
  const ResidencyList* residency = nullptr;  // [num_lists] device; position_of null: read in place, as below
  // [num_lists] a list whose word is kNoPosition misses nothing and is otherwise left alone; null: there is none
  const uint32_t* list_positions = nullptr;
  const uint32_t* selected = nullptr;  // [num_lists, max_budget] positions, ascending
  const uint32_t* counts = nullptr;    // [num_lists]
  int num_lists = 0;
  uint32_t max_budget = 0;
  uint32_t max_pool_slots = 0;  // greatest pool_slots this launch may meet: fixes shared memory, never the result
  uint32_t max_positions = 0;   // positions are below this, at most kMostPooledPositions: likewise
  uint32_t plan = 0;            // read from plan_ptr where that is set
  const uint32_t* plan_ptr = nullptr;
  uint32_t* pool_indices = nullptr;     // [num_lists, max_budget] of the selected rows, in position order
  uint32_t* missing = nullptr;          // [num_lists, max_budget] positions to send
  uint32_t* missing_indices = nullptr;  // [num_lists, max_budget] pool indices they go to
  uint32_t* missing_counts = nullptr;   // [num_lists]
};

// Where the rows of a list go: pool index i has the local index l = pool_base + i (see AttentionList), which lies in
// slot pages[l / 64] * 64 + l % 64 of slot_pool.
struct PushTarget {
  void* slot_pool;        // of this device or of a peer's; null: the list is nobody's, and the peer hears nothing of it
  const uint32_t* pages;  // this device's copy of the peer's page table
  uint32_t pool_base;
};

// Flags between two GPUs (or streams): 32-bit words in the waiting side's memory, raised by plain stores of the other.
// A wait ends when the word has reached the value (as numbers that wrap around), when *abort is not 0, or after
// timeout_us; the last two write kWaitAborted or kWaitTimedOut to *error (once), and every later wait that sees *error
// set returns at once: a dead peer never holds a GPU.
inline constexpr uint32_t kWaitAborted = 1, kWaitTimedOut = 2;
struct RaiseParams {
  uint32_t* flag = nullptr;         // mapped peer memory
  const uint32_t* value = nullptr;  // device word that holds what to write (the plan's number)
};
struct WaitParams {
  const uint32_t* flag = nullptr;
  const uint32_t* value = nullptr;
  const uint32_t* abort = nullptr;  // host-mapped or device word; may be null
  uint32_t* error = nullptr;        // host-mapped or device word; may be null
  uint32_t timeout_us = 1000000;
};

// Moves the missing rows of all lists, 16 bytes a lane, shared out over all warps whatever list they belong to.
struct PushParams {
  const SelectionList* lists = nullptr;
  const uint32_t* blocks = nullptr;
  const void* row_pool = nullptr;       // of this device, or pinned host memory (FlashH2D)
  size_t row_bytes = 0;                 // a multiple of 16
  const PushTarget* targets = nullptr;  // [num_lists] device
  const uint32_t* missing = nullptr;
  const uint32_t* missing_indices = nullptr;
  const uint32_t* missing_counts = nullptr;
  int num_lists = 0;
  uint32_t max_budget = 0;
  // The selection itself, to a peer's memory: pool_indices and counts as in AssignSlotsParams; null: not sent.
  const uint32_t* pool_indices = nullptr;
  const uint32_t* counts = nullptr;
  uint32_t* peer_pool_indices = nullptr;  // [num_lists, max_budget]
  uint32_t* peer_counts = nullptr;        // [num_lists], peer_count_stride words apart
  uint32_t peer_count_stride = 1;
  uint64_t* pushed_rows = nullptr;  // counter; may be null
  // Raised when all of that has been stored; flag null: not at all. done_ctas is a word of this device for this alone,
  // zeroed once when it is allocated.
  RaiseParams raise = {};
  uint32_t* done_ctas = nullptr;
  int max_ctas = 0;  // of 256 threads; 0: the whole device
};

struct CacheKernels {
  void (*append)(Stream, const AppendParams&);
  // The bounds of the groups that these rows complete, from their pages', which are there: append does so, too.
  void (*bound_groups)(Stream, const AppendParams&);
  void (*assign_slots)(Stream, const AssignSlotsParams&);
  void (*push)(Stream, const PushParams&);
  void (*raise)(Stream, const RaiseParams&);
  void (*wait)(Stream, const WaitParams&);
  // One launch of `rounds` raises and waits with the peer's launch of the same: what a flag costs, for tests and
  // benches. Round i raises and waits for *value + i; the side that is `first` raises before it waits.
  void (*ping)(Stream, uint32_t* peer_flag, const WaitParams&, uint32_t rounds, bool first);
  // out[i] = row_pool block/row of positions[i]: plain gather of one list or many, for tiers and tests.
  void (*gather)(Stream, const void* row_pool, size_t row_bytes, const SelectionList* lists, const uint32_t* blocks,
                 const uint32_t* positions, const uint32_t* counts, int num_lists, uint32_t max_count, void* out);
};
extern const CacheKernels kCacheKernels;

}  // namespace winnow::device
