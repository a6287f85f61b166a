#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/portable/portable.h"
#include "kernels/cpu/row_scales.h"
#include "kernels/cpu/score_cap.h"

// Rows are read in units of 32 elements as two vectors: bf16 splits into even and odd elements (cheaper than widening
// in order), f32 and int8 into low and high halves. Queries are laid out to match, and outputs are put back in order at
// the end. Scales of int8 go into the scores of their keys and the weights of their values.

namespace winnow::avx512 {
namespace {

constexpr int kUnit = 32;
constexpr int kMaxHeads = 4;  // heads that share one pass over the rows
constexpr int kSubTile = kTileLookahead;
constexpr int kMaxQueryFloats = 4096;  // heads * head_dim of one runner
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

template <Dtype kDtype>
inline void LoadUnit(const char* row, int unit, __m512& a, __m512& b) {
  if constexpr (kDtype == Dtype::kF32) {
    a = _mm512_loadu_ps(reinterpret_cast<const float*>(row) + unit * kUnit);
    b = _mm512_loadu_ps(reinterpret_cast<const float*>(row) + unit * kUnit + 16);
  } else if constexpr (kDtype == Dtype::kI8) {
    a = Load16<Dtype::kI8>(row, unit * kUnit);
    b = Load16<Dtype::kI8>(row, unit * kUnit + 16);
  } else {
    const __m512i pairs = _mm512_loadu_si512(reinterpret_cast<const uint16_t*>(row) + unit * kUnit);
    a = EvenOf(pairs);
    b = OddOf(pairs);
  }
}

// In order <-> even elements, then odd elements.
inline void Deinterleave(__m512 low, __m512 high, __m512& even, __m512& odd) {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even = _mm512_permutex2var_ps(low, evens, high);
  odd = _mm512_permutex2var_ps(low, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), high);
}
inline void Interleave(__m512 even, __m512 odd, __m512& low, __m512& high) {
  const __m512i lows = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  low = _mm512_permutex2var_ps(even, lows, odd);
  high = _mm512_permutex2var_ps(even, _mm512_add_epi32(lows, _mm512_set1_epi32(8)), odd);
}

// Lane block b of the result: the sums over lane block b of a, b, c and d.
inline __m512 SumWithinBlocks(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d ab_pd = _mm512_castps_pd(ab);
  const __m512d cd_pd = _mm512_castps_pd(cd);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab_pd, cd_pd)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(ab_pd, cd_pd)));
}
// Lanes 4g .. 4g+3 of the result: the sums over the lane blocks of argument g.
inline __m512 SumAcrossBlocks(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// One tile with an online softmax over fixed sub-tiles of kSubTile keys. Scoring a sub-tile prefetches its values, and
// summing its values prefetches the next keys, so that memory is read evenly through both.
template <Dtype kDtype>
class TileRunner {
 public:
  explicit TileRunner(const DecodeTile& tile)
      : tile_(tile),
        head_dim_(tile.head_dim),
        num_units_(tile.head_dim / kUnit),
        key_bytes_(static_cast<size_t>(tile.head_dim) * DtypeBytes(kDtype)),
        value_bytes_(tile.value_bytes()) {}

  void Run() {
    for (int j = 0; j < kSubTile && j < tile_.num_rows; ++j) PrefetchKey(j);
    for (int h = 0; h < tile_.group_size; ++h) Start(h);
    for (int first = 0; first < tile_.num_rows; first += kSubTile) {
      const int count = tile_.num_rows - first < kSubTile ? tile_.num_rows - first : kSubTile;
      if constexpr (kDtype == Dtype::kI8) LoadScales(first, count);
      int head = 0;
      for (; head + kMaxHeads <= tile_.group_size; head += kMaxHeads) RunHeads<kMaxHeads>(head, first, count);
      switch (tile_.group_size - head) {
        case 3:
          RunHeads<3>(head, first, count);
          break;
        case 2:
          RunHeads<2>(head, first, count);
          break;
        case 1:
          RunHeads<1>(head, first, count);
          break;
        default:
          break;
      }
    }
    for (int h = 0; h < tile_.group_size; ++h) Finish(h);
  }

 private:
  const char* Row(int j) const { return tile_.rows[j]; }
  // A key or a value, into the second-level cache, which has more requests under way than the first.
  void Prefetch(const char* part) const {
    for (size_t byte = 0; byte < key_bytes_; byte += 64) _mm_prefetch(part + byte, _MM_HINT_T1);
    // Rows of int8 do not begin with a cache line, and end with their scales.
    if constexpr (kDtype == Dtype::kI8) _mm_prefetch(part + key_bytes_ + 2 * sizeof(float) - 1, _MM_HINT_T1);
  }
  // Of a sub-tile; beyond its keys the last one's.
  void LoadScales(int first, int count) {
    for (int j = 0; j < kSubTile; ++j) {
      const char* const row = Row(first + (j < count ? j : count - 1));
      key_scales_[j] = KeyScale(row, head_dim_);
      value_scales_[j] = ValueScale(row, head_dim_);
    }
  }
  void PrefetchKey(int j) const { Prefetch(Row(j)); }
  float* Output(int head) const { return tile_.o + static_cast<int64_t>(head) * head_dim_; }

  // Scale and log2(e) go into the query: scores are exponents of two.
  void Start(int head) {
    const __m512 factor = _mm512_set1_ps(tile_.scale * kLog2E);
    const float* q = tile_.q + static_cast<int64_t>(head) * head_dim_;
    for (int i = 0; i < head_dim_; i += kUnit) {
      __m512 a = _mm512_mul_ps(_mm512_loadu_ps(q + i), factor);
      __m512 b = _mm512_mul_ps(_mm512_loadu_ps(q + i + 16), factor);
      if constexpr (kDtype == Dtype::kBf16) Deinterleave(a, b, a, b);
      _mm512_store_ps(queries_ + head * head_dim_ + i, a);
      _mm512_store_ps(queries_ + head * head_dim_ + i + 16, b);
    }
    tile_.m[head] = -__builtin_inff();
    tile_.l[head] = 0;
  }

  void Finish(int head) const {
    tile_.m[head] *= kLn2;
    if constexpr (kDtype == Dtype::kBf16) {
      float* o = Output(head);
      for (int i = 0; i < head_dim_; i += kUnit) {
        __m512 low, high;
        Interleave(_mm512_loadu_ps(o + i), _mm512_loadu_ps(o + i + 16), low, high);
        _mm512_storeu_ps(o + i, low);
        _mm512_storeu_ps(o + i + 16, high);
      }
    }
  }

  template <int kHeads>
  void RunHeads(int head, int first, int count) {
    Score<kHeads>(head, first, count);
    if (tile_.score_cap > 0) {
      for (int h = 0; h < kHeads; ++h) CapScores(weights_[h], count, tile_.score_cap * kLog2E);
    }
    for (int h = 0; h < kHeads; ++h) Softmax(head + h, h, count);
    int unit = 0;
    for (; unit + 2 <= num_units_; unit += 2) SumValues<kHeads, 2>(head, unit, first, count);
    if (unit < num_units_) SumValues<kHeads, 1>(head, unit, first, count);
  }

  // Beyond the sub-tile the last key stands in, and its score becomes -inf.
  template <int kHeads>
  void Score(int head, int first, int count) {
    for (int j = 0; j < count; j += 16) {
      __m512 blocks[kHeads][4];
      for (int four = 0; four < 4; ++four) {
        const char* rows[4];
        for (int i = 0; i < 4; ++i) {
          const int key = j + 4 * four + i;
          rows[i] = Row(first + (key < count ? key : count - 1));
          if (head == 0 && value_bytes_ > 0) Prefetch(rows[i] + value_bytes_);
        }
        __m512 sum[kHeads][4];
        for (int h = 0; h < kHeads; ++h) {
          for (int i = 0; i < 4; ++i) sum[h][i] = _mm512_setzero_ps();
        }
        for (int u = 0; u < num_units_; ++u) {
          __m512 q[kHeads][2];
          for (int h = 0; h < kHeads; ++h) {
            q[h][0] = _mm512_load_ps(queries_ + (head + h) * head_dim_ + u * kUnit);
            q[h][1] = _mm512_load_ps(queries_ + (head + h) * head_dim_ + u * kUnit + 16);
          }
          for (int i = 0; i < 4; ++i) {
            __m512 a, b;
            LoadUnit<kDtype>(rows[i], u, a, b);
            for (int h = 0; h < kHeads; ++h) {
              sum[h][i] = _mm512_fmadd_ps(q[h][0], a, sum[h][i]);
              sum[h][i] = _mm512_fmadd_ps(q[h][1], b, sum[h][i]);
            }
          }
        }
        for (int h = 0; h < kHeads; ++h) {
          blocks[h][four] = SumWithinBlocks(sum[h][0], sum[h][1], sum[h][2], sum[h][3]);
        }
      }
      const __mmask16 valid = FirstLanes(count - j);
      for (int h = 0; h < kHeads; ++h) {
        __m512 scores = SumAcrossBlocks(blocks[h][0], blocks[h][1], blocks[h][2], blocks[h][3]);
        if constexpr (kDtype == Dtype::kI8) scores = _mm512_mul_ps(scores, _mm512_load_ps(key_scales_ + j));
        _mm512_store_ps(weights_[h] + j, _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), valid, scores));
      }
    }
  }

  // Scores of lane `h` to weights relative to the new maximum.
  void Softmax(int head, int h, int count) {
    __m512 max = _mm512_load_ps(weights_[h]);
    for (int j = 16; j < count; j += 16) max = _mm512_max_ps(max, _mm512_load_ps(weights_[h] + j));
    const float old_max = tile_.m[head];
    const float sub_max = _mm512_reduce_max_ps(max);
    const float new_max = sub_max > old_max ? sub_max : old_max;
    max = _mm512_set1_ps(new_max);
    __m512 sum = _mm512_setzero_ps();
    for (int j = 0; j < count; j += 16) {
      const __m512 weight = Exp2(_mm512_sub_ps(_mm512_load_ps(weights_[h] + j), max));
      sum = _mm512_add_ps(sum, weight);
      const bool scales = kDtype == Dtype::kI8;
      _mm512_store_ps(weights_[h] + j, scales ? _mm512_mul_ps(weight, _mm512_load_ps(value_scales_ + j)) : weight);
    }
    shrink_[h] = new_max == old_max ? 1 : _mm512_cvtss_f32(Exp2(_mm512_set1_ps(old_max - new_max)));
    tile_.m[head] = new_max;
    tile_.l[head] = tile_.l[head] * shrink_[h] + _mm512_reduce_add_ps(sum);
  }

  template <int kHeads, int kUnits>
  void SumValues(int head, int unit, int first, int count) {
    __m512 sum[kHeads][2 * kUnits];
    for (int h = 0; h < kHeads; ++h) {
      const float* o = Output(head + h) + unit * kUnit;
      const __m512 shrink = _mm512_set1_ps(shrink_[h]);
      for (int i = 0; i < 2 * kUnits; ++i) {
        sum[h][i] = first == 0 ? _mm512_setzero_ps() : _mm512_mul_ps(_mm512_loadu_ps(o + 16 * i), shrink);
      }
    }
    const bool prefetch = head == 0 && unit == 0;
    const int prefetch_end = prefetch ? tile_.num_rows + tile_.num_following : 0;
    for (int j = 0; j < count; ++j) {
      if (first + j + kSubTile < prefetch_end) PrefetchKey(first + j + kSubTile);
      const char* values = Row(first + j) + value_bytes_;
      __m512 v[2 * kUnits];
      for (int u = 0; u < kUnits; ++u) LoadUnit<kDtype>(values, unit + u, v[2 * u], v[2 * u + 1]);
      for (int h = 0; h < kHeads; ++h) {
        const __m512 weight = _mm512_set1_ps(weights_[h][j]);
        for (int i = 0; i < 2 * kUnits; ++i) sum[h][i] = _mm512_fmadd_ps(weight, v[i], sum[h][i]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      float* o = Output(head + h) + unit * kUnit;
      for (int i = 0; i < 2 * kUnits; ++i) _mm512_storeu_ps(o + 16 * i, sum[h][i]);
    }
  }

  const DecodeTile& tile_;
  const int head_dim_;
  const int num_units_;
  const size_t key_bytes_;    // as many as of a value
  const size_t value_bytes_;  // into a row
  alignas(64) float queries_[kMaxQueryFloats];
  alignas(64) float weights_[kMaxHeads][kSubTile];  // scores, then exp2 of them
  alignas(64) float key_scales_[kSubTile];          // of rows of int8
  alignas(64) float value_scales_[kSubTile];
  float shrink_[kMaxHeads];
};

}  // namespace

void DecodeAttentionTile(const DecodeTile& tile) {
  if (tile.head_dim % kUnit != 0 || tile.head_dim > kMaxQueryFloats) return portable::DecodeAttentionTile(tile);
  const int most = kMaxQueryFloats / tile.head_dim;
  for (int head = 0; head < tile.group_size; head += most) {
    DecodeTile part = tile;
    part.group_size = tile.group_size - head < most ? tile.group_size - head : most;
    part.q += static_cast<int64_t>(head) * tile.head_dim;
    part.o += static_cast<int64_t>(head) * tile.head_dim;
    part.m += head;
    part.l += head;
    if (tile.kv_dtype == Dtype::kBf16) {
      TileRunner<Dtype::kBf16>(part).Run();
    } else if (tile.kv_dtype == Dtype::kI8) {
      TileRunner<Dtype::kI8>(part).Run();
    } else {
      TileRunner<Dtype::kF32>(part).Run();
    }
  }
}

}  // namespace winnow::avx512
