#include "tools/bench/gpu/matmul_weights.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/fp8.h"
#include "kernels/cpu/scalar.h"

namespace winnow {
namespace {

// The nearest e4m3, ties to even, clipped to 448.
float NearestF8(float value) {
  const float magnitude = std::min(std::fabs(value), 448.0f);
  const int exponent = std::max(std::ilogb(magnitude), -6);  // subnormals share the step of the smallest normals
  const float step = std::ldexp(1.0f, exponent - 3);
  return std::copysign(std::min(std::nearbyint(magnitude / step) * step, 448.0f), value);
}

// Packed from bf16: in bf16 as it is, in fp8 with a scale for each row.
MatmulWeight NewPackedWeight(GpuContext& gpu, const MatmulShape& shape, const MatmulForm& form) {
  const size_t count = size_t(shape.out_features) * shape.in_features;
  std::vector<uint16_t> row_major = RandomBf16(gpu, count, 0.05f);
  // Rows of very different size, one of zeros: scales are per row.
  for (int out = 0; out < shape.out_features; ++out) {
    const float factor = out == 1 ? 0.0f : std::ldexp(1.0f, out % 13 - 6);
    for (int k = 0; k < shape.in_features; ++k) {
      uint16_t& value = row_major[size_t(out) * shape.in_features + k];
      value = F32ToBf16(Bf16ToF32(value) * factor);
    }
  }
  MatmulWeight weight{.matrix = NewMatrix(gpu, shape, form), .values = std::vector<float>(count)};
  gpu.table.matmul->pack(gpu.stream, gpu.Upload(row_major), weight.matrix);
  for (size_t i = 0; i < count; ++i) weight.values[i] = Bf16ToF32(row_major[i]);
  if (form.dtype == Dtype::kF8) {
    const std::vector<float> of_rows = gpu.Download(weight.matrix.scales, shape.out_features);
    double worst = 0;
    for (int out = 0; out < shape.out_features; ++out) {
      float* row = weight.values.data() + size_t(out) * shape.in_features;
      for (int k = 0; k < shape.in_features; ++k) {
        const float kept = NearestF8(row[k] / of_rows[out]) * of_rows[out];
        // Half a step of a 3-bit mantissa, or of the subnormals.
        const float allowed = std::max(std::fabs(row[k]) / 16, of_rows[out] * std::ldexp(1.0f, -10));
        worst = std::max<double>(worst, std::fabs(kept - row[k]) / allowed);
        row[k] = kept;
      }
    }
    gpu.report.Check("matmul pack " + Name(shape, form), worst, 1);
  }
  return weight;
}

// Random codes with a scale, and for int4 a zero, for each group; fp8 scales are shared by 16 output features.
MatmulWeight NewStoredWeight(GpuContext& gpu, const MatmulShape& shape, const MatmulForm& form) {
  const size_t out_features = shape.out_features, in = shape.in_features;
  const bool fp8 = form.dtype == Dtype::kF8;
  const size_t groups = (in + form.group_size - 1) / form.group_size;
  std::vector<uint8_t> codes(out_features * in), zeros(out_features * groups);
  std::vector<float> scales(out_features * groups);
  for (uint8_t& code : codes) {
    code = static_cast<uint8_t>(fp8 ? gpu.random() % 256 : gpu.random() % 16);
    if (fp8 && (code & 0x7f) == 0x7f) code = 0;
  }
  for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(gpu.random() % 17);
  for (size_t out = 0; out < out_features; ++out) {
    for (size_t group = 0; group < groups; ++group) {
      // Groups of very different size; as many bits as f16 has.
      const float scale = std::ldexp(static_cast<float>(1024 + gpu.random() % 1024), static_cast<int>(out % 13) - 24);
      const size_t shared = out / device::kF8ScaleOutputs * device::kF8ScaleOutputs;
      scales[out * groups + group] = fp8 && out != shared ? scales[shared * groups + group] : scale;
    }
  }
  MatmulWeight weight{.matrix = NewMatrix(gpu, shape, form), .values = std::vector<float>(codes.size())};
  gpu.table.matmul->pack_codes(gpu.stream,
                               {.codes = gpu.Upload(codes), .scales = gpu.Upload(scales), .zeros = gpu.Upload(zeros)},
                               weight.matrix);
  for (size_t i = 0; i < codes.size(); ++i) {
    const size_t group = i / in * groups + i % in / form.group_size;
    const float code = fp8 ? Fp8ToF32(codes[i]) : static_cast<float>(codes[i] - zeros[group]);
    weight.values[i] = code * scales[group];
  }
  return weight;
}

// The weights that prefill sees of a matrix: columns of its outputs for unit vectors.
std::vector<float> UnpackedValues(GpuContext& gpu, const device::DeviceMatrix& matrix) {
  const size_t in = matrix.in_features, out = matrix.out_features;
  std::vector<uint16_t> units(in * in);
  for (size_t k = 0; k < in; ++k) units[k * in + k] = F32ToBf16(1);
  float* y = gpu.New<float>(in * out);
  const std::unique_ptr<device::PrefillPlans> plans = gpu.table.matmul->open_prefill_plans();
  gpu.table.matmul->prefill_matmul(
      gpu.stream, {.plans = plans.get(),
                   .x = gpu.Upload(units),
                   .x_stride = matrix.in_features,
                   .num_rows = matrix.in_features,
                   .weight = matrix,
                   .y = y,
                   .y_stride = matrix.out_features,
                   .workspace = gpu.New<uint8_t>(gpu.table.matmul->prefill_workspace_bytes(matrix.in_features))});
  const std::vector<float> columns = gpu.Download(y, in * out);
  std::vector<float> values(in * out);
  for (size_t i = 0; i < values.size(); ++i) values[i] = columns[i % in * out + i / in];
  return values;
}

// What rounding to groups may change of bf16 weights: half a step of int4, or of an e4m3 whose scale takes the group's
// largest to (224, 448], and the rounding to bf16 that prefill does.
void CheckPackedGroups(GpuContext& gpu, const MatmulShape& shape, const MatmulForm& form) {
  const size_t in = shape.in_features, group = form.group_size;
  const std::vector<uint16_t> source = RandomBf16(gpu, shape.out_features * in, 0.05f);
  const device::DeviceMatrix matrix = NewMatrix(gpu, shape, form);
  gpu.table.matmul->pack(gpu.stream, gpu.Upload(source), matrix);
  const std::vector<float> values = UnpackedValues(gpu, matrix);
  const size_t shares = form.dtype == Dtype::kF8 ? device::kF8ScaleOutputs : 1;
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t first_out = i / in / shares * shares, first_k = i % in / group * group;
    float largest = 0;
    for (size_t out = first_out; out < std::min(first_out + shares, size_t(shape.out_features)); ++out) {
      for (size_t k = first_k; k < std::min(first_k + group, in); ++k) {
        largest = std::max(largest, std::fabs(Bf16ToF32(source[out * in + k])));
      }
    }
    const double weight = Bf16ToF32(source[i]);
    const double step =
        form.dtype == Dtype::kF8 ? std::max(std::fabs(weight) / 8, largest * std::ldexp(1.0, -16)) : largest / 7.0;
    const double allowed = step * 0.5 * 1.001 + std::fabs(weight) / 200;
    const double error = std::fabs(values[i] - weight) / allowed;
    if (!(error <= worst)) worst = error;
  }
  gpu.report.Check("matmul pack " + Name(shape, form), worst, 1);
}

}  // namespace

std::string FormName(const MatmulForm& form) {
  return form.group_size == 0 ? DtypeName(form.dtype) : absl::StrCat(DtypeName(form.dtype), " by ", form.group_size);
}
std::string Name(const MatmulShape& shape, const MatmulForm& form) {
  return absl::StrCat(shape.out_features, "x", shape.in_features, " ", FormName(form));
}

std::vector<uint16_t> RandomBf16(GpuContext& gpu, size_t count, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = F32ToBf16(normal(gpu.random));
  return values;
}

device::DeviceMatrix NewMatrix(GpuContext& gpu, const MatmulShape& shape, const MatmulForm& form) {
  const device::MatmulKernels& kernels = *gpu.table.matmul;
  const size_t scale_bytes = kernels.scale_bytes(shape.out_features, shape.in_features, form.dtype, form.group_size);
  return {.data = gpu.New<uint8_t>(kernels.packed_bytes(shape.out_features, shape.in_features, form.dtype)),
          .scales = scale_bytes == 0 ? nullptr : gpu.New<float>(scale_bytes / sizeof(float)),
          .out_features = shape.out_features,
          .in_features = shape.in_features,
          .dtype = form.dtype,
          .group_size = form.group_size};
}

MatmulWeight NewMatmulWeight(GpuContext& gpu, const MatmulShape& shape, const MatmulForm& form) {
  if (form.group_size == 0) return NewPackedWeight(gpu, shape, form);
  if (shape.out_features * shape.in_features <= 100'000) CheckPackedGroups(gpu, shape, form);
  return NewStoredWeight(gpu, shape, form);
}

}  // namespace winnow
