#pragma once
#include <span>

#include "kernels/cuda/collective/summands.h"

namespace winnow::test {

// A rank's summand to all ranks, word by word.
void GiveSummand(std::span<const float> summand, const cuda::SummandPlaces& places);
// x += those of all ranks, which threads of their own may still be giving.
void TakeSummands(const cuda::AddSummandsParams& p);

}  // namespace winnow::test
