#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/scalar.h"
#include "tools/bench/gpu/matmul_weights.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using device::DecodeMatmulParams;
using device::DeviceMatrix;
using device::PrefillMatmulParams;

// Worst error of some rows of y over what f32 sums and the rounding of y may bring: each mma adds 16 products to a sum
// with the error of one truncated f32 addition of the largest term, so (in_features / 16 + 16) * 2^-22 of sum |x w|.
double WorstError(const MatmulWeight& weight, const std::vector<uint16_t>& x, const std::vector<float>& y,
                  int64_t y_stride, const std::vector<int>& rows, bool y_is_bf16) {
  const int in_features = weight.matrix.in_features;
  double worst = 0;
  for (const int row : rows) {
    for (int out = 0; out < weight.matrix.out_features; ++out) {
      const float* w = weight.values.data() + size_t(out) * in_features;
      double sum = 0, magnitude = 0;
      for (int k = 0; k < in_features; ++k) {
        const double product = double{w[k]} * Bf16ToF32(x[size_t(row) * in_features + k]);
        sum += product;
        magnitude += std::fabs(product);
      }
      const double allowed =
          magnitude * (in_features / 16.0 + 16) * std::ldexp(1.0, -22) + (y_is_bf16 ? std::fabs(sum) / 256 : 0) + 1e-30;
      const double error = std::fabs(y[row * y_stride + out] - sum) / allowed;
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

std::vector<float> Widened(const std::vector<uint16_t>& values) {
  std::vector<float> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), [](uint16_t value) { return Bf16ToF32(value); });
  return out;
}

// The number of elements that differ in their bits.
double BitsThatDiffer(const float* a, const float* b, size_t count) {
  double differ = 0;
  for (size_t i = 0; i < count; ++i) differ += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  return differ;
}

class DecodeCheck {
 public:
  DecodeCheck(GpuContext& gpu, const MatmulShape& shape, const MatmulForm& form)
      : gpu_(gpu),
        shape_(shape),
        name_("matmul decode " + Name(shape, form)),
        weight_(NewMatmulWeight(gpu, shape, form)),
        x_(RandomBf16(gpu, size_t{64} * shape.in_features, 1)),
        device_x_(gpu.Upload(x_)),
        scratch_(gpu.NewZeroed<uint8_t>(gpu.table.matmul->decode_scratch_bytes(64, shape.out_features))) {}

  void Run() {
    const std::vector<float> all = Multiply(64);
    const std::vector<int> rows = size_t(shape_.out_features) * shape_.in_features > 4'000'000
                                      ? std::vector<int>{0, 9, 38, 63}
                                      : std::vector<int>{0, 1, 7, 8, 15, 16, 23, 31, 32, 40, 47, 48, 63};
    gpu_.report.Check(name_, WorstError(weight_, x_, all, stride(), rows, false), 1);
    CheckRowInvariance(all);
    CheckBf16(all);
    CheckAccumulate(all);
  }

 private:
  int64_t stride() const { return shape_.out_features + 3; }  // y is wider than the product, and odd

  DecodeMatmulParams Params(int num_rows, void* y) const {
    return {.x = device_x_,
            .x_stride = shape_.in_features,
            .num_rows = num_rows,
            .weight = weight_.matrix,
            .y = y,
            .y_stride = stride(),
            .scratch = scratch_};
  }

  std::vector<float> Multiply(int num_rows, int first_row = 0) {
    float* y = gpu_.New<float>(num_rows * stride());
    DecodeMatmulParams params = Params(num_rows, y);
    params.x = device_x_ + size_t(first_row) * shape_.in_features;
    gpu_.table.matmul->decode_matmul(gpu_.stream, params);
    return gpu_.Download(y, num_rows * stride());
  }

  void CheckRowInvariance(const std::vector<float>& all) {
    double differ = 0;
    std::vector<int> batches(64);
    std::iota(batches.begin(), batches.end(), 1);
    for (const int num_rows : gpu_.Cases(batches, 3)) {
      // Other rows in another place: from row 0, and the last of the 64.
      for (const int first : {0, 64 - num_rows}) {
        const std::vector<float> some = Multiply(num_rows, first);
        for (int row = 0; row < num_rows; ++row) {
          differ += BitsThatDiffer(&some[row * stride()], &all[(first + row) * stride()], shape_.out_features);
        }
        const float poison = some[shape_.out_features];
        if (!std::isnan(poison)) gpu_.report.Fail(name_, "wrote beside a row of y");
      }
    }
    gpu_.report.Check(name_ + ", bits that depend on other rows", differ, 0);
  }

  void CheckBf16(const std::vector<float>& all) {
    uint16_t* y = gpu_.New<uint16_t>(33 * stride());
    DecodeMatmulParams params = Params(33, y);
    params.y_dtype = Dtype::kBf16;
    gpu_.table.matmul->decode_matmul(gpu_.stream, params);
    const std::vector<float> rounded = Widened(gpu_.Download(y, 33 * stride()));
    double differ = 0;
    for (int row = 0; row < 33; ++row) {
      for (int out = 0; out < shape_.out_features; ++out) {
        const size_t at = row * stride() + out;
        differ += rounded[at] != Bf16ToF32(F32ToBf16(all[at]));
      }
    }
    gpu_.report.Check(name_ + " to bf16", differ, 0);
  }

  void CheckAccumulate(const std::vector<float>& all) {
    std::normal_distribution<float> normal;
    std::vector<float> before(5 * stride());
    for (float& value : before) value = normal(gpu_.random);
    float* y = gpu_.Upload(before);
    DecodeMatmulParams params = Params(5, y);
    params.accumulate = true;
    gpu_.table.matmul->decode_matmul(gpu_.stream, params);
    const std::vector<float> after = gpu_.Download(y, before.size());
    double differ = 0;
    for (int row = 0; row < 5; ++row) {
      for (int column = 0; column < stride(); ++column) {
        const size_t at = row * stride() + column;
        // One rounding; a fused multiply with the scale may save the product's, which is exact for powers of two.
        differ += after[at] != (column < shape_.out_features ? before[at] + all[at] : before[at]);
      }
    }
    gpu_.report.Check(name_ + " accumulated", differ, 0);
  }

  GpuContext& gpu_;
  const MatmulShape shape_;
  const std::string name_;
  const MatmulWeight weight_;
  const std::vector<uint16_t> x_;
  const uint16_t* const device_x_;
  void* const scratch_;
};

void CheckPrefill(GpuContext& gpu, device::PrefillPlans& plans, const MatmulShape& shape, const MatmulForm& form) {
  constexpr int kRows = 700;
  MatmulWeight weight = NewMatmulWeight(gpu, shape, form);
  // Prefill unpacks to bf16, which of the others loses nothing.
  if (form.group_size > 0)
    std::transform(weight.values.begin(), weight.values.end(), weight.values.begin(), RoundToBf16);
  const std::vector<uint16_t> x = RandomBf16(gpu, size_t{kRows} * shape.in_features, 1);
  const uint16_t* device_x = gpu.Upload(x);
  void* workspace = gpu.New<uint8_t>(gpu.table.matmul->prefill_workspace_bytes(kRows));
  const int64_t stride = shape.out_features;
  const auto multiply = [&](int first, int count, void* y, Dtype y_dtype, bool accumulate) {
    const size_t y_offset = first * stride * (y_dtype == Dtype::kF32 ? 4 : 2);
    const PrefillMatmulParams params = {.plans = &plans,
                                        .x = device_x + size_t(first) * shape.in_features,
                                        .x_stride = shape.in_features,
                                        .num_rows = count,
                                        .weight = weight.matrix,
                                        .accumulate = accumulate,
                                        .y = static_cast<uint8_t*>(y) + y_offset,
                                        .y_stride = stride,
                                        .y_dtype = y_dtype,
                                        .workspace = workspace};
    gpu.table.matmul->prefill_matmul(gpu.stream, params);
  };
  const std::string name = "matmul prefill " + Name(shape, form);
  const std::vector<int> rows = {0, 1, 127, 128, 511, 699};

  float* y = gpu.New<float>(kRows * stride);
  multiply(0, kRows, y, Dtype::kF32, false);
  const std::vector<float> whole = gpu.Download(y, kRows * stride);
  gpu.report.Check(name, WorstError(weight, x, whole, stride, rows, false), 1);

  float* chunked_y = gpu.New<float>(kRows * stride);
  for (int first = 0, count = 1; first < kRows; first += count, count = std::min(2 * count + 1, kRows - first)) {
    multiply(first, count, chunked_y, Dtype::kF32, false);
  }
  const std::vector<float> chunked = gpu.Download(chunked_y, kRows * stride);
  gpu.report.Check(name + ", bits that depend on the chunk", BitsThatDiffer(&whole[0], &chunked[0], whole.size()), 0);

  multiply(0, kRows, chunked_y, Dtype::kF32, true);
  std::vector<float> twice = gpu.Download(chunked_y, kRows * stride);
  for (float& value : twice) value /= 2;
  gpu.report.Check(name + " accumulated", WorstError(weight, x, twice, stride, rows, false), 1);

  uint16_t* rounded_y = gpu.New<uint16_t>(kRows * stride);
  multiply(0, kRows, rounded_y, Dtype::kBf16, false);
  gpu.report.Check(name + " to bf16",
                   WorstError(weight, x, Widened(gpu.Download(rounded_y, kRows * stride)), stride, rows, true), 1);
}

constexpr MatmulForm kForms[] = {{Dtype::kBf16},   {Dtype::kF8},      {Dtype::kF8, 128}, {Dtype::kF8, 64},
                                 {Dtype::kF8, 32}, {Dtype::kI4, 128}, {Dtype::kI4, 64},  {Dtype::kI4, 32}};

void Check(GpuContext& gpu) {
  const std::vector<MatmulShape> decode_shapes = {{77, 32},    {1, 64},     {513, 2080}, {1000, 96},
                                                  {768, 256},  {1536, 256}, {256, 768},  {1024, 512},
                                                  {2816, 512}, {512, 1408}, {4096, 512}, {7168, 5120}};
  const std::vector<MatmulShape> prefill_shapes = {{768, 256}, {512, 1408}, {4104, 2080}};
  const std::vector<MatmulShape> small_shapes = {{77, 32}, {768, 256}};
  const std::unique_ptr<device::PrefillPlans> plans = gpu.table.matmul->open_prefill_plans();
  for (const MatmulShape& shape : {MatmulShape{40, 48}, MatmulShape{513, 8}, MatmulShape{96, 200}}) {
    DecodeCheck(gpu, shape, {Dtype::kBf16}).Run();
    CheckPrefill(gpu, *plans, shape, {Dtype::kBf16});
    gpu.FreeAll();
  }
  for (const MatmulForm& form : kForms) {
    for (const MatmulShape& shape : gpu.few_small ? small_shapes : decode_shapes) {
      DecodeCheck(gpu, shape, form).Run();
      gpu.FreeAll();
    }
    for (const MatmulShape& shape : gpu.few_small ? small_shapes : prefill_shapes) {
      CheckPrefill(gpu, *plans, shape, form);
      gpu.FreeAll();
    }
  }
}

double BytesOf(const GpuContext& gpu, const MatmulShape& shape, const MatmulForm& form) {
  const device::MatmulKernels& kernels = *gpu.table.matmul;
  return static_cast<double>(kernels.packed_bytes(shape.out_features, shape.in_features, form.dtype) +
                             kernels.scale_bytes(shape.out_features, shape.in_features, form.dtype, form.group_size));
}

// All matrices of Qwen3-14B, each layer's its own.
class Qwen14b {
 public:
  static constexpr int kLayers = 40;
  static constexpr MatmulShape kShapes[] = {{7168, 5120}, {5120, 5120}, {34816, 5120}, {5120, 17408}};
  static constexpr const char* kNames[] = {"qkv", "o", "gate_up", "down"};
  static constexpr MatmulShape kHead = {151936, 5120};

  Qwen14b(GpuContext& gpu, const MatmulForm& form) : gpu_(gpu), form_(form) {
    random_ = NewRandom(size_t{kHead.out_features} * kHead.in_features);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const MatmulShape& shape : kShapes) matrices_.push_back(New(shape));
    }
    matrices_.push_back(New(kHead));
    x_ = NewRandom(size_t{8192} * 17408);
    y_ = gpu.New<float>(size_t{8192} * 34816);
    scratch_ = gpu.NewZeroed<uint8_t>(gpu.table.matmul->decode_scratch_bytes(64, kHead.out_features));
    workspace_ = gpu.New<uint8_t>(gpu.table.matmul->prefill_workspace_bytes(8192));
    plans_ = gpu.table.matmul->open_prefill_plans();
  }

  double bytes() const { return bytes_; }
  // Of layer `set`, shape `which` of kShapes, or the head after the last layer.
  const DeviceMatrix& matrix(int layer, int which) const { return matrices_[layer * std::size(kShapes) + which]; }

  void Decode(device::Stream stream, const DeviceMatrix& matrix, int num_rows) const {
    gpu_.table.matmul->decode_matmul(stream, {.x = x_,
                                              .x_stride = matrix.in_features,
                                              .num_rows = num_rows,
                                              .weight = matrix,
                                              .y = y_,
                                              .y_stride = matrix.out_features,
                                              .scratch = scratch_});
  }
  void DecodeAll(device::Stream stream, int num_rows) const {
    for (const DeviceMatrix& matrix : matrices_) Decode(stream, matrix, num_rows);
  }
  void Prefill(device::Stream stream, const DeviceMatrix& matrix, int num_rows) const {
    gpu_.table.matmul->prefill_matmul(stream, {.plans = plans_.get(),
                                               .x = x_,
                                               .x_stride = matrix.in_features,
                                               .num_rows = num_rows,
                                               .weight = matrix,
                                               .y = y_,
                                               .y_stride = matrix.out_features,
                                               .y_dtype = Dtype::kBf16,
                                               .workspace = workspace_});
  }

 private:
  // 4 MB of random values again and again.
  uint16_t* NewRandom(size_t count) {
    const std::vector<uint16_t> block = RandomBf16(gpu_, size_t{1} << 21, 0.05f);
    uint16_t* values = gpu_.New<uint16_t>(count);
    for (size_t done = 0; done < count; done += block.size()) {
      gpu_.device.CopyAsync(values + done, block.data(), std::min(block.size(), count - done) * 2, gpu_.stream);
    }
    WINNOW_CHECK(gpu_.device.Synchronize(gpu_.stream).ok());
    return values;
  }
  DeviceMatrix New(const MatmulShape& shape) {
    bytes_ += BytesOf(gpu_, shape, form_);
    const DeviceMatrix matrix = NewMatrix(gpu_, shape, form_);
    gpu_.table.matmul->pack(gpu_.stream, random_, matrix);
    return matrix;
  }

  GpuContext& gpu_;
  const MatmulForm form_;
  double bytes_ = 0;
  uint16_t* random_;
  std::vector<DeviceMatrix> matrices_;
  const uint16_t* x_;
  float* y_;
  void* scratch_;
  void* workspace_;
  std::unique_ptr<device::PrefillPlans> plans_;
};

void BenchOf(GpuContext& gpu, const MatmulForm& form) {
  const Qwen14b model(gpu, form);
  const std::string type = " " + FormName(form);
  for (const int num_rows : {1, 8, 32, 64}) {
    const double goal_ms = form.dtype != Dtype::kBf16 || num_rows == 64 ? 0
                           : num_rows == 1                              ? 6.6
                           : num_rows == 8                              ? 6.7
                                                                        : 6.9;
    const double us = gpu.MedianUs(
        1, 1, [&](device::Stream stream, int) { model.DecodeAll(stream, num_rows); }, /*replays=*/9);
    gpu.report.Time(absl::StrCat("matmul, all of Qwen3-14B, ", num_rows, " rows", type), us,
                    model.bytes() / gpu.read_bytes_per_us, goal_ms * 1000);
  }
  for (size_t which = 0; which < std::size(Qwen14b::kShapes); ++which) {
    const MatmulShape shape = Qwen14b::kShapes[which];
    const std::string name = absl::StrCat("matmul ", Qwen14b::kNames[which], type, ", ");
    for (const int num_rows : {8, 32}) {
      const double us = gpu.MedianUs(
          Qwen14b::kLayers, Qwen14b::kLayers,
          [&](device::Stream stream, int layer) { model.Decode(stream, model.matrix(layer, which), num_rows); }, 5);
      gpu.report.Time(absl::StrCat(name, num_rows, " rows"), us, BytesOf(gpu, shape, form) / gpu.read_bytes_per_us);
    }
    for (const int num_rows : {2048, 8192}) {
      const double us = gpu.MedianUs(
          2, 6, [&](device::Stream stream, int layer) { model.Prefill(stream, model.matrix(layer, which), num_rows); },
          5);
      const double flops = 2.0 * num_rows * shape.out_features * shape.in_features;
      gpu.report.Time(absl::StrCat(name, num_rows, " rows, ", static_cast<int>(flops / us / 1e6), " TFLOP/s"), us,
                      flops / 790e6);
    }
  }
  gpu.FreeAll();
}

void Bench(GpuContext& gpu) {
  for (const MatmulForm& form : kForms) {
    if (form.group_size == 0 || form.group_size == 128) BenchOf(gpu, form);
  }
}

}  // namespace

GpuSection MatmulSection() {
  return {"matmul", Check, Bench};
}

}  // namespace winnow
