#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/select/scorer/scratch_buffer.h"
#include "kernels/kernel_table.h"

namespace winnow {

// The `budget` most important positions of [first, last), ties to the lower position, ascending. All of them when they
// fit.
inline void SelectTopK(const KernelTable& kernels, const float* importance, uint32_t first, uint32_t last,
                       uint32_t budget, ScratchBuffer<uint32_t>& scratch, std::vector<uint32_t>* selected) {
  selected->resize(last > first ? std::min(budget, last - first) : 0);
  if (selected->empty()) return;
  kernels.top_k({.values = importance,
                 .first = first,
                 .last = last,
                 .k = budget,
                 .indices = selected->data(),
                 .scratch = scratch.Reserve(TopKScratchWords(last - first))});
}

}  // namespace winnow
