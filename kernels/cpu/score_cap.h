#pragma once
#include "kernels/params/keys.h"

// Scores that a cap bends (Gemma 2, arXiv:2408.00118, section 2.1).

namespace winnow {
namespace {

// scores[i] = cap * tanh(scores[i] / cap), by the continued fraction of tanh at half of the argument and the formula
// for the double, which errs by at most 5e-7 of the result. What is not a number stays so. These are plain operations
// without branches: a compiler makes vectors of them for the instruction set of whatever file includes this, and the
// bits are the same in all of them.
inline void CapScores(float* scores, int n, float cap) {
  constexpr float kMostHalf = 4.5f;  // tanh of 9 is 1 in float
  const float half = 0.5f / cap;
  for (int i = 0; i < n; ++i) {
    float x = scores[i] * half;
    x = x < -kMostHalf ? -kMostHalf : x;
    x = x > kMostHalf ? kMostHalf : x;
    const float square = x * x;
    const float p = x * (135135 + square * (17325 + square * (378 + square)));
    const float q = 135135 + square * (62370 + square * (3150 + square * 28));
    scores[i] = cap * (2 * p * q / (p * p + q * q));
  }
}

// False where `params` has no cap. Otherwise `key_score` has scored the keys without it, and the scores are capped.
inline bool ScoreCapped(const KeyScoreParams& params, void (*key_score)(const KeyScoreParams&)) {
  if (params.score_cap == 0) return false;
  KeyScoreParams plain = params;
  plain.score_cap = 0;
  key_score(plain);
  for (int i = 0; i < params.num_queries; ++i) {
    CapScores(params.scores + i * params.scores_stride, params.num_keys, params.score_cap);
  }
  return true;
}

}  // namespace
}  // namespace winnow
