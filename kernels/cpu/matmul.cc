#include "kernels/cpu/matmul.h"

#include <algorithm>

#include "common/base/check.h"
#include "kernels/cpu/cpu_executor.h"

namespace winnow {
namespace {

// Rows of one work item: enough to reuse a panel from L2, a multiple of the register tiles' 6 rows.
constexpr int kItemRows = 96;
// Rows transformed at a time: bounds the scratch.
constexpr int kBlockRows = 384;
// A panel slice of kSliceK x 64 weights (256 KiB of bf16) stays in L2 while the rows of an item pass over it.
constexpr int kSliceK = 2048;
// Below this many input elements a transform is cheaper than waking the team for it.
constexpr int64_t kSerialTransformElements = 8192;

struct Job {
  const MatmulParams& params;
  const MatmulMicro& micro;
  const char* x;  // [num_rows, in_padded] transformed
  size_t x_element_bytes;
  int in_padded;
  int first_row;
  int num_rows;
  int row_items;

  void RunItem(int item) const;
  void Finish(const float* acc, int64_t acc_stride, int row_begin, int num_rows, int column, int num_columns) const;
};

void Job::Finish(const float* acc, int64_t acc_stride, int row_begin, int rows, int column, int num_columns) const {
  const float* bias = params.bias == nullptr ? nullptr : params.bias + column;
  for (int r = 0; r < rows; ++r) {
    const float* from = acc + r * acc_stride;
    float* to = params.y + (first_row + row_begin + r) * params.y_stride + column;
    for (int c = 0; c < num_columns; ++c) {
      float value = from[c];
      if (bias != nullptr) value += bias[c];
      to[c] = params.accumulate ? to[c] + value : value;
    }
  }
}

void Job::RunItem(int item) const {
  const int panel = item / row_items;
  const int row_begin = item % row_items * kItemRows;
  const int rows = std::min(kItemRows, num_rows - row_begin);
  const int column = panel * kPanel;
  const int num_columns = std::min(kPanel, params.weight.out_features - column);
  const size_t weight_bytes = DtypeBytes(params.weight.dtype);
  const char* weights =
      static_cast<const char*>(params.weight.data) + static_cast<size_t>(panel) * in_padded * kPanel * weight_bytes;

  alignas(64) float buffer[kItemRows * kPanel];
  const bool direct = num_columns == kPanel && params.bias == nullptr && !params.accumulate;
  PanelTask task;
  task.x_stride = in_padded;
  task.num_rows = rows;
  task.dtype = params.weight.dtype;
  task.acc = direct ? params.y + (first_row + row_begin) * params.y_stride + column : buffer;
  task.acc_stride = direct ? params.y_stride : kPanel;
  // Few rows read each weight once or twice: slicing would only interrupt the stream.
  const int slice_k = rows <= 12 ? in_padded : kSliceK;
  for (int k = 0; k < in_padded; k += slice_k) {
    task.num_k = std::min(slice_k, in_padded - k);
    task.x = x + (static_cast<size_t>(row_begin) * in_padded + k) * x_element_bytes;
    task.panel = weights + static_cast<size_t>(k) * kPanel * weight_bytes;
    task.resume = k > 0;
    micro.panel(task);
  }
  if (!direct) Finish(buffer, kPanel, row_begin, rows, column, num_columns);
}

}  // namespace

void RunMatmul(Executor& executor, const MatmulParams& params, const MatmulMicro& micro) {
  CpuExecutor& cpu = CpuExecutor::From(executor);
  WINNOW_CHECK(params.weight.dtype == Dtype::kBf16 || params.weight.dtype == Dtype::kF32);
  const int in_padded = PackedInFeatures(params.weight.in_features);
  const size_t element_bytes = micro.bf16_input && params.weight.dtype == Dtype::kBf16 ? 2 : 4;
  const size_t row_bytes = in_padded * element_bytes;
  const int num_panels = (params.weight.out_features + kPanel - 1) / kPanel;
  char* x = static_cast<char*>(cpu.shared_scratch.Reserve(row_bytes * std::min(params.num_rows, kBlockRows)));
  for (int first = 0; first < params.num_rows; first += kBlockRows) {
    const int rows = std::min(kBlockRows, params.num_rows - first);
    if (static_cast<int64_t>(rows) * in_padded <= kSerialTransformElements) {
      for (int r = 0; r < rows; ++r) micro.transform_row(params, first + r, x + r * row_bytes);
    } else {
      cpu.team.ParallelFor(
          rows, [&](int r, int) { micro.transform_row(params, first + r, x + r * row_bytes); }, /*grain=*/4);
    }
    const int row_items = (rows + kItemRows - 1) / kItemRows;
    const Job job{params, micro, x, element_bytes, in_padded, first, rows, row_items};
    cpu.team.ParallelFor(num_panels * row_items, [&](int item, int) { job.RunItem(item); });
  }
}

}  // namespace winnow
