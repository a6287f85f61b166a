#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "common/base/kv_layout.h"
#include "kernels/device/params/exchange_peer.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// Attention of one query position per row over a list of rows of each (row, kv head), in list order. All pointers are
// device memory, so that a captured graph follows what changes from step to step.
//
// Row j of a list lies at the local index
//   j                                                            for j < sinks
//   pool_base + selected[j - sinks]                              for the next selected_count rows
//   ring_base + (recent_begin + j - sinks - selected_count) % ring_tokens   for the rest
// and local index i lies in slot pages[i / 64] * 64 + i % 64 of the slot pool. A dense list has no sinks and no
// selection, ring_base 0 and a ring of at least its length: local index = position.
struct AttentionList {
  uint32_t first_page;  // in `pages`: this list's page table begins here
  uint32_t sinks;
  uint32_t selected_first;  // in `selected`
  uint32_t selected_count;
  uint32_t pool_base;
  uint32_t ring_base;
  uint32_t ring_tokens;   // >= 1
  uint32_t recent_begin;  // position modulo nothing: the kernel reduces it
  uint32_t recent_count;  // at most ring_tokens
  uint32_t num_pages;     // of the page table, to read it ahead; 0 where not known
  constexpr uint32_t count() const { return sinks + selected_count + recent_count; }
  // The above for hosts, j < count(): the slot of the j-th row, of a launch's `selected` and `pages`.
  constexpr uint32_t SlotOfRow(uint32_t j, const uint32_t* selected, const uint32_t* pages) const {
    uint32_t local = j;
    if (j >= sinks + selected_count) {
      local = ring_base + (recent_begin + j - sinks - selected_count) % ring_tokens;
    } else if (j >= sinks) {
      local = pool_base + selected[selected_first + j - sinks];
    }
    return pages[first_page + local / kSlotPageTokens] * kSlotPageTokens + local % kSlotPageTokens;
  }
};

// Rows of 8-bit and 4-bit types hold values v of which scale * v is the element, with one scale for the K half and one
// for the V half. int4: byte i of a half holds v + 8 of element 2i in its low and of element 2i + 1 in its high half.
struct DecodeAttentionParams {
  const float* q = nullptr;  // [num_rows, num_query_heads, head_dim], rotated, not scaled
  int num_rows = 0;          // 1..64; rows whose lists are empty give 0
  int num_query_heads = 0;
  int num_kv_heads = 0;  // group 1..8; with row.value_is_key 1..128
  int head_dim = 0;      // 64, 96, 128 or 256; of kBf16 16 and 32, too; with row.value_is_key as in latent.h
  float scale = 0;
  // [num_query_heads] of scores, natural: one takes part in the softmax of its head, without a value. Null: none.
  const float* sinks = nullptr;
  const void* slot_pool = nullptr;  // [num_slots] rows of kv_dtype
  Dtype kv_dtype = Dtype::kBf16;    // kBf16, kF8, kI8, kI4; the last three with kv_scales
  // With value_is_key rows are bf16, and neither sinks nor remote_flags nor sends are there.
  RowLayout row = {};
  const void* kv_scales = nullptr;       // [num_slots][2] f32: of K, of V
  const AttentionList* lists = nullptr;  // [num_rows, num_kv_heads]
  const uint32_t* pages = nullptr;
  const uint32_t* selected = nullptr;
  // Nothing of `lists`, `pages`, `selected` and the rows that they name was written by the kernel before this one in
  // the stream, but for the last row of each list: they may be read while it still runs.
  bool settled = false;
  // The launch waits for cache ranks itself: `lists`, `selected` and the rows that they name are theirs until the flags
  // of remote_flags.layer are there, which are looked for while the kernels before still run. remote_flags.flag is
  // raised when those have ended: at once where flags are missing, else when nothing waits for it. What `sends` names
  // goes before that. remote_flags.value and what is sent were written before the kernel before. peers null: nothing is
  // awaited; from null: nothing is sent. Blocks hold their multiprocessors while they wait: nothing that is awaited may
  // need those.
  RemoteFlagsParams remote_flags = {};
  SendRowsParams sends = {};
  uint32_t max_count = 0;          // greatest count of any list this launch may meet: fixes the grid, never the result
  void* out = nullptr;             // [num_rows, num_query_heads, head_dim] out_dtype
  Dtype out_dtype = Dtype::kBf16;  // kBf16 or kF32
  float* lse = nullptr;            // [num_rows, num_query_heads] natural log, -inf of an empty list; may be null
  void* scratch = nullptr;         // decode_attention_scratch_bytes; zeroed once when it is allocated
  // How much of a list one thread block takes, 0 (least) to 2 (all), or 3: least, in clusters. -1: chosen. Never the
  // result.
  int unit_level = -1;
};

struct AttentionKernels {
  // Launches of any parameters may share one scratch of the greatest size among them, one after the other.
  size_t (*decode_attention_scratch_bytes)(const DecodeAttentionParams&);
  void (*decode_attention)(Stream, const DecodeAttentionParams&);
  // Rows of bf16 [num_rows, 2 * head_dim] to kv_dtype rows and their scales [num_rows][2] f32 (kF8, kI8, kI4).
  // Symmetric: the scale takes the largest magnitude of a half to 448 (kF8) or 127 (kI8); kI4 as index keys in
  // kernels/params.h. A half whose largest magnitude is below 2^-100 becomes zeros of scale 0, one with an element that
  // is not finite zeros of scale NaN.
  void (*quantize_rows)(Stream, const void* rows, int num_rows, int head_dim, Dtype to, void* out, void* scales);
};
extern const AttentionKernels kAttentionKernels;

}  // namespace winnow::device
