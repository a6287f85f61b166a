#include "cache_rank/select_union.h"

#include <algorithm>

#include "common/base/check.h"

namespace winnow {

void UniteLists(std::span<const std::vector<uint32_t>> lists, std::vector<QueryHeadMask>& marks,
                std::vector<uint32_t>* rows, std::vector<QueryHeadMask>* members) {
  WINNOW_CHECK(lists.size() <= kMaxMaskedHeads);
  rows->clear();
  members->clear();
  uint32_t first = UINT32_MAX, end = 0;
  for (const std::vector<uint32_t>& list : lists) {
    if (list.empty()) continue;
    first = std::min(first, list.front());
    end = std::max(end, list.back() + 1);
  }
  if (marks.size() < end) marks.resize(end);
  for (size_t head = 0; head < lists.size(); ++head) {
    const QueryHeadMask bit = static_cast<QueryHeadMask>(1u << head);
    for (const uint32_t row : lists[head]) marks[row] |= bit;
  }
  for (uint32_t row = first; row < end; ++row) {
    if (marks[row] == 0) continue;
    rows->push_back(row);
    members->push_back(marks[row]);
    marks[row] = 0;
  }
}

void SplitUnion(std::span<const uint32_t> rows, std::span<const QueryHeadMask> members,
                std::span<std::vector<uint32_t>> lists) {
  WINNOW_CHECK(rows.size() == members.size());
  for (size_t head = 0; head < lists.size(); ++head) {
    lists[head].clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (members[i] >> head & 1) lists[head].push_back(rows[i]);
    }
  }
}

CapturedMassFigure SelectUnion(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                               SelectScratch& scratch, std::vector<uint32_t>* rows,
                               std::vector<QueryHeadMask>* members) {
  const size_t num_lists = ListsPerHead(*question.spec, model);
  if (num_lists == 1) return SelectHead(kernels, model, question, scratch, std::span(rows, 1));
  scratch.lists.resize(num_lists);
  const bool measures_previous = question.measured != nullptr && question.measured_position != question.position;
  if (measures_previous) SplitUnion(*rows, *members, scratch.lists);
  const CapturedMassFigure mass = SelectHead(kernels, model, question, scratch, scratch.lists);
  UniteLists(scratch.lists, scratch.marks, rows, members);
  return mass;
}

}  // namespace winnow
