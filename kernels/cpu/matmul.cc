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
// Inputs of a quantised panel that are unpacked for many rows at a time: 128 KiB of f32, which stay in L2 beside the
// rows' part of x. Shorter runs of x would be read from L2 again and again. The tile of few rows stays in L1.
constexpr int kTileK = 512;
constexpr int kFewRowsTileK = 64;
constexpr int kFewRows = 12;
// Below this many input elements a transform is cheaper than waking the team for it.
constexpr int64_t kSerialTransformElements = 8192;

struct Job {
  CpuExecutor& cpu;
  const MatmulParams& params;
  const MatmulMicro& micro;
  const char* x;  // [num_rows, in_padded] transformed
  size_t x_element_bytes;
  size_t panel_bytes;
  int in_padded;
  int first_row;
  int num_rows;
  int row_items;

  void RunItem(int item, int worker) const;
  void RunPanel(PanelTask& task, const char* panel, int row_begin) const;
  void RunQuantizedPanel(PanelTask& task, const char* panel, int row_begin, int worker) const;
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

void Job::RunPanel(PanelTask& task, const char* panel, int row_begin) const {
  const size_t weight_bytes = DtypeBytes(task.dtype);
  // Few rows read each weight once or twice: slicing would only interrupt the stream.
  const int slice_k = task.num_rows <= kFewRows ? in_padded : kSliceK;
  for (int k = 0; k < in_padded; k += slice_k) {
    task.num_k = std::min(slice_k, in_padded - k);
    task.x = x + (static_cast<size_t>(row_begin) * in_padded + k) * x_element_bytes;
    task.panel = panel + static_cast<size_t>(k) * kPanel * weight_bytes;
    task.resume = k > 0;
    micro.panel(task);
  }
}

void Job::RunQuantizedPanel(PanelTask& task, const char* panel, int row_begin, int worker) const {
  const float* rows = reinterpret_cast<const float*>(x) + static_cast<size_t>(row_begin) * in_padded;
  if (task.num_rows <= micro.quantized_rows) {
    return micro.quantized_panel({.x = rows,
                                  .x_stride = in_padded,
                                  .num_rows = task.num_rows,
                                  .matrix = params.weight,
                                  .panel = panel,
                                  .acc = task.acc,
                                  .acc_stride = task.acc_stride});
  }
  const int tile_k = task.num_rows <= kFewRows ? kFewRowsTileK : kTileK;
  auto* weights = cpu.worker_scratch[worker].ReserveArray<float>(static_cast<size_t>(kTileK) * kPanel);
  task.dtype = Dtype::kF32;
  task.panel = weights;
  task.num_k = 0;
  const auto multiply = [&](int end) {
    task.x = rows + end - task.num_k;
    task.resume = end > task.num_k;
    micro.panel(task);
    task.num_k = 0;
  };
  ForEachTile(params.weight, panel, tile_k, [&](int k, const QuantizedTile& tile) {
    if (task.num_k + tile.num_k > tile_k) multiply(k);
    micro.unpack(tile, weights + static_cast<size_t>(task.num_k) * kPanel);
    task.num_k += tile.num_k;
  });
  multiply(in_padded);
}

void Job::RunItem(int item, int worker) const {
  const int panel = item / row_items;
  const int row_begin = item % row_items * kItemRows;
  const int rows = std::min(kItemRows, num_rows - row_begin);
  const int column = panel * kPanel;
  const int num_columns = std::min(kPanel, params.weight.out_features - column);
  const char* weights = static_cast<const char*>(params.weight.data) + static_cast<size_t>(panel) * panel_bytes;

  alignas(64) float buffer[kItemRows * kPanel];
  // Sums that are taken up again for every tile stay together.
  const bool in_tiles = IsQuantized(params.weight.dtype) && rows > micro.quantized_rows;
  const bool direct = num_columns == kPanel && params.bias == nullptr && !params.accumulate && !in_tiles;
  PanelTask task;
  task.x_stride = in_padded;
  task.num_rows = rows;
  task.dtype = params.weight.dtype;
  task.acc = direct ? params.y + (first_row + row_begin) * params.y_stride + column : buffer;
  task.acc_stride = direct ? params.y_stride : kPanel;
  if (IsQuantized(task.dtype)) {
    RunQuantizedPanel(task, weights, row_begin, worker);
  } else {
    RunPanel(task, weights, row_begin);
  }
  if (!direct) Finish(buffer, kPanel, row_begin, rows, column, num_columns);
}

// Transforms a row; of a matrix with an order of its own through `scratch`, a row as well.
void TransformRow(const MatmulParams& params, const MatmulMicro& micro, int row, char* out, float* scratch) {
  const uint32_t* order = params.weight.input_order;
  if (order == nullptr) return micro.transform_row(params, row, out);
  micro.transform_row(params, row, scratch);
  auto* ordered = reinterpret_cast<float*>(out);
  const int n = params.weight.in_features;
  for (int k = 0; k < n; ++k) ordered[k] = scratch[order[k]];
  std::fill(ordered + n, ordered + PackedInFeatures(n), 0.0f);
}

}  // namespace

void RunMatmul(Executor& executor, const MatmulParams& params, const MatmulMicro& micro) {
  CpuExecutor& cpu = CpuExecutor::From(executor);
  const PackedMatrix& weight = params.weight;
  WINNOW_CHECK(IsQuantized(weight.dtype) ||
               ((weight.dtype == Dtype::kBf16 || weight.dtype == Dtype::kF32) && weight.input_order == nullptr));
  const int in_padded = PackedInFeatures(params.weight.in_features);
  const size_t element_bytes = micro.bf16_input && params.weight.dtype == Dtype::kBf16 ? 2 : 4;
  const size_t row_bytes = in_padded * element_bytes;
  const size_t panel_bytes = PanelBytes(weight);
  const int num_panels = (params.weight.out_features + kPanel - 1) / kPanel;
  const int block_rows = std::min(params.num_rows, kBlockRows);
  const int scratch_rows = weight.input_order == nullptr ? 0 : cpu.team.size();
  char* x = static_cast<char*>(cpu.shared_scratch.Reserve(row_bytes * (block_rows + scratch_rows)));
  const auto transform = [&](int first, int r, int worker) {
    char* scratch = x + (block_rows + (scratch_rows == 0 ? 0 : worker)) * row_bytes;
    TransformRow(params, micro, first + r, x + r * row_bytes, reinterpret_cast<float*>(scratch));
  };
  for (int first = 0; first < params.num_rows; first += kBlockRows) {
    const int rows = std::min(kBlockRows, params.num_rows - first);
    if (static_cast<int64_t>(rows) * in_padded <= kSerialTransformElements) {
      for (int r = 0; r < rows; ++r) transform(first, r, 0);
    } else {
      cpu.team.ParallelFor(
          rows, [&](int r, int worker) { transform(first, r, worker); }, /*grain=*/4);
    }
    const int row_items = (rows + kItemRows - 1) / kItemRows;
    const Job job{cpu, params, micro, x, element_bytes, panel_bytes, in_padded, first, rows, row_items};
    cpu.team.ParallelFor(num_panels * row_items, [&](int item, int worker) { job.RunItem(item, worker); });
  }
}

}  // namespace winnow
