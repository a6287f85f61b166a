#include <array>
#include <utility>

#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/vector.h"
#include "kernels/cpu/quantized_panel.h"

// Quantised panels, 16 outputs at a time.

namespace winnow::avx512 {
namespace {

// body(integral_constant<int, 0>), ...: for shifts, whose counts are part of the instruction.
template <typename Body, int... i>
inline __attribute__((always_inline)) void ForConstants(std::integer_sequence<int, i...>, const Body& body) {
  (body(std::integral_constant<int, i>()), ...);
}

// How to read a dtype: kInputs of 16 outputs lie in one load. A group's scales and zeros become a factor and an offset,
// with which a weight takes one instruction beside its conversion to f32.
template <Dtype kDtype>
struct Codes {
  static constexpr int kInputs = kDtype == Dtype::kI8 ? 4 : 8;
  static constexpr int kBytes = 64;
  using Words = __m512i;

  static Words Load(const uint8_t* codes) { return _mm512_loadu_si512(codes); }

  __attribute__((always_inline)) Codes(const QuantizedTile& tile, int column)
      : factor(_mm512_loadu_ps(tile.scales + column)) {
    const __m256i zeros = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile.zeros + column));
    const __m512 zero = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(zeros));
    offset = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(zero, factor));
  }

  template <int i>
  __attribute__((always_inline)) __m512 Weights(Words words) const {
    __m512 code;
    if constexpr (kDtype == Dtype::kI4) {
      // Only the low four bits of an index count.
      const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      code = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * i), values);
    } else {
      code = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(words, 8 * i), _mm512_set1_epi32(0xff)));
    }
    return _mm512_fmadd_ps(code, factor, offset);
  }

  __m512 factor;
  __m512 offset;
};

// An e4m3 code is an f16 of another bias: its sign and the other seven bits, moved apart, give 2^-8 times its value,
// subnormals included.
template <>
struct Codes<Dtype::kF8> {
  static constexpr int kInputs = 2;
  static constexpr int kBytes = 32;
  using Words = __m256i;

  static Words Load(const uint8_t* codes) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)); }

  __attribute__((always_inline)) Codes(const QuantizedTile& tile, int column)
      : factor(_mm512_mul_ps(_mm512_loadu_ps(tile.scales + column), _mm512_set1_ps(256))) {}

  template <int i>
  __attribute__((always_inline)) __m512 Weights(Words words) const {
    if constexpr (i == 0) words = _mm256_slli_epi16(words, 8);
    const __m256i halves =
        _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
    return _mm512_mul_ps(_mm512_cvtph_ps(halves), factor);
  }

  __m512 factor;
};

// e2m1 values by powers of two.
struct Mxfp4Codes {
  static constexpr int kInputs = 8;
  static constexpr int kBytes = 64;
  using Words = __m512i;

  static Words Load(const uint8_t* codes) { return _mm512_loadu_si512(codes); }

  // An exponent is that of an f32, but for 0, which stands for 2^-127.
  __attribute__((always_inline)) Mxfp4Codes(const QuantizedTile& tile, int column) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile.exponents + column));
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
    factor = _mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_set1_epi32(0x00400000)));
  }

  template <int i>
  __attribute__((always_inline)) __m512 Weights(Words words) const {
    // Only the low four bits of an index count.
    return _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * i), _mm512_loadu_ps(kE2m1Values)), factor);
  }

  __m512 factor;
};

// Asks for the codes of the next tile as well: they arrive while this one is multiplied, which reads no memory, and the
// hardware's own prefetch has forgotten the stream by then.
template <typename Tile>
void UnpackTile(const QuantizedTile& tile, float* weights) {
  const auto* codes = static_cast<const uint8_t*>(tile.codes);
  constexpr int kVectors = kPanel / 16;
  const int tile_bytes = tile.num_k / Tile::kInputs * kVectors * Tile::kBytes;
  const Tile columns[kVectors] = {{tile, 0}, {tile, 16}, {tile, 32}, {tile, 48}};
  for (int k = 0; k < tile.num_k; k += Tile::kInputs, weights += Tile::kInputs * kPanel) {
    for (int v = 0; v < kVectors; ++v, codes += Tile::kBytes) {
      _mm_prefetch(reinterpret_cast<const char*>(codes) + tile_bytes, _MM_HINT_T0);
      const auto words = Tile::Load(codes);
      ForConstants(
          std::make_integer_sequence<int, Tile::kInputs>(), [&](auto i) __attribute__((always_inline)) {
            _mm512_storeu_ps(weights + i() * kPanel + 16 * v, columns[v].template Weights<i()>(words));
          });
    }
  }
}

// As PanelTile of panel.h, over all groups of a panel.
template <int kRows, int kVectors, typename Tile>
void QuantizedColumns(const QuantizedPanelTask& task, int column) {
  __m512 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const float* x = task.x;
  ForEachTile(task.matrix, task.panel, task.matrix.group_size, [&](int, const QuantizedTile& tile) {
    const auto columns = [&]<int... v>(std::integer_sequence<int, v...>) {
      return std::array<Tile, kVectors>{Tile(tile, column + 16 * v)...};
    }
    (std::make_integer_sequence<int, kVectors>());
    const auto* codes = static_cast<const uint8_t*>(tile.codes) + column / 16 * Tile::kBytes;
    for (int k = 0; k < tile.num_k; k += Tile::kInputs, x += Tile::kInputs, codes += kPanel / 16 * Tile::kBytes) {
      typename Tile::Words words[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + v * Tile::kBytes) + 2048, _MM_HINT_T0);
        words[v] = Tile::Load(codes + v * Tile::kBytes);
      }
      ForConstants(
          std::make_integer_sequence<int, Tile::kInputs>(), [&](auto i) __attribute__((always_inline)) {
            __m512 weight[kVectors];
            for (int v = 0; v < kVectors; ++v) weight[v] = columns[v].template Weights<i()>(words[v]);
            for (int r = 0; r < kRows; ++r) {
              const __m512 value = _mm512_set1_ps(x[r * task.x_stride + i()]);
              for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(value, weight[v], sum[r][v]);
            }
          });
    }
  });
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(task.acc + r * task.acc_stride + column + 16 * v, sum[r][v]);
  }
}

template <int kRows, typename Tile>
void QuantizedRows(const QuantizedPanelTask& task) {
  constexpr int kVectors = kRows <= 3 ? 4 : 2;  // 32 registers hold sums, factors, offsets and weights
  for (int column = 0; column < kPanel; column += 16 * kVectors) QuantizedColumns<kRows, kVectors, Tile>(task, column);
}

template <typename Tile>
void QuantizedPanelOf(const QuantizedPanelTask& task) {
  switch (task.num_rows) {
    case 1:
      return QuantizedRows<1, Tile>(task);
    case 2:
      return QuantizedRows<2, Tile>(task);
    case 3:
      return QuantizedRows<3, Tile>(task);
    case 4:
      return QuantizedRows<4, Tile>(task);
    default:
      return;
  }
}

}  // namespace

void Unpack(const QuantizedTile& tile, float* weights) {
  if (tile.exponents != nullptr) return UnpackTile<Mxfp4Codes>(tile, weights);
  switch (tile.dtype) {
    case Dtype::kF8:
      return UnpackTile<Codes<Dtype::kF8>>(tile, weights);
    case Dtype::kI8:
      return UnpackTile<Codes<Dtype::kI8>>(tile, weights);
    default:
      return UnpackTile<Codes<Dtype::kI4>>(tile, weights);
  }
}

void QuantizedPanel(const QuantizedPanelTask& task) {
  if (task.matrix.mxfp4) return QuantizedPanelOf<Mxfp4Codes>(task);
  switch (task.matrix.dtype) {
    case Dtype::kF8:
      return QuantizedPanelOf<Codes<Dtype::kF8>>(task);
    case Dtype::kI8:
      return QuantizedPanelOf<Codes<Dtype::kI8>>(task);
    default:
      return QuantizedPanelOf<Codes<Dtype::kI4>>(task);
  }
}

}  // namespace winnow::avx512
