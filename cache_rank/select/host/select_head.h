#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache_rank/select/host/head_question.h"
#include "cache_rank/select/host/select_scratch.h"
#include "cache_rank/select/scorer/captured_mass.h"
#include "kernels/kernel_table.h"

namespace winnow {

// Replaces lists [ListsPerHead] by Sel(position), each ascending and within [sinks, start of the recent window);
// returns the captured mass. Steady state allocates nothing.
CapturedMassFigure SelectHead(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                              SelectScratch& scratch, std::span<std::vector<uint32_t>> lists);

// One of several questions that are answered together.
struct HeadTask {
  const HeadQuestion* question = nullptr;
  std::span<std::vector<uint32_t>> lists;
  CapturedMassFigure mass;  // the answer's
};

// SelectHead for sequences at the same (layer, kv head), with equal specifications, and the same answers. Of what is
// scored for all lists of a head, blocks that sequences share are read once.
void SelectHeads(const KernelTable& kernels, const SelectionModel& model, std::span<HeadTask> tasks,
                 SelectScratch& scratch);

}  // namespace winnow
