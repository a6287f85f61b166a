#include "cache_rank/select/host/select_union.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace winnow {

void UniteLists(std::span<const std::vector<uint32_t>> lists, std::vector<QueryHeadMask>& marks,
                std::vector<uint32_t>* rows, std::vector<QueryHeadMask>* members) {
  WINNOW_CHECK(lists.size() <= kMaxMaskedHeads);
  uint32_t first = UINT32_MAX, end = 0;
  size_t most = 0;
  for (const std::vector<uint32_t>& list : lists) {
    if (list.empty()) continue;
    first = std::min(first, list.front());
    end = std::max(end, list.back() + 1);
    most += list.size();
  }
  constexpr uint32_t kStep = sizeof(uint64_t) / sizeof(QueryHeadMask);
  if (marks.size() < end + kStep) marks.resize(end + kStep);
  for (size_t head = 0; head < lists.size(); ++head) {
    const QueryHeadMask bit = static_cast<QueryHeadMask>(1u << head);
    for (const uint32_t row : lists[head]) marks[row] |= bit;
  }
  // Skips what nobody selected in steps, and writes the rest without branches: each row is written, and kept when the
  // next one does not replace it.
  rows->resize(most + 1);
  members->resize(most + 1);
  size_t count = 0;
  for (uint32_t row = first; row < end; row += kStep) {
    uint64_t step;
    std::memcpy(&step, &marks[row], sizeof step);
    if (step == 0) continue;
    for (uint32_t i = 0; i < kStep; ++i) {
      (*rows)[count] = row + i;
      (*members)[count] = marks[row + i];
      count += marks[row + i] != 0;
    }
    std::memset(&marks[row], 0, sizeof step);
  }
  rows->resize(count);
  members->resize(count);
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

void SelectUnions(const KernelTable& kernels, const SelectionModel& model, std::span<UnionTask> tasks,
                  SelectScratch& scratch) {
  const size_t num_lists = ListsPerHead(*tasks[0].question.spec, model);
  if (scratch.task_lists.size() < tasks.size()) scratch.task_lists.resize(tasks.size());
  std::vector<HeadTask> heads(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const HeadQuestion& question = tasks[i].question;
    heads[i].question = &question;
    if (num_lists == 1) {
      heads[i].lists = std::span(tasks[i].rows, 1);
      continue;
    }
    scratch.task_lists[i].resize(num_lists);
    heads[i].lists = scratch.task_lists[i];
    const bool measures_previous = question.measured != nullptr && question.measured_position != question.position;
    if (measures_previous) SplitUnion(*tasks[i].rows, *tasks[i].members, heads[i].lists);
  }
  SelectHeads(kernels, model, heads, scratch);
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (num_lists > 1) UniteLists(heads[i].lists, scratch.marks, tasks[i].rows, tasks[i].members);
    tasks[i].mass = heads[i].mass;
  }
}

}  // namespace winnow
