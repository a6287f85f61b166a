#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/panel.h"
#include "kernels/cpu/portable/portable.h"

namespace winnow::avx2 {
namespace {

void Panel(const PanelTask& task) {
  const float* x = static_cast<const float*>(task.x);
  const auto rows = task.dtype == Dtype::kBf16 ? PanelRows<Dtype::kBf16> : PanelRows<Dtype::kF32>;
  rows(x, task.x_stride, task.num_rows, task.panel, kPanel, task.num_k, task.acc, task.acc_stride, task.resume);
}

}  // namespace

const MatmulMicro kMatmul = {.bf16_input = false,
                             .transform_row = portable::TransformRow,
                             .panel = Panel,
                             .unpack = Unpack,
                             .quantized_rows = kQuantizedRows,
                             .quantized_panel = QuantizedPanel};

}  // namespace winnow::avx2
