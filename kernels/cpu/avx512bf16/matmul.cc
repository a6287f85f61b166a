#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/transform.h"
#include "kernels/cpu/avx512bf16/avx512bf16.h"

namespace winnow::avx512bf16 {
namespace {

constexpr int kVectors = kPanel / 16;
constexpr int kTileRows = 6;

void TransformRow(const MatmulParams& params, int row, void* out) {
  if (params.weight.dtype != Dtype::kBf16) return avx512::kMatmul.transform_row(params, row, out);
  uint16_t* to = static_cast<uint16_t*>(out);
  avx512::TransformRow(params, row, [to](int i, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), (__m256i)_mm512_cvtneps_pbh(values));
  });
}

// As avx512::PanelTile, a pair of k per instruction.
template <int kRows>
void PanelTile(const PanelTask& task, int first_row) {
  const uint16_t* x = static_cast<const uint16_t*>(task.x) + first_row * task.x_stride;
  float* acc = task.acc + first_row * task.acc_stride;
  __m512 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = task.resume ? _mm512_loadu_ps(acc + r * task.acc_stride + 16 * v) : _mm512_setzero_ps();
    }
  }
  const uint32_t* w = static_cast<const uint32_t*>(task.panel);
  for (int k = 0; k < task.num_k; k += 2, w += kPanel) {
    __m512bh weight[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      _mm_prefetch(reinterpret_cast<const char*>(w + 16 * v) + 2048, _MM_HINT_T0);
      weight[v] = (__m512bh)_mm512_loadu_si512(w + 16 * v);
    }
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, x + r * task.x_stride + k, sizeof pair);
      const __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], weight[v], value);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(acc + r * task.acc_stride + 16 * v, sum[r][v]);
  }
}

void Panel(const PanelTask& task) {
  if (task.dtype != Dtype::kBf16) return avx512::kMatmul.panel(task);
  int row = 0;
  for (; row + kTileRows <= task.num_rows; row += kTileRows) PanelTile<kTileRows>(task, row);
  switch (task.num_rows - row) {
    case 5:
      return PanelTile<5>(task, row);
    case 4:
      return PanelTile<4>(task, row);
    case 3:
      return PanelTile<3>(task, row);
    case 2:
      return PanelTile<2>(task, row);
    case 1:
      return PanelTile<1>(task, row);
    default:
      return;
  }
}

}  // namespace

const MatmulMicro kMatmul = {.bf16_input = true,
                             .transform_row = TransformRow,
                             .panel = Panel,
                             .unpack = avx512::Unpack,
                             .quantized_rows = avx512::kQuantizedRows,
                             .quantized_panel = avx512::QuantizedPanel};

}  // namespace winnow::avx512bf16
