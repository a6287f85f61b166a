#include "tools/bench/gpu/checks/row_parts_check.h"

#include "common/base/latent_shape.h"
#include "tools/bench/gpu/elementwise_reference.h"

namespace winnow {

using namespace elementwise;

namespace {

double Activated(device::GatedActivation activation, double gate, double up) {
  switch (activation) {
    case device::GatedActivation::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case device::GatedActivation::kGeluTanh:
      return gate / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    case device::GatedActivation::kClampedSilu: {
      const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0);
      return g / (1 + std::exp(-1.702 * g)) * (u + 1);
    }
  }
  return 0;
}

void CheckActivation(GpuContext& gpu, device::GatedActivation activation, int width, int num_rows) {
  const std::vector<float> f32 = Normal(gpu, static_cast<size_t>(num_rows) * 2 * width, 4);
  std::vector<uint16_t> bf16(f32.size());
  std::transform(f32.begin(), f32.end(), bf16.begin(), F32ToBf16);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const size_t elements = static_cast<size_t>(num_rows) * width;
    uint16_t* out = gpu.New<uint16_t>(elements);
    gpu.table.elementwise->gated_mul(
        gpu.stream, {.activation = activation,
                     .gate_up = dtype == Dtype::kF32 ? static_cast<void*>(gpu.Upload(f32)) : gpu.Upload(bf16),
                     .dtype = dtype,
                     .num_rows = num_rows,
                     .intermediate_size = width,
                     .out = out});
    const std::vector<uint16_t> got = gpu.Download(out, elements);
    double worst = 0;
    for (size_t i = 0; i < elements; ++i) {
      const size_t at = i / width * 2 * width + i % width;
      const double gate = dtype == Dtype::kF32 ? f32[at] : Bf16ToF32(bf16[at]);
      const double up = dtype == Dtype::kF32 ? f32[at + width] : Bf16ToF32(bf16[at + width]);
      const double want = Activated(activation, gate, up);
      // up + 1 may be as small as it likes; the constants of gelu have seven digits.
      const double allowed = (kBf16 + kLibrary + 2e-6) * std::abs(want) + 4 * kF32 * std::abs(gate);
      const double error = std::abs(Bf16ToF32(got[i]) - want) / allowed;
      if (!(error <= worst)) worst = error;
    }
    gpu.report.Check("gated_mul " + std::to_string(static_cast<int>(activation)) + " " + DtypeName(dtype) + " x" +
                         std::to_string(num_rows),
                     worst, 1);
  }
  gpu.FreeAll();
}

}  // namespace

void CheckGatedMul(GpuContext& gpu, int width, int num_rows) {
  for (const auto activation :
       {device::GatedActivation::kSilu, device::GatedActivation::kGeluTanh, device::GatedActivation::kClampedSilu}) {
    CheckActivation(gpu, activation, width, num_rows);
  }
}

void CheckOtherNorms(GpuContext& gpu, int width, int num_rows) {
  const size_t elements = static_cast<size_t>(num_rows) * width, stride = width + 12;
  const std::vector<float> x = Normal(gpu, elements), y = Normal(gpu, elements), weight = Normal(gpu, width);
  const std::vector<float> bias = Normal(gpu, width), padded = Normal(gpu, num_rows * stride);
  const std::string what = " width " + std::to_string(width);
  float* const device_x = gpu.Upload(x);
  float* const device_weight = gpu.Upload(weight);
  uint16_t* const out = gpu.New<uint16_t>(elements);
  device::RmsNormParams norm = {.x = device_x,
                                .bias = gpu.Upload(bias),
                                .biased = device_x,
                                .num_rows = num_rows,
                                .hidden_size = width,
                                .weight = device_weight,
                                .epsilon = 1e-5f,
                                .out = out};
  gpu.table.elementwise->rms_norm(gpu.stream, norm);
  std::vector<float> biased = x;
  for (size_t i = 0; i < elements; ++i) biased[i] += bias[i % width];
  gpu.report.Check("bias" + what, Differing(gpu.Download(device_x, elements), biased), 0);
  gpu.report.Check("rms_norm behind a bias" + what,
                   RelativeError(gpu.Download(out, elements), RmsNormReference(biased, weight, norm.epsilon)),
                   kBf16 + 48 * kF32);
  norm.bias = norm.weight = nullptr;
  gpu.table.elementwise->rms_norm(gpu.stream, norm);
  std::vector<uint16_t> rounded(elements);
  std::transform(biased.begin(), biased.end(), rounded.begin(), F32ToBf16);
  gpu.report.Check("rows without a norm" + what, Differing(gpu.Download(out, elements), rounded), 0);

  const std::vector<double> normed = RmsNormReference(x, weight, 1e-5f);
  float* const device_y = gpu.Upload(y);
  device::NormRowsParams rows = {.x = gpu.Upload(x),
                                 .x_stride = width,
                                 .num_rows = num_rows,
                                 .width = width,
                                 .weight = device_weight,
                                 .epsilon = 1e-5f,
                                 .y = device_y,
                                 .y_stride = width,
                                 .accumulate = true};
  gpu.table.elementwise->norm_rows(gpu.stream, rows);
  const std::vector<float> added = gpu.Download(device_y, elements);
  double worst = 0;
  for (size_t i = 0; i < elements; ++i) {
    const double allowed = 64 * kF32 * (std::abs(normed[i]) + std::abs(y[i]));
    const double error = std::abs(added[i] - (y[i] + normed[i])) / allowed;
    if (!(error <= worst)) worst = error;
  }
  gpu.report.Check("norm that is added" + what, worst, 1);

  float* const device_padded = gpu.Upload(padded);
  rows.x = device_padded;
  rows.y = device_padded;
  rows.x_stride = rows.y_stride = static_cast<int64_t>(stride);
  rows.accumulate = false;
  gpu.table.elementwise->norm_rows(gpu.stream, rows);
  const std::vector<float> in_place = gpu.Download(device_padded, padded.size());
  std::vector<float> parts(elements);
  for (size_t i = 0; i < elements; ++i) parts[i] = padded[i / width * stride + i % width];
  const std::vector<double> normed_parts = RmsNormReference(parts, weight, 1e-5f);
  double beside = 0;
  worst = 0;
  for (size_t i = 0; i < padded.size(); ++i) {
    const size_t row = i / stride, column = i % stride;
    if (column >= static_cast<size_t>(width)) {
      beside += in_place[i] != padded[i];
      continue;
    }
    const double want = normed_parts[row * width + column];
    const double error = want == 0 ? 0 : std::abs(in_place[i] - want) / (64 * kF32 * std::abs(want));
    if (!(error <= worst)) worst = error;
  }
  gpu.report.Check("norm in place" + what, worst, 1);
  gpu.report.Check("norm in place, what lies beside" + what, beside, 0);
  gpu.FreeAll();
}

void CheckPartialRope(GpuContext& gpu, int head_dim, int rotary_dim) {
  constexpr int kRows = 37, kQueryHeads = 6, kKvHeads = 2;
  const RopeCase c = {head_dim, kQueryHeads, kKvHeads, true, true};
  RopeRows stored = RandomRopeRows(gpu, c, kRows);
  std::fill(stored.inv_freq.begin() + rotary_dim / 2, stored.inv_freq.end(), 0.0f);
  RopeRows ordered = stored;
  const LatentShape shape = {.rank = head_dim - rotary_dim, .rope_dim = rotary_dim};
  const auto order = [&](const std::vector<float>& from, std::vector<float>& to, size_t first, int heads) {
    for (size_t head = first; head < first + static_cast<size_t>(heads) * head_dim; head += head_dim) {
      for (int i = 0; i < shape.rope_dim; ++i) to[head + shape.rope_place(i)] = from[head + i];
      for (int i = 0; i < shape.rank; ++i) to[head + shape.latent_place(i)] = from[head + shape.rope_dim + i];
    }
  };
  const size_t width = static_cast<size_t>(kQueryHeads + 2 * kKvHeads) * head_dim;
  for (size_t row = 0; row < kRows; ++row) order(stored.qkv, ordered.qkv, row * width, kQueryHeads + kKvHeads);
  order(stored.bias, ordered.bias, 0, kQueryHeads + kKvHeads);
  order(stored.q_norm, ordered.q_norm, 0, 1);
  order(stored.k_norm, ordered.k_norm, 0, 1);
  const size_t q_elements = static_cast<size_t>(kRows) * kQueryHeads * head_dim;
  const size_t kv_elements = static_cast<size_t>(kRows) * kKvHeads * 2 * head_dim;
  const auto run = [&](const RopeRows& rows, int turning) {
    device::RopeAppendParams params = UploadRope(gpu, c, rows);
    params.rotary_dim = turning;
    params.q = gpu.New<float>(q_elements);
    params.kv_copy = gpu.New<uint16_t>(kv_elements);
    gpu.table.elementwise->rope_append(gpu.stream, params);
    return std::pair(gpu.Download(params.q, q_elements),
                     gpu.Download(static_cast<uint16_t*>(params.kv_copy), kv_elements));
  };
  const auto [q, kv] = run(stored, rotary_dim);
  const auto [want_q, want_kv] = run(ordered, 0);
  // A head's squares are added up in another order.
  double worst = 0;
  for (size_t i = 0; i < q_elements; ++i) {
    worst = std::max<double>(worst, std::abs(q[i] - want_q[i]) / (16 * kF32 * (1 + std::abs(want_q[i])) * 64));
  }
  size_t differing = 0;
  for (size_t i = 0; i < kv_elements; ++i) {
    const float got = Bf16ToF32(kv[i]), want = Bf16ToF32(want_kv[i]);
    differing += std::abs(got - want) > 0.008f * (std::abs(want) + 0.1f);
  }
  const std::string what = " of " + std::to_string(rotary_dim) + " in " + std::to_string(head_dim);
  gpu.report.Check("rope, queries" + what, worst, 1);
  gpu.report.Check("rope, rows" + what, static_cast<double>(differing), 0);
  gpu.FreeAll();
}

}  // namespace winnow
