#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cache_rank/select/host/head_question.h"
#include "cache_rank/select/host/select_scratch.h"
#include "cache_rank/select/scorer/row_groups.h"
#include "cache_rank/select/scorer/token_scorer.h"
#include "common/selection/page_groups.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Query heads of a group that share a list: all of them, or one.
struct ListHeads {
  int first = 0;
  int count = 0;
};

// What the stages of one SelectHead share: the question, what follows from it, its queries, and the worker's scratch,
// whose counters say which keys were read.
struct HeadContext {
  // `queries` and `page_queries` are room for QueryFloats and PageQueryFloats, which PredictQueries fills.
  HeadContext(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
              SelectScratch& scratch, size_t num_lists, float* queries, float* page_queries);
  // The selecting queries, and those of the position before.
  static size_t QueryFloats(const SelectionModel& model) {
    return static_cast<size_t>(2) * model.group_size * model.head_dim;
  }
  static size_t PageQueryFloats(const SelectionModel& model) { return 2 * QueryFloats(model); }
  void PredictQueries() const;

  const KernelTable& kernels;
  const SelectionModel& model;
  const HeadQuestion& question;
  const SelectionSpec& spec;
  SelectScratch& scratch;

  const uint32_t position;
  const uint32_t first_row, last_row;  // [first_row, last_row) are selectable
  const uint32_t page_tokens;          // 0: no pages
  const int group_size;
  const int heads_per_list;
  const bool sums_softmaxes;     // importance is a sum of softmaxes
  const bool scores_every_key;   // selects by scores of all rows; otherwise of pages
  const PageGroups page_groups;  // two-stage, without scores_every_key
  float* const queries;          // [group, head_dim], behind them the measured ones of the position before
  float* const page_queries;     // [group, 2 * head_dim], behind them likewise; without scores_every_key

  bool measures_previous() const { return question.measured != nullptr && question.measured_position != position; }
  bool measures_itself() const { return question.measured != nullptr && !measures_previous(); }

  ListHeads HeadsOf(size_t list) const { return {static_cast<int>(list) * heads_per_list, heads_per_list}; }
  const float* Query(int head) const { return queries + static_cast<size_t>(head) * model.head_dim; }
  // Of the position before, where it is measured.
  const float* PreviousQuery(int head) const { return Query(group_size + head); }

  KeyTable AllKeys() const { return question.index.Keys(position, model.head_dim); }
  KeyTable Pages(const void* const* tiles) const {
    return {tiles, position / page_tokens, 2 * model.head_dim, question.index.page_dtype};
  }
  KeyTable KeysOf(const RowGroups& groups) const;
  // Pages below the recent window's start, and its own.
  uint32_t num_units() const { return page_tokens == 0 ? 0 : last_row / page_tokens + 1; }
  // Rows that are attended whatever is selected, for a recent window that begins there.
  FixedRows Fixed(uint32_t recent_start) const { return {spec.sink_tokens, recent_start, page_tokens, position}; }
  // Two-stage: how many rows of pages are scored.
  uint32_t CandidateRows() const;

  // SoftmaxKeys and ScoreKeys, counted.
  Softmaxes SoftmaxOf(const KeyTable& keys, const float* of_queries, int count, SoftmaxScratch& buffer) const;
  Scores ScoresOf(const KeyTable& keys, const float* of_queries, int count, ScratchBuffer<float>& buffer) const;
  void CountBytes(const KeyTable& keys, uint64_t bytes) const;

 private:
  bool ScoresEveryKey() const;
};

}  // namespace winnow
