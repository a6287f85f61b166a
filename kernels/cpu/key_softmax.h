#pragma once
#include "kernels/params/keys.h"

// What KeySoftmax has in common: runs of keys are scored and exponentiated while they lie in the first-level cache.

namespace winnow {

// Turns the maxima of a query's runs into their scales; returns the log of the whole sum, -inf of nothing.
float NormaliseRuns(float* run_scales, const float* run_sums, int num_runs);

// values[j] = exp(values[j] - max) for j in [0, n), with their largest and their sum. Without a finite value: zeros,
// max -inf, sum 0.
using ExpRunFn = void (*)(float* values, int n, float* max, float* sum);

void RunScoreSoftmax(const ScoreSoftmaxParams& params, ExpRunFn exp_run);

// For instruction sets that do not fuse the two.
void RunKeySoftmax(const KeySoftmaxParams& params, void (*key_score)(const KeyScoreParams&), ExpRunFn exp_run);

}  // namespace winnow
