#include "kernels/cpu/avx512/avx512.h"
#include "kernels/cpu/avx512/panel.h"
#include "kernels/cpu/avx512/transform.h"

namespace winnow::avx512 {
namespace {

void TransformToF32(const MatmulParams& params, int row, void* out) {
  float* to = static_cast<float*>(out);
  TransformRow(params, row, [to](int i, __m512 values) { _mm512_storeu_ps(to + i, values); });
}

void Panel(const PanelTask& task) {
  const float* x = static_cast<const float*>(task.x);
  const auto rows = task.dtype == Dtype::kBf16 ? PanelRows<4, Dtype::kBf16> : PanelRows<4, Dtype::kF32>;
  rows(x, task.x_stride, task.num_rows, task.panel, kPanel, task.num_k, task.acc, task.acc_stride, task.resume);
}

}  // namespace

const MatmulMicro kMatmul = {.bf16_input = false,
                             .transform_row = TransformToF32,
                             .panel = Panel,
                             .unpack = Unpack,
                             .quantized_rows = kQuantizedRows,
                             .quantized_panel = QuantizedPanel};

}  // namespace winnow::avx512
