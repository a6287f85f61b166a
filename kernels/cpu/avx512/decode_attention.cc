#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/portable/portable.h"

// Rows are read in units of 32 elements as two vectors: bf16 splits into even and odd elements (cheaper than widening
// in order), f32 into low and high halves. Queries are laid out to match, and outputs are put back in order at the end.

namespace winnow::avx512 {
namespace {

constexpr int kUnit = 32;
constexpr int kMaxHeads = 4;  // heads that share one pass over the rows
constexpr int kMaxHeadDim = 512;
constexpr int kPrefetchRows = 16;
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

template <Dtype kDtype>
inline void LoadUnit(const char* row, int unit, __m512& a, __m512& b) {
  if constexpr (kDtype == Dtype::kF32) {
    a = _mm512_loadu_ps(reinterpret_cast<const float*>(row) + unit * kUnit);
    b = _mm512_loadu_ps(reinterpret_cast<const float*>(row) + unit * kUnit + 16);
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

template <int kHeads, Dtype kDtype>
class HeadGroup {
 public:
  HeadGroup(const DecodeTile& tile, int first_head)
      : tile_(tile),
        first_head_(first_head),
        num_units_(tile.head_dim / kUnit),
        row_bytes_(2 * static_cast<size_t>(tile.head_dim) * DtypeBytes(kDtype)),
        pool_(static_cast<const char*>(tile.slot_pool)) {}

  void Run() {
    LayOutQueries();
    Score();
    Softmax();
    int unit = 0;
    for (; unit + 2 <= num_units_; unit += 2) SumValues<2>(unit);
    if (unit < num_units_) SumValues<1>(unit);
  }

 private:
  // Scale and log2(e) go into the query: scores are exponents of two.
  void LayOutQueries() {
    const __m512 factor = _mm512_set1_ps(tile_.scale * kLog2E);
    for (int h = 0; h < kHeads; ++h) {
      const float* q = tile_.q + static_cast<int64_t>(first_head_ + h) * tile_.head_dim;
      for (int u = 0; u < num_units_; ++u) {
        __m512 a = _mm512_mul_ps(_mm512_loadu_ps(q + u * kUnit), factor);
        __m512 b = _mm512_mul_ps(_mm512_loadu_ps(q + u * kUnit + 16), factor);
        if constexpr (kDtype == Dtype::kBf16) Deinterleave(a, b, a, b);
        _mm512_store_ps(queries_[h] + u * kUnit, a);
        _mm512_store_ps(queries_[h] + u * kUnit + 16, b);
      }
    }
  }

  void PrefetchRow(int j) const {
    if (j >= tile_.num_slots) return;
    const char* row = pool_ + tile_.slots[j] * row_bytes_;
    for (size_t byte = 0; byte < row_bytes_; byte += 64) _mm_prefetch(row + byte, _MM_HINT_T0);
  }

  // Keys j .. j + 15; beyond the tile the last key stands in, and its score becomes -inf.
  void Score() {
    for (int j = 0; j < kPrefetchRows; ++j) PrefetchRow(j);
    for (int j = 0; j < tile_.num_slots; j += 16) {
      __m512 blocks[kHeads][4];
      for (int four = 0; four < 4; ++four) {
        const char* rows[4];
        for (int i = 0; i < 4; ++i) {
          const int key = j + 4 * four + i;
          rows[i] = pool_ + tile_.slots[key < tile_.num_slots ? key : tile_.num_slots - 1] * row_bytes_;
          PrefetchRow(key + kPrefetchRows);
        }
        __m512 sum[kHeads][4];
        for (int h = 0; h < kHeads; ++h) {
          for (int i = 0; i < 4; ++i) sum[h][i] = _mm512_setzero_ps();
        }
        for (int u = 0; u < num_units_; ++u) {
          __m512 q[kHeads][2];
          for (int h = 0; h < kHeads; ++h) {
            q[h][0] = _mm512_load_ps(queries_[h] + u * kUnit);
            q[h][1] = _mm512_load_ps(queries_[h] + u * kUnit + 16);
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
      const __mmask16 valid = FirstLanes(tile_.num_slots - j);
      for (int h = 0; h < kHeads; ++h) {
        const __m512 scores = SumAcrossBlocks(blocks[h][0], blocks[h][1], blocks[h][2], blocks[h][3]);
        _mm512_store_ps(weights_[h] + j, _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), valid, scores));
      }
    }
  }

  void Softmax() {
    for (int h = 0; h < kHeads; ++h) {
      __m512 max = _mm512_load_ps(weights_[h]);
      for (int j = 16; j < tile_.num_slots; j += 16) max = _mm512_max_ps(max, _mm512_load_ps(weights_[h] + j));
      const float tile_max = _mm512_reduce_max_ps(max);
      max = _mm512_set1_ps(tile_max);
      __m512 sum = _mm512_setzero_ps();
      for (int j = 0; j < tile_.num_slots; j += 16) {
        const __m512 weight = Exp2(_mm512_sub_ps(_mm512_load_ps(weights_[h] + j), max));
        sum = _mm512_add_ps(sum, weight);
        _mm512_store_ps(weights_[h] + j, weight);
      }
      tile_.m[first_head_ + h] = tile_max * kLn2;
      tile_.l[first_head_ + h] = _mm512_reduce_add_ps(sum);
    }
  }

  template <int kUnits>
  void SumValues(int first_unit) {
    __m512 sum[kHeads][2 * kUnits];
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < 2 * kUnits; ++v) sum[h][v] = _mm512_setzero_ps();
    }
    for (int j = 0; j < tile_.num_slots; ++j) {
      const char* values = pool_ + tile_.slots[j] * row_bytes_ + row_bytes_ / 2;
      __m512 v[2 * kUnits];
      for (int u = 0; u < kUnits; ++u) LoadUnit<kDtype>(values, first_unit + u, v[2 * u], v[2 * u + 1]);
      for (int h = 0; h < kHeads; ++h) {
        const __m512 weight = _mm512_set1_ps(weights_[h][j]);
        for (int i = 0; i < 2 * kUnits; ++i) sum[h][i] = _mm512_fmadd_ps(weight, v[i], sum[h][i]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      float* o = tile_.o + static_cast<int64_t>(first_head_ + h) * tile_.head_dim + first_unit * kUnit;
      for (int u = 0; u < kUnits; ++u) {
        __m512 a = sum[h][2 * u];
        __m512 b = sum[h][2 * u + 1];
        if constexpr (kDtype == Dtype::kBf16) Interleave(a, b, a, b);
        _mm512_storeu_ps(o + u * kUnit, a);
        _mm512_storeu_ps(o + u * kUnit + 16, b);
      }
    }
  }

  const DecodeTile& tile_;
  const int first_head_;
  const int num_units_;
  const size_t row_bytes_;
  const char* const pool_;
  alignas(64) float queries_[kHeads][kMaxHeadDim];
  alignas(64) float weights_[kHeads][kAttentionTile];  // scores, then exp2 of them
};

template <Dtype kDtype>
void RunTile(const DecodeTile& tile) {
  int head = 0;
  for (; head + kMaxHeads <= tile.group_size; head += kMaxHeads) HeadGroup<kMaxHeads, kDtype>(tile, head).Run();
  switch (tile.group_size - head) {
    case 3:
      return HeadGroup<3, kDtype>(tile, head).Run();
    case 2:
      return HeadGroup<2, kDtype>(tile, head).Run();
    case 1:
      return HeadGroup<1, kDtype>(tile, head).Run();
    default:
      return;
  }
}

}  // namespace

void DecodeAttentionTile(const DecodeTile& tile) {
  if (tile.head_dim % kUnit != 0 || tile.head_dim > kMaxHeadDim) return portable::DecodeAttentionTile(tile);
  if (tile.kv_dtype == Dtype::kBf16) {
    RunTile<Dtype::kBf16>(tile);
  } else {
    RunTile<Dtype::kF32>(tile);
  }
}

}  // namespace winnow::avx512
