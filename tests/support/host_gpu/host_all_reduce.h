#pragma once
#include <span>

#include "kernels/device/params/all_reduce_terms.h"

namespace winnow::test {

// A rank's term to all ranks, word by word.
void GiveTerm(std::span<const float> term, const device::TermPlaces& places);
// x += those of all ranks, which threads of their own may still be giving.
void TakeTerms(const device::AddTermsParams& p);

}  // namespace winnow::test
