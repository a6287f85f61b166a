#pragma once
#include <span>

#include "kernels/cuda/collective/all_reduce_terms.h"

namespace winnow::test {

// A rank's term to all ranks, word by word.
void GiveTerm(std::span<const float> term, const cuda::TermPlaces& places);
// x += those of all ranks, which threads of their own may still be giving.
void TakeTerms(const cuda::AddTermsParams& p);

}  // namespace winnow::test
