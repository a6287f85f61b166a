#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/device/params/attention.h"
#include "kernels/device/params/cache.h"
#include "kernels/device/params/elementwise.h"
#include "kernels/device/params/exchange.h"
#include "kernels/device/params/predict.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// What an inference rank's GPU does between the kernels of the forward pass, so that consecutive decode steps need
// nothing of the host but a launch.

// Which rows a list's recent part holds at position p.
enum class RecentWindow : uint8_t {
  kSliding,  // as the row's RowWindow says
  kGrowing,  // [recent_begin, p] with the recent_begin that the list already has, beside the sinks that it has
};

// What the lists of a row of the batch attend to at position p, beside what is selected: the sinks [0, sinks), as far
// as there are so many rows, and [RecentStart(p, recent_tokens, sinks, kBlockTokens), p].
struct RowWindow {
  uint32_t sinks = 0;
  uint32_t recent_tokens = ~0u;  // with so many and no sinks: everything (dense attention)
  // Positions that share the window of the first of them (AnchorPosition in attended_set.h), which grows in between.
  uint32_t reuse_interval = 1;
  uint32_t prompt_tokens = 0;  // where anchors begin; not read with an interval of 1
};

// Opens the next step: its number, its rows' positions, what these say of all lists of all layers, and where the step's
// new rows go. Rows without a sequence have kNoPosition: their lists are emptied and their K and V dropped.
struct BeginStepParams {
  uint32_t* plan = nullptr;            // one word, += 1
  uint32_t* next_positions = nullptr;  // [num_rows] += 1; kNoPosition stays
  uint32_t* positions = nullptr;       // [num_rows]
  SampleRow* sample_rows = nullptr;    // [num_rows] token_index += 1
  // The tokens that enter the steps, newest plan last: that of plan n and row i at [(n % log_steps) * max_rows + i].
  const uint32_t* token_ids = nullptr;  // [num_rows]
  uint32_t* token_log = nullptr;        // may be null
  uint32_t log_steps = 1;

  // [num_layers, max_rows, num_kv_heads, lists_per_kv_head]: sinks, recent_begin and recent_count are written
  AttentionList* lists = nullptr;
  int lists_per_kv_head = 1;
  const uint32_t* pages = nullptr;
  int num_rows = 0;  // of the max_rows, the first ones
  int max_rows = 0;
  int num_layers = 0;
  int num_kv_heads = 0;
  RecentWindow window = RecentWindow::kSliding;
  // [num_layers] device, may be null: the newest rows that lists of a layer with a sliding window attend to, and to
  // nothing else; 0: the layer has none. Of lists that hold all rows by position.
  const uint32_t* layer_windows = nullptr;
  const RowWindow* windows = nullptr;  // [num_rows] kSliding; the lists' rings hold recent_tokens + kBlockTokens - 1
  void* slot_pool = nullptr;
  size_t row_bytes = 0;
  void** kv_destinations = nullptr;  // [num_layers, max_rows, num_kv_heads] slots of the new rows; may be null
  uint32_t* kv_slots = nullptr;      // the same as numbers, ~0u without a sequence; may be null
};

// Copies num_rows rows of row_bytes (a multiple of 16) each to memory of a peer and raises a flag there once they have
// arrived. Strides are in bytes.
struct PublishParams {
  const void* from = nullptr;
  int64_t from_stride = 0;
  void* to = nullptr;
  int64_t to_stride = 0;
  int num_rows = 1;
  size_t row_bytes = 0;
  uint32_t* flag = nullptr;         // in the peer's memory
  const uint32_t* value = nullptr;  // device word that holds what to write
  uint32_t* arrivals = nullptr;     // device word of this launcher's own, zero before the first launch
};

// Positions of a chunk's rows and where their K and V go: row i, kv head h to rows[h * head_stride + first_position +
// i].
struct BeginChunkParams {
  void* rows = nullptr;
  int64_t head_stride = 0;  // in rows
  size_t row_bytes = 0;
  uint32_t first_position = 0;
  int num_rows = 0;
  int num_kv_heads = 0;
  uint32_t* positions = nullptr;     // [num_rows]
  void** kv_destinations = nullptr;  // [num_rows, num_kv_heads]
};

// Copies the rows that lists attend to from where they lie by position into the lists' slots: what a prefill leaves to
// decode steps. Row `position` of list l lies at rows + (l * list_stride + position) * row_bytes. The recent part is
// given here: the next step has yet to say it in the lists.
struct FillSlotsParams {
  const void* rows = nullptr;
  int64_t list_stride = 0;               // in rows
  const AttentionList* lists = nullptr;  // list l's is lists[l / num_kv_heads * lists_layer_stride + l % num_kv_heads]
  int64_t lists_layer_stride = 0;
  int num_layers = 0;
  int num_kv_heads = 0;
  const uint32_t* pages = nullptr;
  const uint32_t* selected = nullptr;            // as attention reads it
  const uint32_t* selected_positions = nullptr;  // the same rows' positions; may be null without selections
  uint32_t recent_begin = 0;
  uint32_t recent_count = 0;
  uint32_t max_count = 0;
  void* slot_pool = nullptr;
  size_t row_bytes = 0;  // a multiple of 16
};

// Rows into slots, where they were made elsewhere (quantised): row i to slot slots[i], unless that is ~0u.
struct ScatterRowsParams {
  const void* rows = nullptr;     // [num_rows] row_bytes, a multiple of 16
  const float* scales = nullptr;  // [num_rows][2]; may be null
  const uint32_t* slots = nullptr;
  int num_rows = 0;
  size_t row_bytes = 0;
  void* slot_pool = nullptr;
  float* slot_scales = nullptr;  // [num_slots][2]
};

struct StepKernels {
  void (*begin_step)(Stream, const BeginStepParams&);
  void (*publish)(Stream, const PublishParams&);
  void (*send_rows)(Stream, const SendRowsParams&);
  void (*signal_and_wait)(Stream, const RemoteFlagsParams&);  // first tells, then waits, in one launch
  void (*begin_chunk)(Stream, const BeginChunkParams&);
  void (*fill_slots)(Stream, const FillSlotsParams&);
  void (*scatter_rows)(Stream, const ScatterRowsParams&);
};
extern const StepKernels kStepKernels;

}  // namespace winnow::device
