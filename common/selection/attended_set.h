#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"

// Where the attended set of a position comes from, list by list: pure functions of a specification, so that both ranks
// agree on who sends and who waits without a frame. A list is layer * num_kv_heads + kv_head. `prompt_tokens` is the
// length of the prompt, `attach_position` the first position that is decoded in this attachment (the prompt's length
// after a prefill, the restart position after an attach). Answers about a position hold for any number of positions
// decoded before it.

namespace winnow {

// The position whose selection, and whose start of the recent window, `position` uses. With reuse_interval r anchors
// are the multiples of r, and the first position of the answer, so that an answer never depends on how the prompt was
// computed.
constexpr uint32_t AnchorPosition(const SelectionSpec& spec, uint32_t position, uint32_t prompt_tokens) {
  if (position <= prompt_tokens) return position;
  return std::max(position - position % spec.reuse_interval, prompt_tokens);
}

// Start of the recent window of `position`. That of the anchor: between anchors the window grows instead of moving, so
// that nothing falls between it and the selection. Where every position competes, an anchor has no window.
constexpr uint32_t WindowStart(const SelectionSpec& spec, uint32_t position, uint32_t prompt_tokens) {
  const uint32_t anchor = AnchorPosition(spec, position, prompt_tokens);
  if (SelectsFromAll(spec)) return anchor + 1;
  return RecentStart(anchor, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
}

// Rows [sink_tokens, PooledEnd) of a list that attends everything lie in its pool when `position` is attended: those
// that have left the recent window, and never the position's own, which is not there before its layer.
constexpr uint32_t PooledEnd(const SelectionSpec& spec, uint32_t position, uint32_t prompt_tokens) {
  return std::max(std::min(WindowStart(spec, position, prompt_tokens), position), spec.sink_tokens);
}

// True for a streaming head: it attends to sinks and recent window, whatever the query, and no other rows of it are
// kept anywhere.
constexpr bool Streams(const SelectionSpec& spec, size_t list) {
  return !IsDense(spec) && HeadBudget(spec, list) == 0;
}

// True when the list attends every row up to `position`: what lies between sinks and recent window, or all of it where
// every position competes, fits its budget, or its anchor is one of the positions that the specification leaves dense.
// Once false it stays false.
constexpr bool AttendsEverything(const SelectionSpec& spec, size_t list, uint32_t position, uint32_t prompt_tokens) {
  if (IsDense(spec)) return true;
  if (AnchorPosition(spec, position, prompt_tokens) < spec.dense_below_tokens && !Streams(spec, list)) return true;
  return WindowStart(spec, position, prompt_tokens) - spec.sink_tokens <= HeadBudget(spec, list);
}

// True when rows are chosen for the list at `position`: neither everything nor nothing is selected.
constexpr bool IsSparse(const SelectionSpec& spec, size_t list, uint32_t position, uint32_t prompt_tokens) {
  return !Streams(spec, list) && !AttendsEverything(spec, list, position, prompt_tokens);
}

// True when the list's selection is found anew at `position`, with a query: what the selector works for. At the other
// positions the selection is that of the anchor.
constexpr bool NeedsSelection(const SelectionSpec& spec, size_t list, uint32_t position, uint32_t prompt_tokens) {
  return spec.predictor != Predictor::kFixed && AnchorPosition(spec, position, prompt_tokens) == position &&
         IsSparse(spec, list, position, prompt_tokens);
}

// True when a Delta entry of the list is sent and awaited at `position`: where its selection changes, and at the first
// position of an attachment, whose pool is empty.
constexpr bool NeedsDelta(const SelectionSpec& spec, size_t list, uint32_t position, uint32_t prompt_tokens,
                          uint32_t attach_position) {
  if (!IsSparse(spec, list, position, prompt_tokens)) return false;
  if (position == attach_position) return true;
  if (spec.predictor == Predictor::kFixed) return AttendsEverything(spec, list, position - 1, prompt_tokens);
  return AnchorPosition(spec, position, prompt_tokens) == position;
}

// Rows of the list's pool that both ranks know without a frame when it becomes sparse at `position`: pool index i holds
// sink_tokens + i, from the positions of this attachment at which the list attended everything.
constexpr uint32_t IdentityRows(const SelectionSpec& spec, uint32_t position, uint32_t prompt_tokens,
                                uint32_t attach_position) {
  return position > attach_position ? PooledEnd(spec, position - 1, prompt_tokens) - spec.sink_tokens : 0;
}

// True when `predicate(list)` holds for a list of [first, first + count).
template <typename Predicate>
constexpr bool AnyList(size_t first, size_t count, Predicate predicate) {
  for (size_t list = first; list < first + count; ++list) {
    if (predicate(list)) return true;
  }
  return false;
}

// Slots of the list's pool for a sequence of at most max_positions: pool_factor budgets, and never less than what may
// be selected, by all query heads of a group of `group_size` together where each has its own rows (list_per), or than
// what positions that are dense attend to.
inline uint32_t PoolSlots(const SelectionSpec& spec, size_t list, uint32_t max_positions, int group_size) {
  // What can leave the recent window; a pool never needs more.
  const uint32_t most = max_positions > spec.sink_tokens ? max_positions - spec.sink_tokens : 0;
  if (IsDense(spec)) return most;
  if (Streams(spec, list)) return 0;
  const uint64_t dense_end = uint64_t{spec.dense_below_tokens} + spec.reuse_interval;
  const double pool = std::max(std::ceil(static_cast<double>(HeadBudget(spec, list)) * spec.pool_factor),
                               spec.dense_below_tokens > 0 ? static_cast<double>(dense_end) : 0.0);
  return static_cast<uint32_t>(std::min<double>(most, std::max<double>(pool, UnionCeiling(spec, list, group_size))));
}

}  // namespace winnow
