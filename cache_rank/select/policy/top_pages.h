#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/select/scorer/page_scorer.h"
#include "cache_rank/select/scorer/scratch_buffer.h"
#include "common/selection/page_groups.h"
#include "kernels/kernel_table.h"

namespace winnow {

// The fewest of the most important units that hold at least `budget` rows, ascending, ties to the lower unit; all of
// them when they hold fewer. Returns the rows that they hold.
uint32_t TopPages(const KernelTable& kernels, const PageUnits& units, uint32_t budget, ScratchBuffer<uint32_t>& scratch,
                  std::vector<uint32_t>* chosen);

// The rows of the units of TopPages, ascending: exactly min(budget, rows there are). The least important unit gives its
// first rows only where all would exceed the budget, so that this is the top-k of rows that are as important as their
// unit, ties to the lower position.
void SelectTopPages(const KernelTable& kernels, const PageUnits& units, uint32_t budget,
                    ScratchBuffer<uint32_t>& scratch, std::vector<uint32_t>* chosen, std::vector<uint32_t>* selected);

// Appends positions [first, last).
void AppendRows(uint32_t first, uint32_t last, std::vector<uint32_t>* selected);

// The groups that stay, ascending, of those that hold pages [0, num_pages): by importance[group].
void KeptPageGroups(const KernelTable& kernels, const float* importance, const PageGroups& groups, uint32_t num_pages,
                    ScratchBuffer<uint32_t>& scratch, std::vector<uint32_t>* kept);

}  // namespace winnow
