#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "common/base/kv_layout.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

float Bf16ToF32(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}
uint16_t F32ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct Shape {
  int head_dim, num_query_heads, num_kv_heads;
  int first_position, num_queries;
  int sinks = 0;
  std::vector<uint32_t> windows = {};  // empty, or one per kv head
  uint32_t sliding_window = 0;
  std::vector<float> scores = {};  // that take part in the softmax, one per query head; or empty
  bool int8 = false;               // rows

  std::string Name() const {
    return absl::StrFormat("%shead_dim %d, %d/%d heads, %d queries at %d%s%s%s", int8 ? "int8 rows, " : "", head_dim,
                           num_query_heads, num_kv_heads, num_queries, first_position,
                           windows.empty() ? "" : ", streaming", sliding_window > 0 ? ", window" : "",
                           scores.empty() ? "" : ", sinks");
  }
};

// The rows of a whole sequence, on the host and on the device. kv_head_stride leaves rows between the heads that
// nothing may read: they stay NaN.
struct Sequence {
  int length, kv_head_stride;
  int64_t device_stride = 0;  // rows from head to head on the device
  std::vector<uint16_t> q;
  std::vector<float> kv;  // as they are stored
  uint16_t *q_device, *kv_device;
  // Of rows of int8: `kv_device` has their codes.
  float *key_scales = nullptr, *value_scales = nullptr;
};

// Rows of int8 as the device has them for attention, from random ones: some keys and values of zeros, some with one
// element far above the others.
void MakeInt8Rows(GpuContext& gpu, const Shape& shape, float key_deviation, Sequence& sequence) {
  const int dim = shape.head_dim;
  const size_t row_bytes = RowLayout().bytes(dim, Dtype::kI8),
               all = size_t(sequence.kv_head_stride) * shape.num_kv_heads;
  std::vector<std::byte> rows(all * row_bytes, std::byte{0xff});
  std::normal_distribution<float> normal;
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    for (int i = 0; i < sequence.length; ++i) {
      const size_t at = static_cast<size_t>(head) * sequence.kv_head_stride + i;
      float* const to = &sequence.kv[at * 2 * dim];
      std::byte* const row = &rows[at * row_bytes];
      for (const bool is_value : {false, true}) {
        const int kind = static_cast<int>(gpu.random() % 16);
        std::vector<float> x(dim);
        for (float& element : x) element = kind == 0 ? 0 : normal(gpu.random) * (is_value ? 1 : key_deviation);
        if (kind == 1) x[gpu.random() % dim] *= 12;
        float largest = 0;
        for (const float element : x) largest = std::max(largest, std::abs(element));
        const float scale = largest / 127;
        for (int d = 0; d < dim; ++d) {
          const auto code = static_cast<int8_t>(scale == 0 ? 0 : std::nearbyint(x[d] / scale));
          row[is_value * dim + d] = static_cast<std::byte>(code);
          to[is_value * dim + d] = static_cast<float>(code) * scale;
        }
        std::memcpy(row + 2 * dim + is_value * sizeof scale, &scale, sizeof scale);
      }
    }
  }
  const int64_t stride = (sequence.kv_head_stride + device::kPrefillScalePad + 3) / 4 * 4;
  const size_t wide = static_cast<size_t>(stride) * shape.num_kv_heads;
  sequence.kv_device = gpu.New<uint16_t>(wide * 2 * dim);
  sequence.key_scales = gpu.New<float>(wide);
  sequence.value_scales = gpu.New<float>(wide);
  gpu.table.prefill->widen_rows(gpu.stream, {.rows = gpu.Upload(rows),
                                             .head_stride = sequence.kv_head_stride,
                                             .num_rows = static_cast<uint32_t>(sequence.length),
                                             .num_kv_heads = shape.num_kv_heads,
                                             .head_dim = dim,
                                             .kv = sequence.kv_device,
                                             .key_scales = sequence.key_scales,
                                             .value_scales = sequence.value_scales,
                                             .kv_head_stride = stride});
  sequence.device_stride = stride;
}

Sequence NewSequence(GpuContext& gpu, const Shape& shape, float key_deviation) {
  Sequence sequence = {.length = shape.first_position + shape.num_queries,
                       .kv_head_stride = 0,
                       .q = {},
                       .kv = {},
                       .q_device = nullptr,
                       .kv_device = nullptr};
  sequence.device_stride = sequence.kv_head_stride = sequence.length + 3;
  const int row = 2 * shape.head_dim;
  std::normal_distribution<float> normal;
  sequence.q.resize(static_cast<size_t>(sequence.length) * shape.num_query_heads * shape.head_dim);
  for (uint16_t& value : sequence.q) value = F32ToBf16(normal(gpu.random));
  sequence.q_device = gpu.Upload(sequence.q);
  const size_t elements = static_cast<size_t>(sequence.kv_head_stride) * shape.num_kv_heads * row;
  sequence.kv.assign(elements, std::numeric_limits<float>::quiet_NaN());
  if (shape.int8) {
    MakeInt8Rows(gpu, shape, key_deviation, sequence);
    return sequence;
  }
  std::vector<uint16_t> kv(elements, 0xffff);
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    const size_t first = static_cast<size_t>(head) * sequence.kv_head_stride * row;
    for (int i = 0; i < sequence.length * row; ++i) {
      kv[first + i] = F32ToBf16(normal(gpu.random) * (i % row < shape.head_dim ? key_deviation : 1));
      sequence.kv[first + i] = Bf16ToF32(kv[first + i]);
    }
  }
  sequence.kv_device = gpu.Upload(kv);
  return sequence;
}

using Kernel = decltype(device::PrefillAttentionKernels::prefill_attention);

// The chunk [begin, end) of a sequence.
std::vector<uint16_t> Attend(GpuContext& gpu, Kernel kernel, const Shape& shape, const Sequence& sequence, int begin,
                             int end) {
  const size_t row = static_cast<size_t>(shape.num_query_heads) * shape.head_dim;
  uint16_t* out = gpu.New<uint16_t>((end - begin) * row);
  kernel(gpu.stream, {.q = sequence.q_device + begin * row,
                      .num_queries = end - begin,
                      .first_position = static_cast<uint32_t>(begin),
                      .num_query_heads = shape.num_query_heads,
                      .num_kv_heads = shape.num_kv_heads,
                      .head_dim = shape.head_dim,
                      .scale = 1 / std::sqrt(static_cast<float>(shape.head_dim)),
                      .kv = sequence.kv_device,
                      .kv_head_stride = sequence.device_stride,
                      .key_scales = sequence.key_scales,
                      .value_scales = sequence.value_scales,
                      .streaming_window = shape.windows.empty() ? nullptr : gpu.Upload(shape.windows),
                      .streaming_sinks = static_cast<uint32_t>(shape.sinks),
                      .sliding_window = shape.sliding_window,
                      .sinks = shape.scores.empty() ? nullptr : gpu.Upload(shape.scores),
                      .out = out});
  return gpu.Download(out, (end - begin) * row);
}

// Error over its bound, of one query head at one position, in f64.
double ErrorOverBound(const Shape& shape, const Sequence& sequence, int position, int head, const uint16_t* got) {
  const int dim = shape.head_dim;
  const int kv_head = head / (shape.num_query_heads / shape.num_kv_heads);
  const uint16_t* q = &sequence.q[(static_cast<size_t>(position) * shape.num_query_heads + head) * dim];
  const float* kv = &sequence.kv[static_cast<size_t>(kv_head) * sequence.kv_head_stride * 2 * dim];
  const auto window = static_cast<int>(shape.windows.empty() ? shape.sliding_window : shape.windows[kv_head]);
  std::vector<double> scores(position + 1, -std::numeric_limits<double>::infinity());
  double largest = -std::numeric_limits<double>::infinity(), magnitude = 0;
  for (int key = 0; key <= position; ++key) {
    if (window != 0 && key >= shape.sinks && position - key >= window) continue;
    double dot = 0, size = 0;
    for (int d = 0; d < dim; ++d) {
      const double product = double{Bf16ToF32(q[d])} * kv[static_cast<size_t>(key) * 2 * dim + d];
      dot += product;
      size += std::abs(product);
    }
    scores[key] = dot / std::sqrt(static_cast<double>(dim));
    magnitude = std::max(magnitude, size / std::sqrt(static_cast<double>(dim)));
    largest = std::max(largest, scores[key]);
  }
  std::vector<double> out(dim), sizes(dim);
  double sum = shape.scores.empty() ? 0 : std::exp(shape.scores[head] - largest);
  for (int key = 0; key <= position; ++key) {
    const double weight = std::exp(scores[key] - largest);
    sum += weight;
    for (int d = 0; weight > 0 && d < dim; ++d) {
      const double v = kv[static_cast<size_t>(key) * 2 * dim + dim + d];
      out[d] += weight * v;
      sizes[d] += weight * std::abs(v);
    }
  }
  double worst = 0;
  for (int d = 0; d < dim; ++d) {
    const double want = out[d] / sum, size = sizes[d] / sum;
    // Weights and results are rounded to bf16. Scores are sums of f32 whose terms lose up to two bits more inside the
    // tensor cores, and then weights err by as much, relatively; so do the sums over keys.
    // Weights below the least normal number are zeros.
    const double bound = 0x1p-8 * (size + std::abs(want)) + 0x1p-20 * (magnitude + 16) * size + 0x1p-100;
    const double error = std::abs(Bf16ToF32(got[d]) - want) / bound;
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

void CheckShape(GpuContext& gpu, Kernel kernel, const Shape& shape, float key_deviation = 1) {
  const Sequence sequence = NewSequence(gpu, shape, key_deviation);
  const int begin = shape.first_position, end = begin + shape.num_queries;
  const size_t row = static_cast<size_t>(shape.num_query_heads) * shape.head_dim;
  const std::vector<uint16_t> got = Attend(gpu, kernel, shape, sequence, begin, end);
  double worst = 0;
  for (int sample = 0; sample < 160; ++sample) {
    // The first and the last queries, and some between.
    const int query = sample < 4   ? std::min(sample, shape.num_queries - 1)
                      : sample < 8 ? std::max(shape.num_queries - 1 - (sample - 4), 0)
                                   : static_cast<int>(gpu.random() % shape.num_queries);
    const int head = gpu.random() % shape.num_query_heads;
    const double error =
        ErrorOverBound(shape, sequence, begin + query, head, &got[query * row + head * shape.head_dim]);
    if (!(error <= worst)) worst = error;
  }
  gpu.report.Check("attention over its bound, " + shape.Name(), worst, 1);
  const auto is_nan = [](uint16_t x) { return (x & 0x7fff) > 0x7f80; };
  gpu.report.Check("unwritten, " + shape.Name(), static_cast<double>(std::count_if(got.begin(), got.end(), is_nan)), 0);

  // The same rows in other chunks: bit by bit.
  for (int round = 0; round < gpu.Size(3, 1) && shape.num_queries > 1; ++round) {
    const int from = begin + static_cast<int>(gpu.random() % shape.num_queries);
    const int to = from + 1 + static_cast<int>(gpu.random() % (end - from));
    const std::vector<uint16_t> part = Attend(gpu, kernel, shape, sequence, from, to);
    const bool same = std::equal(part.begin(), part.end(), got.begin() + (from - begin) * row);
    gpu.report.Check(absl::StrFormat("chunk [%d, %d), %s", from, to, shape.Name()), same ? 0 : 1, 0);
  }
  gpu.FreeAll();
}

void CheckInt8Rows(GpuContext& gpu, Kernel kernel) {
  for (const int head_dim : gpu.Cases<int>({64, 96, 128, 256}, 2)) {
    Shape shape{.head_dim = head_dim,
                .num_query_heads = 10,
                .num_kv_heads = 2,
                .first_position = 0,
                .num_queries = gpu.Size(700, 260),
                .int8 = true};
    CheckShape(gpu, kernel, shape);
    shape.first_position = gpu.Size(1931, 331);
    shape.num_queries = gpu.Size(333, 140);
    CheckShape(gpu, kernel, shape);
    CheckShape(gpu, kernel, shape, 20);
    shape.num_query_heads = 4;
    shape.num_kv_heads = 1;
    shape.sliding_window = 300;
    shape.scores = {-3, 0, 2.5f, 9};
    CheckShape(gpu, kernel, shape);
    CheckShape(gpu, kernel,
               {.head_dim = head_dim,
                .num_query_heads = 4,
                .num_kv_heads = 4,
                .first_position = 77,
                .num_queries = 1,
                .int8 = true});
  }
}

void CheckKernel(GpuContext& gpu, Kernel kernel) {
  CheckInt8Rows(gpu, kernel);
  for (const int head_dim : gpu.Cases<int>({16, 32, 64, 96, 128, 256}, 2)) {
    for (const int group : gpu.Cases<int>({1, 5, 8})) {
      CheckShape(gpu, kernel,
                 {.head_dim = head_dim,
                  .num_query_heads = 2 * group,
                  .num_kv_heads = 2,
                  .first_position = 0,
                  .num_queries = gpu.Size(700, 260)});
    }
    CheckShape(gpu, kernel,
               {.head_dim = head_dim,
                .num_query_heads = 6,
                .num_kv_heads = 2,
                .first_position = gpu.Size(1931, 331),
                .num_queries = gpu.Size(333, 140)});
    CheckShape(gpu, kernel,
               {.head_dim = head_dim, .num_query_heads = 4, .num_kv_heads = 4, .first_position = 77, .num_queries = 1});
    CheckShape(gpu, kernel,
               {.head_dim = head_dim,
                .num_query_heads = 6,
                .num_kv_heads = 3,
                .first_position = 200,
                .num_queries = gpu.Size(900, 150),
                .sinks = 4,
                .windows = {0, 100, 256}});
    CheckShape(gpu, kernel,
               {.head_dim = head_dim,
                .num_query_heads = 2,
                .num_kv_heads = 2,
                .first_position = gpu.Size(1000, 300),
                .num_queries = gpu.Size(200, 100),
                .sinks = 0,
                .windows = {1, 129}});
    for (const uint32_t window : {1u, 63u, 128u, 300u}) {
      CheckShape(gpu, kernel,
                 {.head_dim = head_dim,
                  .num_query_heads = 4,
                  .num_kv_heads = 1,
                  .first_position = gpu.Size(500, 100),
                  .num_queries = gpu.Size(700, 200),
                  .sliding_window = window,
                  .scores = {-3, 0, 2.5f, 9}});
    }
  }
  if (gpu.few_small) return;
  // Scores of a spread of 20: the running maximum jumps.
  CheckShape(gpu, kernel,
             {.head_dim = 128, .num_query_heads = 5, .num_kv_heads = 1, .first_position = 0, .num_queries = 3000}, 20);
  CheckShape(gpu, kernel,
             {.head_dim = 128, .num_query_heads = 40, .num_kv_heads = 8, .first_position = 6000, .num_queries = 2048});
}

// What the tensor cores of this GPU reach in a large bf16 product, in FLOP per microsecond, by the rule of thumb of an
// H200 (790 TFLOP/s) where nothing better is known.
constexpr double kMatmulFlopsPerUs = 790e6;

void BenchShape(GpuContext& gpu, Kernel kernel, const Shape& shape, double goal_fraction) {
  const int length = shape.first_position + shape.num_queries;
  const size_t q_elements = static_cast<size_t>(shape.num_queries) * shape.num_query_heads * shape.head_dim;
  const size_t kv_elements = static_cast<size_t>(length) * shape.num_kv_heads * 2 * shape.head_dim;
  uint16_t* q = gpu.New<uint16_t>(q_elements);
  uint16_t* kv = gpu.New<uint16_t>(kv_elements);
  uint16_t* out = gpu.New<uint16_t>(q_elements);
  gpu.table.elementwise->fill_normal(gpu.stream, q, q_elements, gpu.random(), 1);
  gpu.table.elementwise->fill_normal(gpu.stream, kv, kv_elements, gpu.random(), 1);
  const uint32_t* windows = shape.windows.empty() ? nullptr : gpu.Upload(shape.windows);
  const int64_t stride = length + (shape.int8 ? device::kPrefillScalePad : 0);
  device::WidenRowsParams widen = {.head_stride = length,
                                   .num_rows = static_cast<uint32_t>(length),
                                   .num_kv_heads = shape.num_kv_heads,
                                   .head_dim = shape.head_dim,
                                   .kv_head_stride = stride};
  if (shape.int8) {
    const size_t rows = static_cast<size_t>(stride) * shape.num_kv_heads;
    widen.rows = gpu.NewZeroed<std::byte>(rows * RowLayout().bytes(shape.head_dim, Dtype::kI8));
    widen.kv = gpu.New<uint16_t>(rows * 2 * shape.head_dim);
    widen.key_scales = gpu.NewZeroed<float>(rows);
    widen.value_scales = gpu.NewZeroed<float>(rows);
  }
  const double us = gpu.MedianUs(
      1, 1,
      [&](device::Stream stream, int) {
        if (shape.int8) gpu.table.prefill->widen_rows(stream, widen);
        kernel(stream, {.q = q,
                        .num_queries = shape.num_queries,
                        .first_position = static_cast<uint32_t>(shape.first_position),
                        .num_query_heads = shape.num_query_heads,
                        .num_kv_heads = shape.num_kv_heads,
                        .head_dim = shape.head_dim,
                        .scale = 1 / std::sqrt(static_cast<float>(shape.head_dim)),
                        .kv = shape.int8 ? widen.kv : kv,
                        .kv_head_stride = stride,
                        .key_scales = widen.key_scales,
                        .value_scales = widen.value_scales,
                        .streaming_window = windows,
                        .streaming_sinks = static_cast<uint32_t>(shape.sinks),
                        .out = out});
      },
      7);
  double pairs = 0;  // that are not masked, of all query heads
  const int group = shape.num_query_heads / shape.num_kv_heads;
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    const double window = shape.windows.empty() ? 0 : shape.windows[head];
    for (int i = shape.first_position; i < length; ++i) {
      pairs += group * (window == 0 ? i + 1 : std::min(i + 1.0, window + shape.sinks));
    }
  }
  const double flops = 4 * pairs * shape.head_dim;
  const double floor_us = flops / kMatmulFlopsPerUs;
  gpu.report.Time("prefill, " + shape.Name(), us, floor_us, goal_fraction > 0 ? floor_us / goal_fraction : 0);
  gpu.report.Note("prefill, " + shape.Name(), absl::StrFormat("%.0f TFLOP/s", flops / us / 1e6));
  gpu.FreeAll();
}

void BenchKernel(GpuContext& gpu, Kernel kernel) {
  Shape shape = {.head_dim = 128, .num_query_heads = 40, .num_kv_heads = 8, .first_position = 0, .num_queries = 2048};
  BenchShape(gpu, kernel, shape, 0);
  shape.num_queries = 8192;
  BenchShape(gpu, kernel, shape, 0.6);
  shape.num_queries = 32768;
  BenchShape(gpu, kernel, shape, 0.6);
  shape.first_position = 30720;
  shape.num_queries = 2048;
  BenchShape(gpu, kernel, shape, 0.6);
  shape.int8 = true;
  BenchShape(gpu, kernel, shape, 0);
  shape.int8 = false;
  shape.sinks = 128;  // half of the heads stream, as LServe has it
  shape.windows = {0, 256, 0, 256, 0, 256, 0, 256};
  BenchShape(gpu, kernel, shape, 0);
  for (const int head_dim : {64, 96, 256}) {
    BenchShape(
        gpu, kernel,
        {.head_dim = head_dim, .num_query_heads = 32, .num_kv_heads = 8, .first_position = 0, .num_queries = 8192}, 0);
  }
}

// Both paths where there are two; the slower one first.
void Check(GpuContext& gpu) {
  gpu.report.Note("prefill attention", "checking the kernel for any GPU");
  CheckKernel(gpu, gpu.table.prefill->prefill_attention_any_gpu);
  gpu.report.Note("prefill attention", "checking the kernel for this GPU");
  CheckKernel(gpu, gpu.table.prefill->prefill_attention);
}

void Bench(GpuContext& gpu) {
  gpu.report.Note("prefill attention", "timing the kernel for any GPU");
  BenchShape(gpu, gpu.table.prefill->prefill_attention_any_gpu,
             {.head_dim = 128, .num_query_heads = 40, .num_kv_heads = 8, .first_position = 0, .num_queries = 8192}, 0);
  gpu.report.Note("prefill attention", "timing the kernel for this GPU");
  BenchKernel(gpu, gpu.table.prefill->prefill_attention);
}

}  // namespace

GpuSection PrefillAttentionSection() {
  return {"prefill_attention", Check, Bench};
}

}  // namespace winnow
