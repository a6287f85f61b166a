#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "common/base/check.h"
#include "kernels/cpu/avx512/later_groups.h"
#include "kernels/cpu/avx512/unrolled.h"
#include "kernels/cpu/key_groups.h"
#include "kernels/params/keys.h"

// Scores of index tiles: keys outside, so that they are read once; up to eight queries by two groups of 16 keys stay in
// registers. A score is one chain over ascending elements, whatever it is computed beside.
//
// A Step says how a step of the tile format (one vector of each group) meets the queries:
//   Word, kWords   what stands for a query in one step
//   Sum            of 16 keys
//   kLinesBehind   lines of a group behind its steps
//   LayOut         a query's words, and behind kMaxScoredHeadDim of them up to kQueryTail more
//   Start          sum[i] to begin with
//   Add            sum[i] += what the lines a and b hold, for each query q + i * kQueryStride
//   Finish         a sum to scores; `behind` is what follows the group's last step

namespace winnow::avx512 {
namespace {

inline constexpr int kQueryBlock = 8;
inline constexpr int kQueryTail = 16;
// Words; a constant, to be part of addresses; no power of two.
inline constexpr int kQueryStride = kMaxScoredHeadDim + kQueryTail;
inline constexpr int kMaxQueriesOfPass = 32;

// Prefetches the pair `later` on the way, if there is one.
template <typename Step, int kQueries>
inline void ScorePair(const typename Step::Word* q, const GroupPair& pair, const GroupPair& later, int steps,
                      float scale, float* out, int64_t stride) {
  typename Step::Sum sum[kQueries][2];
  Unrolled<kQueries>([&](int i)
                         __attribute__((always_inline)) { sum[i][0] = sum[i][1] = Step::Start(q + i * kQueryStride); });
  const typename Step::Word* words = q;
  const char* a = pair.a;
  const char* b = pair.b;
  int s = 0;
  if (later.a != nullptr) {
    for (; s < steps; ++s, words += Step::kWords, a += kStepBytes, b += kStepBytes) {
      PrefetchLine(later, s);
      Step::template Add<kQueries>(words, a, b, sum);
    }
    if (Step::kLinesBehind > 0) PrefetchLine(later, steps);
  }
  for (; s < steps; ++s, words += Step::kWords, a += kStepBytes, b += kStepBytes) {
    Step::template Add<kQueries>(words, a, b, sum);
  }
  Unrolled<kQueries>([&](int i) __attribute__((always_inline)) {
    const typename Step::Word* query = q + i * kQueryStride;
    _mm512_storeu_ps(out + i * stride, Step::Finish(sum[i][0], query, scale, a));
    _mm512_storeu_ps(out + i * stride + kKeyGroup, Step::Finish(sum[i][1], query, scale, b));
  });
}

// Up to kMaxQueriesOfPass queries, laid out once for all keys.
template <typename Step>
class TileScorer {
 public:
  TileScorer(const KeyScoreParams& params, const KeyGroups& groups)
      : params_(params), groups_(groups), steps_(TileSteps(params)) {
    WINNOW_CHECK(params.head_dim % 2 == 0 && params.head_dim <= kMaxScoredHeadDim);
    WINNOW_CHECK(params.num_queries <= kMaxQueriesOfPass);
    for (int i = 0; i < params.num_queries; ++i) {
      Step::LayOut(params.queries + static_cast<int64_t>(i) * params.head_dim, params.head_dim, q_ + i * kQueryStride);
    }
  }

  static int Lines(const KeyScoreParams& params) { return TileSteps(params) + Step::kLinesBehind; }

  // Groups [begin, end); begin is even, and so is end but for the last. Each of `fetching` in four pairs prefetches a
  // later one.
  void Score(int begin, int end, LaterGroups& later, int fetching) const {
    for (int g = begin; g < end; g += 2) {
      const GroupPair pair = {groups_.Lines(g), groups_.Lines(g + 1)};
      GroupPair next = g / 2 % 4 < fetching ? later.Take() : GroupPair{};
      float* out = params_.scores + static_cast<int64_t>(g) * kKeyGroup;
      for (int i = 0; i < params_.num_queries; i += kQueryBlock) {
        kOfQueries[std::min(params_.num_queries - i, kQueryBlock)](q_ + i * kQueryStride, pair, next, steps_,
                                                                   params_.scale, out + i * params_.scores_stride,
                                                                   params_.scores_stride);
        next = {};
      }
    }
  }

 private:
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

  const KeyScoreParams& params_;
  const KeyGroups& groups_;
  const int steps_;
  alignas(64) Word q_[kMaxQueriesOfPass * kQueryStride];
};

template <typename Step>
void ScoreTiles(const KeyScoreParams& params) {
  if (params.num_keys == 0) return;
  for (int first = 0; first < params.num_queries; first += kMaxQueriesOfPass) {
    KeyScoreParams pass = params;
    pass.queries += static_cast<int64_t>(first) * params.head_dim;
    pass.num_queries = std::min(params.num_queries - first, kMaxQueriesOfPass);
    pass.scores += first * params.scores_stride;
    const KeyGroups groups(pass);
    LaterGroups later(groups, TileScorer<Step>::Lines(pass));
    TileScorer<Step>(pass, groups).Score(0, groups.count(), later, /*fetching=*/4);
  }
}

// Steps whose sums are f32 dot products.
struct FloatSums {
  using Sum = __m512;
  static constexpr int kLinesBehind = 0;
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
