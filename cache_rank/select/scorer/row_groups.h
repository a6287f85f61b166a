#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache_rank/select/scorer/page_scorer.h"
#include "kernels/params/keys.h"

namespace winnow {

// An ascending list of 16-row groups (KeyScoreParams::groups): which rows of a sequence are scored. Scores of such a
// list lie in columns, kKeyGroup per group.
class RowGroups {
 public:
  void Clear() { groups_.clear(); }
  // The groups that hold any of rows [first, last), at or after the last group so far.
  void AddRows(uint32_t first, uint32_t last);

  std::span<const uint32_t> groups() const { return groups_; }
  uint32_t columns() const { return static_cast<uint32_t>(groups_.size()) * kKeyGroup; }
  uint32_t Row(uint32_t column) const { return groups_[column / kKeyGroup] * kKeyGroup + column % kKeyGroup; }
  // The first column of a row at or above `row`.
  uint32_t ColumnOf(uint32_t row) const;
  // Adds the groups of another list.
  void Merge(const RowGroups& other, std::vector<uint32_t>& scratch);
  // How many of rows [first, last), both multiples of kKeyGroup, are in the list.
  uint32_t RowsIn(uint32_t first, uint32_t last) const;

 private:
  std::vector<uint32_t> groups_;
};

// Rows that are scored beside the selected ones at length `end`: the sinks, and everything from the last page boundary
// at or below the recent window's start on (rows below it are all in pages that have bounds). Groups are complete ones
// below `end`; rows from ScoredEnd(end) on are the tail, at most kKeyGroup - 1 of them, all in the recent window.
struct FixedRows {
  uint32_t sink_tokens = 0;
  uint32_t recent_start = 0;
  uint32_t page_tokens = 0;
  uint32_t end = 0;

  uint32_t PagesEnd() const { return recent_start / page_tokens * page_tokens; }
  uint32_t ScoredEnd() const { return end / kKeyGroup * kKeyGroup; }
};

// Sinks, the listed units' rows (ascending), and the window.
void ListUnitGroups(const FixedRows& fixed, const PageUnits& units, std::span<const uint32_t> chosen,
                    RowGroups* groups);
// Sinks, the groups of selected rows (ascending), and the window.
void ListRowGroups(const FixedRows& fixed, std::span<const uint32_t> selected, RowGroups* groups);

}  // namespace winnow
