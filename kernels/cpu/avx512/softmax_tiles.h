#pragma once
#include <immintrin.h>

#include "kernels/cpu/avx512/score_tiles.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/key_softmax.h"

// Scores and exponentials in one pass: each run of keys is exponentiated while its scores lie in the first-level cache,
// and memory goes on delivering the next run meanwhile.

namespace winnow::avx512 {
namespace {

inline constexpr float kNoScore = -__builtin_inff();

inline float MaxOf(const float* x, int n) {
  const __m512 lowest = _mm512_set1_ps(kNoScore);
  __m512 max[4] = {lowest, lowest, lowest, lowest};
  for (int j = 0; j < n; j += 64) {
    for (int v = 0; v < 4; ++v) {
      // Of a NaN and a number, the instruction takes its second operand.
      max[v] = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, FirstLanes(n - j - 16 * v), x + j + 16 * v), max[v]);
    }
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3])));
}

// values[j] = exp(values[j] - max) for j in [0, n), with their largest and their sum. What is not a number counts as
// -inf. Without a finite value: zeros, max -inf, sum 0. Prefetches `lines` of later groups on the way, if there are
// any.
inline void ExpRun(float* values, int n, float* max, float* sum, LaterGroups* later, int lines) {
  *max = MaxOf(values, n);
  const bool empty = *max == kNoScore;
  const __m512 offset = _mm512_set1_ps(*max);
  __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  int taken = 0;
  for (int j = 0; j < n; j += 2 * kKeyGroup) {
    for (; taken * kSoftmaxRun < j * lines; ++taken) later->TakeLine();
    for (int v = 0; v < 2; ++v) {
      const __mmask16 mask = empty ? 0 : FirstLanes(n - j - 16 * v);
      float* at = values + j + 16 * v;
      const __m512 exp = ExpOfNegative(mask, _mm512_sub_ps(_mm512_loadu_ps(at), offset));
      _mm512_storeu_ps(at, exp);
      sums[v] = _mm512_add_ps(sums[v], exp);
    }
  }
  *sum = _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
}

// Where nothing is prefetched.
inline void ExpRunAlone(float* values, int n, float* max, float* sum) {
  ExpRun(values, n, max, sum, /*later=*/nullptr, /*lines=*/0);
}

template <typename Step>
void SoftmaxTiles(const KeySoftmaxParams& params) {
  const KeyScoreParams& all = params.score;
  const int num_runs = static_cast<int>(SoftmaxRuns(all.num_keys));
  constexpr int kRunGroups = kSoftmaxRun / kKeyGroup;
  for (int first = 0; first < all.num_queries; first += kMaxQueriesOfPass) {
    KeyScoreParams pass = all;
    pass.queries += static_cast<int64_t>(first) * all.head_dim;
    pass.num_queries = std::min(all.num_queries - first, kMaxQueriesOfPass);
    pass.scores += first * all.scores_stride;
    float* maxima = params.run_scales + static_cast<int64_t>(first) * num_runs;
    float* sums = params.scratch + static_cast<int64_t>(first) * num_runs;
    if (num_runs > 0) {
      const KeyGroups groups(pass);
      const int lines = TileScorer<Step>::Lines(pass);
      LaterGroups later(groups, lines);
      const TileScorer<Step> scorer(pass, groups);
      // Scoring takes about three quarters of the time, and so of the lines.
      const int lines_per_query = kRunGroups / 2 / 4 * lines / pass.num_queries;
      for (int r = 0; r < num_runs; ++r) {
        const int begin = r * kRunGroups;
        scorer.Score(begin, std::min(groups.count(), begin + kRunGroups), later, /*fetching=*/3);
        for (int i = 0; i < pass.num_queries; ++i) {
          ExpRun(pass.scores + i * all.scores_stride + r * kSoftmaxRun,
                 std::min(kSoftmaxRun, all.num_keys - r * kSoftmaxRun), &maxima[i * num_runs + r],
                 &sums[i * num_runs + r], &later, lines_per_query);
        }
      }
    }
    for (int i = 0; i < pass.num_queries; ++i) {
      params.lse[first + i] = NormaliseRuns(maxima + i * num_runs, sums + i * num_runs, num_runs);
    }
  }
}

}  // namespace
}  // namespace winnow::avx512
