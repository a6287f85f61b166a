#include "cache_rank/select/policy/top_pages.h"

#include <algorithm>
#include <numeric>

#include "cache_rank/select/policy/top_k.h"

namespace winnow {

uint32_t TopPages(const KernelTable& kernels, const PageUnits& units, uint32_t budget, ScratchBuffer<uint32_t>& scratch,
                  std::vector<uint32_t>* chosen) {
  const uint32_t all = units.end() - units.begin();
  // At most two units are clipped, so this many or a few more are enough.
  uint32_t count = std::min(all, budget / units.unit_tokens + (budget % units.unit_tokens != 0 ? 1 : 0));
  for (;; ++count) {
    SelectTopK(kernels, units.importance, units.begin(), units.end(), count, scratch, chosen);
    uint32_t rows = 0;
    for (const uint32_t unit : *chosen) rows += units.Rows(unit);
    if (rows >= budget || count == all) return rows;
  }
}

void SelectTopPages(const KernelTable& kernels, const PageUnits& units, uint32_t budget,
                    ScratchBuffer<uint32_t>& scratch, std::vector<uint32_t>* chosen, std::vector<uint32_t>* selected) {
  const uint32_t rows = TopPages(kernels, units, budget, scratch, chosen);
  const uint32_t excess = rows > budget ? rows - budget : 0;
  // The last of the least important ones, as ties go to lower positions.
  const auto least = std::min_element(chosen->rbegin(), chosen->rend(), [&](uint32_t a, uint32_t b) {
    return units.importance[a] < units.importance[b];
  });
  selected->clear();
  for (const uint32_t unit : *chosen) {
    AppendRows(units.RowsBegin(unit), units.RowsEnd(unit) - (unit == *least ? excess : 0), selected);
  }
}

void KeptPageGroups(const KernelTable& kernels, const float* importance, const PageGroups& groups, uint32_t num_pages,
                    ScratchBuffer<uint32_t>& scratch, std::vector<uint32_t>* kept) {
  SelectTopK(kernels, importance, groups.begin, groups.end, groups.kept, scratch, kept);
  const size_t best = kept->size();
  kept->resize(groups.begin + best + ((num_pages + kGroupPages - 1) / kGroupPages - groups.end));
  std::copy_backward(kept->begin(), kept->begin() + static_cast<int64_t>(best),
                     kept->begin() + static_cast<int64_t>(groups.begin + best));
  std::iota(kept->begin(), kept->begin() + groups.begin, 0u);
  std::iota(kept->begin() + static_cast<int64_t>(groups.begin + best), kept->end(), groups.end);
}

void AppendRows(uint32_t first, uint32_t last, std::vector<uint32_t>* selected) {
  const size_t size = selected->size();
  selected->resize(size + (last - first));
  std::iota(selected->begin() + static_cast<int64_t>(size), selected->end(), first);
}

}  // namespace winnow
