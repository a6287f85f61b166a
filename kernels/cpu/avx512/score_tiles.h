#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/params.h"

// Scores of index tiles: tiles outside, so that keys are read once; up to eight queries by the two vectors of a tile
// stay in registers. A score is one chain of FMA over ascending elements, whatever it is computed beside.
//
// Blocks lie anywhere, so hardware prefetching ends with each tile: a later one is prefetched here, line by line.
//
// A Step says how 32 keys' next element or pair (two vectors) meets the queries:
//   Word, kWords   what stands for a query in one step
//   kElements      elements of head_dim that a step takes
//   LayOut         a query's words
//   Add            sum[i] += what `lines` holds, for each query q + i * kQueryStride

namespace winnow::avx512 {
namespace {

inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kQueryBlock = 8;
inline constexpr int kQueryStride = kMaxHeadDim + 16;  // words; a constant, to be part of addresses; no power of two
inline constexpr int kTilesAhead = 2;

template <typename Step, int kQueries>
inline void ScoreTile(const typename Step::Word* q, const char* tile, const char* ahead, int steps, float scale,
                      float* out, int64_t stride) {
  static_assert(kBlockTokens == 32);
  __m512 sum[kQueries][2];
  for (int i = 0; i < kQueries; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (int s = 0; s < steps; ++s, tile += 128, ahead += 128, q += Step::kWords) {
    _mm_prefetch(ahead, _MM_HINT_T0);
    _mm_prefetch(ahead + 64, _MM_HINT_T0);
    Step::template Add<kQueries>(q, tile, sum);
  }
  const __m512 scales = _mm512_set1_ps(scale);
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(out + i * stride + 16 * v, _mm512_mul_ps(sum[i][v], scales));
  }
}

template <typename Step>
void ScoreTiles(const KeyScoreParams& p) {
  using Word = typename Step::Word;
  using TileFn = void (*)(const Word*, const char*, const char*, int, float, float*, int64_t);
  static constexpr TileFn kOfQueries[] = {nullptr,
                                          ScoreTile<Step, 1>,
                                          ScoreTile<Step, 2>,
                                          ScoreTile<Step, 3>,
                                          ScoreTile<Step, 4>,
                                          ScoreTile<Step, 5>,
                                          ScoreTile<Step, 6>,
                                          ScoreTile<Step, 7>,
                                          ScoreTile<Step, 8>};
  constexpr int kMaxBlocks = 4;  // of queries per pass over the keys
  WINNOW_CHECK(p.head_dim % 2 == 0 && p.head_dim <= kMaxHeadDim);
  alignas(64) Word q[kMaxBlocks * kQueryBlock * kQueryStride];
  const int num_tiles = (p.num_keys + kBlockTokens - 1) / kBlockTokens;
  const int last_tile = num_tiles + p.more_tiles - 1;
  const int steps = p.head_dim / Step::kElements;
  for (int first = 0; first < p.num_queries; first += kMaxBlocks * kQueryBlock) {
    const int count = std::min(p.num_queries - first, kMaxBlocks * kQueryBlock);
    for (int i = 0; i < count; ++i) {
      Step::LayOut(p.queries + static_cast<int64_t>(first + i) * p.head_dim, p.head_dim, q + i * kQueryStride);
    }
    for (int t = 0; t < num_tiles; ++t) {
      const char* tile = static_cast<const char*>(p.tiles[t]);
      const char* ahead = static_cast<const char*>(p.tiles[std::min(t + kTilesAhead, last_tile)]);
      float* out = p.scores + first * p.scores_stride + static_cast<int64_t>(t) * kBlockTokens;
      for (int i = 0; i < count; i += kQueryBlock) {
        kOfQueries[std::min(count - i, kQueryBlock)](q + i * kQueryStride, tile, ahead, steps, p.scale,
                                                     out + i * p.scores_stride, p.scores_stride);
      }
    }
  }
}

}  // namespace
}  // namespace winnow::avx512
