#pragma once
#include <span>
#include <vector>

#include "cache_rank/select/host/select_head.h"
#include "common/base/kv_layout.h"

// Selections as pools, residency and transfer know them: one set of rows per kv head. Where each query head has a list
// of its own, that set is the union of the lists, and beside each row lies who selected it.

namespace winnow {

// `rows`: the union of ascending lists, one per query head of a group, ascending. `members` [rows->size()]: the heads
// whose list holds the row, at least one. `marks` is scratch, all zero between calls.
void UniteLists(std::span<const std::vector<uint32_t>> lists, std::vector<QueryHeadMask>& marks,
                std::vector<uint32_t>* rows, std::vector<QueryHeadMask>* members);

// The lists [group_size] that UniteLists made `rows` and `members` of.
void SplitUnion(std::span<const uint32_t> rows, std::span<const QueryHeadMask> members,
                std::span<std::vector<uint32_t>> lists);

// SelectHead for a specification with any list_per. `rows` and `members`, which is empty with one list per kv head,
// hold what SelectHead's lists would: on entry the selection of the position before, where that is measured.
CapturedMassFigure SelectUnion(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                               SelectScratch& scratch, std::vector<uint32_t>* rows,
                               std::vector<QueryHeadMask>* members);

// One of several questions that are answered together, with SelectUnion's `rows` and `members`.
struct UnionTask {
  HeadQuestion question;
  std::vector<uint32_t>* rows = nullptr;
  std::vector<QueryHeadMask>* members = nullptr;
  CapturedMassFigure mass;  // the answer's
};

// SelectUnion as SelectHeads does it.
void SelectUnions(const KernelTable& kernels, const SelectionModel& model, std::span<UnionTask> tasks,
                  SelectScratch& scratch);

}  // namespace winnow
