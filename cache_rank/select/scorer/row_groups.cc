#include "cache_rank/select/scorer/row_groups.h"

#include <algorithm>
#include <iterator>

namespace winnow {

void RowGroups::AddRows(uint32_t first, uint32_t last) {
  if (first >= last) return;
  uint32_t group = first / kKeyGroup;
  if (!groups_.empty()) group = std::max(group, groups_.back() + 1);
  for (; group <= (last - 1) / kKeyGroup; ++group) groups_.push_back(group);
}

uint32_t RowGroups::ColumnOf(uint32_t row) const {
  const auto group = std::lower_bound(groups_.begin(), groups_.end(), row / kKeyGroup);
  const auto column = static_cast<uint32_t>(group - groups_.begin()) * kKeyGroup;
  return group != groups_.end() && *group == row / kKeyGroup ? column + row % kKeyGroup : column;
}

void RowGroups::Merge(const RowGroups& other, std::vector<uint32_t>& scratch) {
  scratch.clear();
  std::set_union(groups_.begin(), groups_.end(), other.groups_.begin(), other.groups_.end(),
                 std::back_inserter(scratch));
  groups_.swap(scratch);
}

uint32_t RowGroups::RowsIn(uint32_t first, uint32_t last) const {
  const auto begin = std::lower_bound(groups_.begin(), groups_.end(), first / kKeyGroup);
  return static_cast<uint32_t>(std::lower_bound(begin, groups_.end(), last / kKeyGroup) - begin) * kKeyGroup;
}

void ListUnitGroups(const FixedRows& fixed, const PageUnits& units, std::span<const uint32_t> chosen,
                    RowGroups* groups) {
  groups->Clear();
  groups->AddRows(0, std::min(fixed.sink_tokens, fixed.ScoredEnd()));
  for (const uint32_t unit : chosen) groups->AddRows(units.RowsBegin(unit), units.RowsEnd(unit));
  groups->AddRows(fixed.PagesEnd(), fixed.ScoredEnd());
}

void ListRowGroups(const FixedRows& fixed, std::span<const uint32_t> selected, RowGroups* groups) {
  groups->Clear();
  groups->AddRows(0, std::min(fixed.sink_tokens, fixed.ScoredEnd()));
  for (const uint32_t row : selected) groups->AddRows(row, row + 1);
  groups->AddRows(fixed.PagesEnd(), fixed.ScoredEnd());
}

}  // namespace winnow
