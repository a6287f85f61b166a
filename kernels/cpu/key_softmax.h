#pragma once
#include "kernels/params.h"

// The part of KeySoftmax that all instruction sets share: runs of keys are scored and exponentiated while they lie in
// the first-level cache.

namespace winnow {

// values[j] = exp(values[j] - max) for j in [0, n), with their largest and their sum. Without a finite value: zeros,
// max -inf, sum 0.
using ExpRunFn = void (*)(float* values, int n, float* max, float* sum);

void RunKeySoftmax(const KeySoftmaxParams& params, void (*key_score)(const KeyScoreParams&), ExpRunFn exp_run);

}  // namespace winnow
