#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "common/base/check.h"
#include "kernels/cpu/key_groups.h"
#include "kernels/params.h"

// Scores of index tiles: keys outside, so that they are read once; up to eight queries by two groups of 16 keys stay in
// registers. A score is one chain over ascending elements, whatever it is computed beside.
//
// Tiles lie anywhere, so hardware prefetching ends with each: a later one is prefetched here, line by line.
//
// A Step says how a step of the tile format (one vector of each group) meets the queries:
//   Word, kWords   what stands for a query in one step
//   Sum            of 16 keys
//   LayOut         a query's words, and behind kMaxScoredHeadDim of them up to kQueryTail more
//   Start          sum[i] to begin with
//   Add            sum[i] += what `lines` hold, for each query q + i * kQueryStride
//   Finish         a sum to scores; `behind` is what follows the group's last line

namespace winnow::avx512 {
namespace {

inline constexpr int kQueryBlock = 8;
inline constexpr int kQueryTail = 16;
// Words; a constant, to be part of addresses; no power of two.
inline constexpr int kQueryStride = kMaxScoredHeadDim + kQueryTail;
inline constexpr int kGroupsAhead = 4;

using GroupPair = const char* [2];

template <typename Step, int kQueries>
inline void ScorePair(const typename Step::Word* q, const GroupPair& groups, const GroupPair& later, int steps,
                      float scale, float* out, int64_t stride) {
  typename Step::Sum sum[kQueries][2];
  for (int i = 0; i < kQueries; ++i) sum[i][0] = sum[i][1] = Step::Start(q + i * kQueryStride);
  const char* lines[2] = {groups[0], groups[1]};
  const char* ahead[2] = {later[0], later[1]};
  const typename Step::Word* words = q;
  for (int s = 0; s < steps; ++s, words += Step::kWords) {
    for (int v = 0; v < 2; ++v) _mm_prefetch(ahead[v], _MM_HINT_T0);
    Step::template Add<kQueries>(words, lines[0], lines[1], sum);
    for (int v = 0; v < 2; ++v) {
      lines[v] += kStepBytes;
      ahead[v] += kStepBytes;
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < 2; ++v) {
      _mm512_storeu_ps(out + i * stride + kKeyGroup * v,
                       Step::Finish(sum[i][v], q + i * kQueryStride, scale, lines[v]));
    }
  }
}

template <typename Step>
void ScoreTiles(const KeyScoreParams& p) {
  using Word = typename Step::Word;
  using PairFn = void (*)(const Word*, const GroupPair&, const GroupPair&, int, float, float*, int64_t);
  static constexpr PairFn kOfQueries[] = {nullptr,
                                          ScorePair<Step, 1>,
                                          ScorePair<Step, 2>,
                                          ScorePair<Step, 3>,
                                          ScorePair<Step, 4>,
                                          ScorePair<Step, 5>,
                                          ScorePair<Step, 6>,
                                          ScorePair<Step, 7>,
                                          ScorePair<Step, 8>};
  constexpr int kMaxBlocks = 4;  // of queries per pass over the keys
  WINNOW_CHECK(p.head_dim % 2 == 0 && p.head_dim <= kMaxScoredHeadDim);
  alignas(64) Word q[kMaxBlocks * kQueryBlock * kQueryStride];
  const KeyGroups groups(p);
  const int steps = TileSteps(p);
  for (int first = 0; first < p.num_queries; first += kMaxBlocks * kQueryBlock) {
    const int count = std::min(p.num_queries - first, kMaxBlocks * kQueryBlock);
    for (int i = 0; i < count; ++i) {
      Step::LayOut(p.queries + static_cast<int64_t>(first + i) * p.head_dim, p.head_dim, q + i * kQueryStride);
    }
    for (int g = 0; g < groups.count(); g += 2) {
      const GroupPair pair = {groups.Lines(g), groups.Lines(g + 1)};
      const GroupPair ahead = {groups.Lines(g + kGroupsAhead), groups.Lines(g + kGroupsAhead + 1)};
      float* out = p.scores + first * p.scores_stride + static_cast<int64_t>(g) * kKeyGroup;
      for (int i = 0; i < count; i += kQueryBlock) {
        kOfQueries[std::min(count - i, kQueryBlock)](q + i * kQueryStride, pair, ahead, steps, p.scale,
                                                     out + i * p.scores_stride, p.scores_stride);
      }
    }
  }
}

// Steps whose sums are f32 dot products.
struct FloatSums {
  using Sum = __m512;
  template <typename Word>
  static __m512 Start(const Word*) {
    return _mm512_setzero_ps();
  }
  template <typename Word>
  static __m512 Finish(__m512 sum, const Word*, float scale, const char*) {
    return _mm512_mul_ps(sum, _mm512_set1_ps(scale));
  }
};

}  // namespace
}  // namespace winnow::avx512
