#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/kernel_table.h"
#include "tools/bench/gpu/elementwise_reference.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using elementwise::Bf16ToF32, elementwise::Differing, elementwise::F32ToBf16, elementwise::Normal,
    elementwise::NormalBf16;

struct Shape {
  LatentShape latent = {};
  int num_heads = 0, nope_dim = 0, value_dim = 0;
  bool interleaved = false;

  std::string Name() const {
    return absl::StrCat("latents of ", latent.rank, " + ", latent.rope_dim, ", ", num_heads, " heads of ", nope_dim,
                        " and ", value_dim);
  }
};

void Take(double& worst, double error) {
  if (!(error <= worst)) worst = error;
}

std::vector<float> Widened(const std::vector<uint16_t>& values) {
  std::vector<float> wide(values.size());
  std::transform(values.begin(), values.end(), wide.begin(), Bf16ToF32);
  return wide;
}

// Queries and rows against the CPU's kernels; what the append leaves alone stays NaN. Errors are relative to a vector's
// largest element: rotations mix two of them.
void CheckAppend(GpuContext& gpu, const Shape& shape, int num_rows, bool biased) {
  const int key_dim = shape.latent.key_dim(), stored_dim = shape.nope_dim + shape.latent.rope_dim;
  const size_t heads = static_cast<size_t>(num_rows) * shape.num_heads, gap = 12;
  const std::vector<float> stored = Normal(gpu, heads * stored_dim), weight = Normal(gpu, shape.latent.rank);
  const size_t stride = key_dim + gap;
  std::vector<float> latents = Normal(gpu, num_rows * stride), bias = Normal(gpu, key_dim);
  if (!biased) std::fill(bias.begin(), bias.end(), 0.0f);
  std::vector<float> inv_freq(shape.latent.rope_dim / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = std::pow(1e4f, -static_cast<float>(i) / inv_freq.size());
  std::vector<uint32_t> positions(num_rows);
  for (uint32_t& position : positions) position = gpu.random() % 100000;
  auto* const rows = gpu.New<uint16_t>(static_cast<size_t>(num_rows) * key_dim);
  std::vector<void*> destinations(num_rows);  // in reverse order, and one is dropped
  for (int i = 0; i < num_rows; ++i) destinations[i] = rows + static_cast<size_t>(num_rows - 1 - i) * key_dim;
  if (num_rows > 2) destinations[1] = nullptr;
  device::LatentAppendParams params{.heads = gpu.Upload(stored),
                                    .heads_stride = shape.num_heads * stored_dim,
                                    .latents = gpu.Upload(latents),
                                    .latents_stride = static_cast<int64_t>(stride),
                                    .latent_bias = biased ? gpu.Upload(bias) : nullptr,
                                    .num_rows = num_rows,
                                    .num_heads = shape.num_heads,
                                    .nope_dim = shape.nope_dim,
                                    .shape = shape.latent,
                                    .interleaved = shape.interleaved,
                                    .norm_weight = gpu.Upload(weight),
                                    .norm_epsilon = 1e-6f,
                                    .positions = gpu.Upload(positions),
                                    .rope_inv_freq = gpu.Upload(inv_freq),
                                    .rope_attention_factor = 1.25f,
                                    .nope = gpu.New<uint16_t>(heads * shape.nope_dim),
                                    .q = gpu.New<float>(heads * key_dim),
                                    .q_bf16 = gpu.New<uint16_t>(heads * key_dim),
                                    .q_pre_rope = gpu.New<float>(heads * key_dim),
                                    .kv_destinations = gpu.Upload(destinations),
                                    .kv_copy = gpu.New<uint16_t>(num_rows * stride),
                                    .kv_copy_stride = static_cast<int64_t>(stride)};
  gpu.table.latent->append(gpu.stream, params);

  const KernelTable& cpu = **CpuKernels("portable");
  const std::unique_ptr<Executor> executor = cpu.new_executor(1);
  std::vector<float> want_pre(heads * key_dim), want_q(heads * key_dim), want_rows(num_rows * size_t(key_dim));
  for (size_t i = 0; i < latents.size(); ++i) latents[i] += i % stride < bias.size() ? bias[i % stride] : 0;
  cpu.latent_queries(*executor, {.heads = stored.data(),
                                 .num_rows = num_rows,
                                 .num_heads = shape.num_heads,
                                 .nope_dim = shape.nope_dim,
                                 .shape = shape.latent,
                                 .interleaved = shape.interleaved,
                                 .positions = positions.data(),
                                 .rope_inv_freq = inv_freq.data(),
                                 .q_pre_rope = want_pre.data(),
                                 .q = want_q.data()});
  cpu.latent_append(*executor, {.projected = latents.data(),
                                .stride = static_cast<int64_t>(stride),
                                .num_rows = num_rows,
                                .norm_weight = weight.data(),
                                .norm_epsilon = 1e-6f,
                                .shape = shape.latent,
                                .interleaved = shape.interleaved,
                                .positions = positions.data(),
                                .rope_inv_freq = inv_freq.data(),
                                .rope_attention_factor = 1.25f,
                                .kv_dtype = Dtype::kF32,
                                .kv_rows = want_rows.data()});
  const std::string what = shape.Name() + ", " + std::to_string(num_rows) + " rows";
  const std::vector<float> q = gpu.Download(params.q, heads * key_dim), pre = gpu.Download(params.q_pre_rope, q.size());
  const std::vector<float> q_bf16 = Widened(gpu.Download(static_cast<uint16_t*>(params.q_bf16), q.size()));
  const std::vector<uint16_t> nope = gpu.Download(static_cast<uint16_t*>(params.nope), heads * shape.nope_dim);
  double worst_q = 0, worst_bf16 = 0, worst_pre = 0, touched = 0, nope_differs = 0;
  for (size_t head = 0; head < heads; ++head) {
    double largest = 1e-20;
    for (int i = 0; i < shape.latent.rope_dim; ++i) {
      largest = std::max<double>(largest, std::fabs(want_pre[head * key_dim + shape.latent.rope_place(i)]));
    }
    for (int i = 0; i < shape.latent.rope_dim; ++i) {
      const size_t at = head * key_dim + shape.latent.rope_place(i);
      Take(worst_q, std::fabs(double{q[at]} - want_q[at]) / largest);
      Take(worst_bf16, std::fabs(double{q_bf16[at]} - want_q[at]) / largest);
      Take(worst_pre, std::fabs(double{pre[at]} - want_pre[at]));
    }
    for (int i = 0; i < shape.latent.rank; ++i) {
      const size_t at = head * key_dim + shape.latent.latent_place(i);
      touched += !std::isnan(q[at]) + !std::isnan(q_bf16[at]) + !std::isnan(pre[at]);
    }
    for (int i = 0; i < shape.nope_dim; ++i) {
      nope_differs += nope[head * shape.nope_dim + i] != F32ToBf16(stored[head * stored_dim + i]);
    }
  }
  constexpr double kTolerance = 64 * elementwise::kF32;
  gpu.report.Check("turned queries, " + what, worst_q, kTolerance);
  gpu.report.Check("turned queries as bf16, " + what, worst_bf16, 2 * elementwise::kBf16);
  gpu.report.Check("queries before they turn, " + what, worst_pre, 0);
  gpu.report.Check("latent places that are touched, " + what, touched, 0);
  gpu.report.Check("what does not turn, " + what, nope_differs, 0);

  const auto* const copy_at = static_cast<const uint16_t*>(params.kv_copy);
  const std::vector<uint16_t> copy = gpu.Download(copy_at, num_rows * stride);
  const std::vector<uint16_t> scattered = gpu.Download(rows, static_cast<size_t>(num_rows) * key_dim);
  double worst_row = 0, differ = 0;
  for (size_t row = 0; row < static_cast<size_t>(num_rows); ++row) {
    double largest = 1e-20;
    for (int i = 0; i < key_dim; ++i) largest = std::max<double>(largest, std::fabs(want_rows[row * key_dim + i]));
    const bool is_dropped = destinations[row] == nullptr;
    for (int i = 0; i < key_dim; ++i) {
      const uint16_t got = copy[row * stride + i], there = scattered[(num_rows - 1 - row) * key_dim + i];
      Take(worst_row, std::fabs(double{Bf16ToF32(got)} - want_rows[row * key_dim + i]) / largest);
      differ += there != (is_dropped ? 0xffff : got);
    }
    for (size_t i = key_dim; i < stride; ++i) differ += copy[row * stride + i] != 0xffff;
  }
  gpu.report.Check("rows, " + what, worst_row, elementwise::kBf16 + kTolerance);
  gpu.report.Check("rows at their destinations, " + what, differ, 0);
  gpu.FreeAll();
}

// Both kinds of products against f64, and the same rows among others.
void CheckProducts(GpuContext& gpu, const Shape& shape, bool to_latents, bool of_prompt, int num_rows) {
  const int rank = shape.latent.rank, key_dim = shape.latent.key_dim();
  const int width = to_latents ? shape.nope_dim : shape.value_dim;
  const int in = to_latents ? width : rank, out = to_latents ? rank : width;
  const int x_width = to_latents ? width : key_dim, y_width = to_latents ? key_dim : width;
  const size_t heads = static_cast<size_t>(num_rows) * shape.num_heads;
  const std::vector<uint16_t> weight = NormalBf16(gpu, static_cast<size_t>(shape.num_heads) * out * in);
  const std::vector<uint16_t> x = NormalBf16(gpu, heads * x_width);
  device::HeadProductsParams params{.to_latents = to_latents,
                                    .of_prompt = of_prompt,
                                    .shape = shape.latent,
                                    .width = width,
                                    .num_rows = num_rows,
                                    .num_heads = shape.num_heads,
                                    .weight = gpu.Upload(weight),
                                    .x = gpu.Upload(x),
                                    .y = gpu.New<float>(heads * y_width),
                                    .y_again = gpu.New<float>(heads * y_width),
                                    .y_bf16 = gpu.New<uint16_t>(heads * y_width)};
  gpu.table.latent->head_products(gpu.stream, params);
  const std::vector<float> y = gpu.Download(params.y, heads * y_width);
  const std::vector<uint16_t> bf16 = gpu.Download(static_cast<uint16_t*>(params.y_bf16), heads * y_width);
  double worst = 0, differ = Differing(gpu.Download(params.y_again, y.size()), y), written = 0;
  std::vector<bool> is_output(y_width, !to_latents);
  for (int i = 0; to_latents && i < rank; ++i) is_output[shape.latent.latent_place(i)] = true;
  for (size_t i = 0; i < y.size(); ++i) {
    if (!is_output[i % y_width]) {
      written += !std::isnan(y[i]) + (bf16[i] != 0xffff);
    } else {
      differ += bf16[i] != F32ToBf16(y[i]);
    }
  }
  for (int sample = 0; sample < 3000; ++sample) {
    const size_t head = gpu.random() % heads;
    const int output = static_cast<int>(gpu.random() % out);
    double sum = 0, magnitude = 0;
    for (int k = 0; k < in; ++k) {
      const size_t from = (head % shape.num_heads * out + output) * in + k;
      const double term = double{Bf16ToF32(weight[from])} *
                          Bf16ToF32(x[head * x_width + (to_latents ? k : shape.latent.latent_place(k))]);
      sum += term;
      magnitude += std::fabs(term);
    }
    const float got = y[head * y_width + (to_latents ? shape.latent.latent_place(output) : output)];
    Take(worst, std::fabs(got - sum) / (magnitude * (in / 16.0 + 16) * 0x1p-22));
  }
  const std::string what = absl::StrCat(to_latents ? "queries of " : "values of ", shape.Name(), ", ", num_rows,
                                        of_prompt ? " rows of a prompt" : " rows");
  gpu.report.Check(what, worst, 1);
  gpu.report.Check(what + ", copies", differ, 0);
  gpu.report.Check(what + ", places that are none of theirs", written, 0);

  const int first = num_rows / 2;
  params.num_rows = num_rows - first;
  params.x = static_cast<const uint16_t*>(params.x) + static_cast<size_t>(first) * shape.num_heads * x_width;
  params.y = gpu.New<float>((num_rows - first) * static_cast<size_t>(shape.num_heads) * y_width);
  gpu.table.latent->head_products(gpu.stream, params);
  const size_t skipped = static_cast<size_t>(first) * shape.num_heads * y_width;
  gpu.report.Check(what + ", of some alone",
                   Differing(gpu.Download(params.y, y.size() - skipped),
                             std::vector<float>(y.begin() + static_cast<int64_t>(skipped), y.end())),
                   0);
  gpu.FreeAll();
}

void Check(GpuContext& gpu) {
  for (const Shape& shape : gpu.Cases<Shape>({{{32, 16}, 4, 24, 20, true},
                                              {{64, 32}, 8, 16, 32, false},
                                              {{256, 64}, 40, 192, 256, false},
                                              {{512, 64}, 16, 128, 128, true},
                                              {{512, 64}, 128, 128, 128, true}},
                                             2)) {
    for (const int num_rows : {1, 7, 64, gpu.Size(300, 70)}) CheckAppend(gpu, shape, num_rows, num_rows == 7);
    for (const int num_rows : {1, 9, 30, 64, gpu.Size(200, 70)}) {
      for (const bool to_latents : {true, false}) {
        for (const bool of_prompt : {true, false}) CheckProducts(gpu, shape, to_latents, of_prompt, num_rows);
      }
    }
  }
}

// Of DeepSeek-V2-Lite and V3: weights of the heads are what a product reads of a few rows.
void Bench(GpuContext& gpu) {
  for (const Shape& shape : {Shape{{512, 64}, 16, 128, 128}, Shape{{512, 64}, 128, 128, 128}}) {
    constexpr int kSets = 8;
    const size_t elements = size_t(shape.num_heads) * 512 * 128;
    std::vector<void*> weights;
    for (int set = 0; set < kSets; ++set) {
      weights.push_back(gpu.New<uint16_t>(elements));
      gpu.table.elementwise->fill_normal(gpu.stream, weights.back(), elements, set, 0.05f);
    }
    for (const int num_rows : {1, 8, 32, 2048}) {
      const size_t heads = size_t(num_rows) * shape.num_heads;
      void* const x = gpu.New<uint16_t>(heads * 576);
      gpu.table.elementwise->fill_normal(gpu.stream, x, heads * 576, 1, 1);
      void* const y = gpu.New<uint16_t>(heads * 576);
      for (const bool to_latents : {true, false}) {
        const double us = gpu.MedianUs(kSets, 16, [&](device::Stream stream, int set) {
          gpu.table.latent->head_products(stream, {.to_latents = to_latents,
                                                   .of_prompt = num_rows > 64,
                                                   .shape = shape.latent,
                                                   .width = 128,
                                                   .num_rows = num_rows,
                                                   .num_heads = shape.num_heads,
                                                   .weight = weights[set],
                                                   .x = x,
                                                   .y_bf16 = y});
        });
        const double bytes = elements * 2.0 + heads * (512 + 128) * 2.0;
        gpu.report.Time(absl::StrCat(to_latents ? "queries of " : "values of ", shape.Name(), ", ", num_rows, " rows"),
                        us, std::max(bytes / gpu.read_bytes_per_us, heads * 512 * 128 * 2.0 / 790e6));
      }
    }
    gpu.FreeAll();
  }
}

}  // namespace

GpuSection LatentSection() {
  return {"latent", Check, Bench};
}

}  // namespace winnow
