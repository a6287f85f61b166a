#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "inference_rank/sequence/sampler.h"
#include "kernels/kernel_table.h"
#include "model/philox.h"
#include "tools/bench/gpu/checks/int8_rows_check.h"
#include "tools/bench/gpu/checks/row_parts_check.h"
#include "tools/bench/gpu/elementwise_reference.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using namespace elementwise;

// Embedding, then its norm, as two nodes of one graph whose input changes between replays: a kernel that did not wait
// for the one before would see the rows of the replay before.
void CheckEmbedAndNorm(GpuContext& gpu, int hidden_size) {
  constexpr int kRows = 64, kVocab = 500;
  const std::vector<uint16_t> table = NormalBf16(gpu, static_cast<size_t>(kVocab) * hidden_size);
  const std::vector<float> weight = Normal(gpu, hidden_size);
  const size_t elements = static_cast<size_t>(kRows) * hidden_size;
  uint32_t* ids_device = gpu.New<uint32_t>(kRows);
  float* x = gpu.New<float>(elements);
  uint16_t* out = gpu.New<uint16_t>(elements);
  device::EmbedParams embed = {
      .token_ids = ids_device, .num_rows = kRows, .embedding = gpu.Upload(table), .hidden_size = hidden_size, .x = x};
  device::RmsNormParams norm = {.x = x,
                                .num_rows = kRows,
                                .hidden_size = hidden_size,
                                .weight = gpu.Upload(weight),
                                .epsilon = 1e-6f,
                                .out = out};
  const std::string what = " hidden " + std::to_string(hidden_size);
  auto graph = gpu.device.Capture(gpu.stream, [&](device::Stream stream) {
    gpu.table.elementwise->embed(stream, embed);
    gpu.table.elementwise->rms_norm(stream, norm);
  });
  if (!graph.ok()) return gpu.report.Fail("capture", std::string(graph.status().message()));
  for (int replay = 0; replay < 3; ++replay) {
    std::vector<uint32_t> ids(kRows);
    for (uint32_t& id : ids) id = gpu.random() % kVocab;
    gpu.device.CopyAsync(ids_device, ids.data(), kRows * sizeof(uint32_t), gpu.stream);
    (*graph)->Launch(gpu.stream);
    const std::vector<float> embedded = gpu.Download(x, elements);
    const std::vector<uint16_t> normed = gpu.Download(out, elements);
    std::vector<float> want(elements);
    for (size_t i = 0; i < elements; ++i) {
      want[i] = Bf16ToF32(table[static_cast<size_t>(ids[i / hidden_size]) * hidden_size + i % hidden_size]);
    }
    gpu.report.Check("embed" + what, Differing(embedded, want), 0);
    // All terms are positive: the sum errs by at most as many roundings as it has levels, below 40 here.
    gpu.report.Check("rms_norm" + what, RelativeError(normed, RmsNormReference(want, weight, norm.epsilon)),
                     kBf16 + 48 * kF32);
    norm.num_rows = 1;  // the last row alone
    norm.x = x + elements - hidden_size;
    norm.out = gpu.New<uint16_t>(hidden_size);
    gpu.table.elementwise->rms_norm(gpu.stream, norm);
    const std::vector<uint16_t> alone = gpu.Download(static_cast<uint16_t*>(norm.out), hidden_size);
    gpu.report.Check("rms_norm of one row" + what,
                     Differing(alone, std::vector<uint16_t>(normed.end() - hidden_size, normed.end())), 0);
  }
  gpu.FreeAll();
}

// Errors of rotated heads, relative to the length of each rotated pair. `got` and `want` are [heads, stride].
template <typename Load>
double PairError(const Load& got, const std::vector<float>& want, size_t heads, int head_dim, int stride) {
  double worst = 0;
  for (size_t h = 0; h < heads; ++h) {
    for (int i = 0; i < head_dim / 2; ++i) {
      const size_t a = h * stride + i, b = a + head_dim / 2;
      const double length = std::hypot(want[a], want[b]);
      const double error = std::max(std::abs(got(a) - want[a]), std::abs(got(b) - want[b])) / std::max(length, 1e-30);
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

// Rows in turn go to one region, to another, and nowhere.
void CheckRopeRegions(GpuContext& gpu, device::RopeAppendParams params, const std::vector<float>& q_pre_rope,
                      const std::vector<uint16_t>& copied, const std::string& what) {
  constexpr size_t kFirst = 256;  // of the queries; the copied rows lie behind them
  const size_t q_bytes = q_pre_rope.size() * sizeof(float), bytes = kFirst + q_bytes + 2 * copied.size();
  std::byte* const regions[] = {gpu.New<std::byte>(bytes), gpu.New<std::byte>(bytes), nullptr};
  std::vector<void*> of_rows;
  for (int row = 0; row < params.num_rows; ++row) of_rows.push_back(regions[row % 3]);
  params.q_pre_rope = reinterpret_cast<float*>(kFirst);
  params.kv_copy = reinterpret_cast<void*>(kFirst + q_bytes);
  params.copy_regions = gpu.Upload(of_rows);
  gpu.table.elementwise->rope_append(gpu.stream, params);
  double differing = 0;
  for (int region = 0; region < 2; ++region) {
    std::vector<std::byte> wanted(bytes, std::byte{0xff});
    for (int row = region; row < params.num_rows; row += 3) {
      const auto copy = [&](const auto& from, size_t at) {
        const size_t row_bytes = from.size() * sizeof(from[0]) / params.num_rows;
        std::copy_n(reinterpret_cast<const std::byte*>(from.data()) + row * row_bytes, row_bytes,
                    wanted.begin() + static_cast<int64_t>(at + row * row_bytes));
      };
      copy(q_pre_rope, kFirst);
      copy(copied, kFirst + q_bytes);
    }
    differing += Differing(gpu.Download(regions[region], bytes), wanted);
  }
  gpu.report.Check("rope rows in regions of their own" + what, differing, 0);
}

void CheckRopeAppend(GpuContext& gpu, const RopeCase& c, int num_rows) {
  const RopeRows rows = RandomRopeRows(gpu, c, num_rows);
  const size_t q_elements = static_cast<size_t>(num_rows) * c.num_query_heads * c.head_dim;
  const size_t kv_rows = static_cast<size_t>(num_rows) * c.num_kv_heads;
  const size_t kv_elements = kv_rows * 2 * c.head_dim;
  device::RopeAppendParams params = UploadRope(gpu, c, rows);
  params.q = gpu.New<float>(q_elements);
  params.q_bf16 = gpu.New<uint16_t>(q_elements);
  params.q_pre_rope = gpu.New<float>(q_elements);
  params.kv_copy = gpu.New<uint16_t>(kv_elements);
  uint16_t* arena = gpu.New<uint16_t>(kv_elements);
  std::vector<void*> destinations(kv_rows);  // in reverse order
  for (size_t i = 0; i < kv_rows; ++i) destinations[i] = arena + (kv_rows - 1 - i) * 2 * c.head_dim;
  params.kv_destinations = gpu.Upload(destinations);
  gpu.table.elementwise->rope_append(gpu.stream, params);
  const std::vector<float> q = gpu.Download(params.q, q_elements);
  const std::vector<float> q_pre_rope = gpu.Download(params.q_pre_rope, q_elements);
  const std::vector<uint16_t> q_bf16 = gpu.Download(static_cast<uint16_t*>(params.q_bf16), q_elements);
  const std::vector<uint16_t> copied = gpu.Download(static_cast<uint16_t*>(params.kv_copy), kv_elements);
  std::vector<uint16_t> scattered = gpu.Download(arena, kv_elements);

  std::vector<float> qkv = rows.qkv;
  if (c.biases) {
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] += rows.bias[i % rows.bias.size()];
  }
  std::vector<float> want_q(q_elements), want_pre(q_elements), want_kv(kv_elements);
  const KernelTable& cpu = **CpuKernels("portable");
  const std::unique_ptr<Executor> executor = cpu.new_executor(1);
  cpu.rope_append(*executor, {.qkv = qkv.data(),
                              .qkv_stride = params.qkv_stride,
                              .num_rows = num_rows,
                              .num_query_heads = c.num_query_heads,
                              .num_kv_heads = c.num_kv_heads,
                              .head_dim = c.head_dim,
                              .q_norm_weight = c.norms ? rows.q_norm.data() : nullptr,
                              .k_norm_weight = c.norms ? rows.k_norm.data() : nullptr,
                              .norm_epsilon = params.norm_epsilon,
                              .positions = rows.positions.data(),
                              .rope_inv_freq = rows.inv_freq.data(),
                              .rope_attention_factor = params.rope_attention_factor,
                              .kv_dtype = Dtype::kF32,
                              .q_pre_rope = want_pre.data(),
                              .q = want_q.data(),
                              .kv_rows = want_kv.data()});

  const std::string what = " head_dim " + std::to_string(c.head_dim) + " x" + std::to_string(num_rows);
  // Of a pair's length: both sides sum up to 16 terms in a row (norms), and have sines and cosines of a few roundings.
  constexpr double kTolerance = 64 * kF32;
  const size_t q_heads = q_elements / c.head_dim;
  const auto at = [](const std::vector<float>& values) { return [&values](size_t i) { return values[i]; }; };
  const auto bf16_at = [](const std::vector<uint16_t>& values, size_t offset = 0) {
    return [&values, offset](size_t i) { return Bf16ToF32(values[i + offset]); };
  };
  gpu.report.Check("rope q" + what, PairError(at(q), want_q, q_heads, c.head_dim, c.head_dim), kTolerance);
  gpu.report.Check("rope q before" + what, PairError(at(q_pre_rope), want_pre, q_heads, c.head_dim, c.head_dim),
                   kTolerance);
  gpu.report.Check("rope q bf16" + what, PairError(bf16_at(q_bf16), want_q, q_heads, c.head_dim, c.head_dim),
                   kBf16 + kTolerance);
  gpu.report.Check("rope K" + what, PairError(bf16_at(copied), want_kv, kv_rows, c.head_dim, 2 * c.head_dim),
                   kBf16 + kTolerance);
  double differing_values = 0;
  for (size_t row = 0; row < kv_rows; ++row) {
    for (int d = c.head_dim; d < 2 * c.head_dim; ++d) {
      const size_t i = row * 2 * c.head_dim + d;
      differing_values += copied[i] != F32ToBf16(want_kv[i]);
    }
    if (row < kv_rows / 2) {
      std::swap_ranges(&scattered[row * 2 * c.head_dim], &scattered[row * 2 * c.head_dim] + 2 * c.head_dim,
                       &scattered[(kv_rows - 1 - row) * 2 * c.head_dim]);
    }
  }
  gpu.report.Check("rope V" + what, differing_values, 0);
  gpu.report.Check("rope rows at their destinations" + what, Differing(scattered, copied), 0);

  CheckRopeRegions(gpu, params, q_pre_rope, copied, what);
  // The last row alone.
  const size_t q_row = q_elements / num_rows, kv_row = kv_elements / num_rows;
  params.qkv += static_cast<size_t>(num_rows - 1) * params.qkv_stride;
  params.positions += num_rows - 1;
  params.num_rows = 1;
  params.q = gpu.New<float>(q_row);
  params.q_pre_rope = nullptr;
  params.q_bf16 = nullptr;
  params.kv_destinations = nullptr;
  params.kv_copy = gpu.New<uint16_t>(kv_row);
  gpu.table.elementwise->rope_append(gpu.stream, params);
  gpu.report.Check("rope of one row" + what,
                   Differing(gpu.Download(params.q, q_row), std::vector<float>(q.end() - q_row, q.end())) +
                       Differing(gpu.Download(static_cast<uint16_t*>(params.kv_copy), kv_row),
                                 std::vector<uint16_t>(copied.end() - kv_row, copied.end())),
                   0);
  gpu.FreeAll();
}

void CheckFillNormal(GpuContext& gpu) {
  const size_t elements = (size_t{1} << gpu.Size(20, 14)) + 3;
  constexpr float kDeviation = 0.02f;
  const uint64_t seed = gpu.random();
  uint16_t* out = gpu.New<uint16_t>(elements);
  gpu.table.elementwise->fill_normal(gpu.stream, out, elements, seed, kDeviation);
  const std::vector<uint16_t> got = gpu.Download(out, elements);
  double worst = 0;
  for (size_t i = 0; i < elements; ++i) {
    const auto bits = Philox4x32(seed, {static_cast<uint32_t>(i / 4), 0, 0, 0});
    const uint32_t radius_bits = bits[i % 4 / 2 * 2], angle_bits = bits[i % 4 / 2 * 2 + 1];
    const double radius = kDeviation * std::sqrt(-2 * std::log(((radius_bits >> 8) + 1) * 0x1p-24));
    const double angle = 2 * M_PI * (angle_bits >> 8) * 0x1p-24;
    const double want = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    // Of the radius: the cosine has an absolute error; near 1, f32's log has one too, of the root's 2^-12.
    const double error = std::abs(Bf16ToF32(got[i]) - want) / std::max(radius, kDeviation * 0x1p-12);
    if (!(error <= worst)) worst = error;
  }
  gpu.report.Check("fill_normal", worst, kBf16 + 4 * kLibrary);
  gpu.FreeAll();
}

v1::SamplingParams ToProto(const device::SampleRow& row) {
  v1::SamplingParams params;
  params.set_temperature(row.temperature);
  params.set_top_p(row.top_p);
  params.set_top_k(row.top_k);
  params.set_min_p(row.min_p);
  params.set_seed(row.seed);
  params.set_sample_index(row.sample_index);
  return params;
}

// Logits rounded to bf16, so that many are equal.
void CheckSample(GpuContext& gpu, int vocab_size, int num_rows, float stddev) {
  std::vector<float> logits = Normal(gpu, static_cast<size_t>(num_rows) * vocab_size, stddev);
  for (float& logit : logits) logit = Bf16ToF32(F32ToBf16(logit));
  std::vector<device::SampleRow> rows(num_rows);
  for (int i = 0; i < num_rows; ++i) {
    rows[i] = {.temperature = std::array{0.0f, 1.0f, 0.6f, 1.5f}[i % 4],
               .top_p = std::array{1.0f, 0.95f, 0.5f, 1.0f, 0.01f}[i % 5],
               .top_k = std::array{0u, 50u, 1u, 1000u, 0u, 7u}[i % 6],
               .min_p = std::array{0.0f, 0.05f, 0.0f}[i % 3],
               .sample_index = static_cast<uint32_t>(gpu.random() % 5),
               .token_index = static_cast<uint32_t>(gpu.random() % 1000),
               .seed = gpu.random()};
  }
  device::SampleParams params = {.logits = gpu.Upload(logits),
                                 .num_rows = num_rows,
                                 .vocab_size = vocab_size,
                                 .rows = gpu.Upload(rows),
                                 .token_ids = gpu.New<uint32_t>(num_rows),
                                 .logprobs = gpu.New<float>(num_rows)};
  // Every third row may draw some tokens alone: few, or all but few.
  const auto is_masked = [](int row) { return row < 64 && row % 3 == 1; };
  params.mask_words = (vocab_size + 63) / 64;
  std::vector<uint64_t> masks(static_cast<size_t>(num_rows) * params.mask_words);
  for (int i = 0; i < num_rows; ++i) {
    for (int id = 0; id < vocab_size; ++id) {
      const bool is_rare = gpu.random() % 50 == 0;
      if (is_rare != (i % 2 == 0)) masks[i * params.mask_words + id / 64] |= uint64_t{1} << (id % 64);
    }
    masks[i * params.mask_words] |= 1;  // never none
    if (is_masked(i)) params.masked_rows |= uint64_t{1} << i;
  }
  params.masks = gpu.Upload(masks);
  gpu.table.elementwise->sample(gpu.stream, params);
  const std::vector<uint32_t> ids = gpu.Download(params.token_ids, num_rows);
  const std::vector<float> logprobs = gpu.Download(params.logprobs, num_rows);
  double other_tokens = 0, worst = 0;
  for (int i = 0; i < num_rows; ++i) {
    std::vector<float> scratch(logits.begin() + static_cast<size_t>(i) * vocab_size,
                               logits.begin() + static_cast<size_t>(i + 1) * vocab_size);
    for (int id = 0; id < vocab_size && is_masked(i); ++id) {
      const bool may_draw = masks[i * params.mask_words + id / 64] >> (id % 64) & 1;
      if (!may_draw) scratch[id] = -std::numeric_limits<float>::infinity();
    }
    v1::Token token;
    token.set_id(std::min<uint32_t>(ids[i], vocab_size - 1));
    FillLogprobs(scratch, 0, &token);
    const double error = std::abs(logprobs[i] - token.logprob());
    if (!(error <= worst)) worst = error;
    const uint32_t want = Sampler(ToProto(rows[i]), {}).Sample(scratch, rows[i].token_index);
    if (want == ids[i]) continue;
    ++other_tokens;
    gpu.report.Note("sampled otherwise, row " + std::to_string(i),
                    "wanted " + std::to_string(want) + ", got " + std::to_string(ids[i]));
  }
  const std::string what = " vocab " + std::to_string(vocab_size) + " deviation " + std::to_string(stddev);
  gpu.report.Check("sampled tokens" + what, other_tokens, 0);
  // expf's relative error, and the rounding of results below 64.
  gpu.report.Check("logprobs" + what, worst, kLibrary + 64 * kF32);
  gpu.FreeAll();
}

void Check(GpuContext& gpu) {
  for (const int hidden_size : gpu.Cases<int>({64, 1024, 5120, 8192, 12288}, 2)) CheckEmbedAndNorm(gpu, hidden_size);
  for (const RopeCase& c :
       {RopeCase{128, 40, 8, true, false}, RopeCase{64, 14, 2, false, true}, RopeCase{96, 32, 32, false, false},
        RopeCase{256, 8, 4, true, true}, RopeCase{32, 4, 1, true, false}, RopeCase{16, 8, 2, false, true}}) {
    for (const int num_rows : gpu.few_small ? std::vector{1, 5} : std::vector{1, 33, 700})
      CheckRopeAppend(gpu, c, num_rows);
  }
  for (const int head_dim : gpu.Cases<int>({64, 96, 128, 256}, 2)) {
    for (const int num_rows : gpu.few_small ? std::vector{5} : std::vector{1, 700}) {
      CheckRopeInt8Rows(gpu, head_dim, num_rows);
    }
  }
  CheckGatedMul(gpu, 17408, 3);
  CheckGatedMul(gpu, 776, 130);
  for (const int width : {64, 2880, 5376}) CheckOtherNorms(gpu, width, 33);
  CheckPartialRope(gpu, 128, 96);
  CheckPartialRope(gpu, 128, 64);
  CheckPartialRope(gpu, 256, 64);
  CheckPartialRope(gpu, 16, 8);
  CheckFillNormal(gpu);
  if (!gpu.few_small) CheckSample(gpu, 151936, 60, 3);
  CheckSample(gpu, 1003, gpu.Size(120, 12), 2);
  CheckSample(gpu, 5, 60, 1);
  CheckSample(gpu, 20000, gpu.Size(60, 6), 0);
  CheckSample(gpu, 600001, 12, 3);
}

// The shape of Qwen3-14B.
constexpr int kHidden = 5120, kIntermediate = 17408, kVocab = 151936;
constexpr RopeCase kRope = {128, 40, 8, true, false};

void BenchRows(GpuContext& gpu, int num_rows) {
  const std::string what = " x" + std::to_string(num_rows);
  const size_t rows = num_rows;
  const int sets = num_rows > 64 ? 4 : 1;
  const auto time = [&](const char* name, double bytes, const std::function<void(device::Stream, int)>& enqueue) {
    gpu.report.Time(name + what, gpu.MedianUs(sets, 20, enqueue), bytes / gpu.copy_bytes_per_us);
  };
  std::vector<float*> x, qkv;
  for (int set = 0; set < sets; ++set) {
    x.push_back(gpu.Upload(Normal(gpu, rows * kHidden)));
    qkv.push_back(gpu.Upload(Normal(gpu, rows * 7168)));
  }
  uint16_t* normed = gpu.New<uint16_t>(rows * kHidden);
  const float* weight = gpu.Upload(Normal(gpu, kHidden));
  time("rms_norm", rows * kHidden * 6.0, [&](device::Stream stream, int set) {
    gpu.table.elementwise->rms_norm(
        stream,
        {.x = x[set], .num_rows = num_rows, .hidden_size = kHidden, .weight = weight, .epsilon = 1e-6f, .out = normed});
  });
  RopeRows rope_rows = RandomRopeRows(gpu, kRope, num_rows);
  for (int i = 0; i < num_rows; ++i) rope_rows.positions[i] = 30000 + i;
  device::RopeAppendParams rope = UploadRope(gpu, kRope, rope_rows);
  rope.q = gpu.New<float>(rows * 5120);
  rope.kv_copy = gpu.New<uint16_t>(rows * 2048);
  time("rope_append", rows * (7168 * 4 + 5120 * 4 + 2048 * 2.0), [&](device::Stream stream, int set) {
    device::RopeAppendParams of_set = rope;
    of_set.qkv = qkv[set];
    gpu.table.elementwise->rope_append(stream, of_set);
  });
  uint16_t* gate_up = gpu.New<uint16_t>(sets * rows * 2 * kIntermediate);
  gpu.table.elementwise->fill_normal(gpu.stream, gate_up, sets * rows * 2 * kIntermediate, 1, 1);
  uint16_t* activated = gpu.New<uint16_t>(rows * kIntermediate);
  time("gated_mul bf16", rows * kIntermediate * 6.0, [&](device::Stream stream, int set) {
    gpu.table.elementwise->gated_mul(stream, {.gate_up = gate_up + set * rows * 2 * kIntermediate,
                                              .dtype = Dtype::kBf16,
                                              .num_rows = num_rows,
                                              .intermediate_size = kIntermediate,
                                              .out = activated});
  });
  gpu.FreeAll();
}

void BenchSample(GpuContext& gpu, int num_rows) {
  float* const logits = gpu.Upload(Normal(gpu, static_cast<size_t>(num_rows) * kVocab, 3));
  const int mask_words = (kVocab + 63) / 64;
  const std::vector<uint64_t> all(static_cast<size_t>(num_rows) * mask_words, ~uint64_t{0});
  const uint64_t* const masks = gpu.Upload(all);
  uint32_t* ids = gpu.New<uint32_t>(num_rows);
  float* logprobs = gpu.New<float>(num_rows);
  struct Kind {
    const char* name;
    device::SampleRow row;
    uint64_t masked_rows = 0;
  };
  for (const Kind& kind : {Kind{"sample greedy", {.temperature = 0}}, Kind{"sample at 1.0", {}},
                           Kind{"sample greedy, masked", {.temperature = 0}, ~uint64_t{0}},
                           Kind{"sample 0.6, 0.95, 20", {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20}}}) {
    const device::SampleRow* rows = gpu.Upload(std::vector<device::SampleRow>(num_rows, kind.row));
    const double us = gpu.MedianUs(1, 20, [&](device::Stream stream, int) {
      gpu.table.elementwise->sample(stream, {.logits = logits,
                                             .num_rows = num_rows,
                                             .vocab_size = kVocab,
                                             .rows = rows,
                                             .token_ids = ids,
                                             .logprobs = logprobs,
                                             .masks = masks,
                                             .mask_words = mask_words,
                                             .masked_rows = kind.masked_rows});
    });
    gpu.report.Time(std::string(kind.name) + " x" + std::to_string(num_rows), us,
                    num_rows * 4.0 * kVocab / gpu.read_bytes_per_us);
  }
  gpu.FreeAll();
}

void Bench(GpuContext& gpu) {
  for (const int num_rows : {1, 8, 64, 2048}) BenchRows(gpu, num_rows);
  for (const int num_rows : {1, 8, 64}) BenchSample(gpu, num_rows);
  constexpr size_t kElements = size_t{1} << 28;
  uint16_t* out = gpu.New<uint16_t>(kElements);
  gpu.report.Time("fill_normal of 512 MiB",
                  gpu.MedianUs(1, 2,
                               [&](device::Stream stream, int) {
                                 gpu.table.elementwise->fill_normal(stream, out, kElements, 7, 0.02f);
                               }),
                  kElements * 2.0 / gpu.copy_bytes_per_us);
  gpu.FreeAll();
}

}  // namespace

GpuSection ElementwiseSection() {
  return {"elementwise", Check, Bench};
}

}  // namespace winnow
