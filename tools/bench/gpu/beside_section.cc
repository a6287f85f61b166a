#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/kv_layout.h"
#include "tools/bench/gpu/random_rows.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

// What decode steps compute is the same whatever else the GPU does. Kernels that keep a ring in shared memory are timed
// otherwise beside another stream's kernels, which hold up the loads of a multiprocessor: what they do with a place of
// the ring before all of it has been read shows there alone.

// Random values that repeat every 4 MiB, without drawing all of them.
const uint16_t* RepeatedBf16(GpuContext& gpu, size_t count, float scale) {
  const std::vector<uint16_t> block = RandomBf16(gpu.random, std::min<size_t>(count, size_t{2} << 20), scale);
  auto* data = gpu.New<uint16_t>(count);
  for (size_t at = 0; at < count; at += block.size()) {
    gpu.device.CopyAsync(data + at, block.data(), std::min(block.size(), count - at) * sizeof(uint16_t), gpu.stream);
  }
  WINNOW_CHECK(gpu.device.Synchronize(gpu.stream).ok());
  return data;
}

// Measuring of captured mass, of one row with 33,000 keys of 8 heads: each thread reads a key of its own, so that the
// loads of a warp hit 32 lines.
class Measuring {
 public:
  explicit Measuring(GpuContext& gpu) : gpu_(gpu), stream_(gpu.device.NewStream(/*high_priority=*/true)) {
    constexpr uint32_t kHeads = 8, kKeys = 32993, kBlocks = (kKeys + kBlockTokens - 1) / kBlockTokens, kBudget = 2048;
    constexpr int kHeadDim = 128, kGroup = 4;
    constexpr int64_t kRowBytes = 2 * kHeadDim * sizeof(uint16_t);
    std::vector<uint32_t> blocks(kHeads * kBlocks), selected(kHeads * kBudget);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), gpu.random);
    std::vector<device::SelectionList> lists;
    for (uint32_t head = 0; head < kHeads; ++head) {
      lists.push_back({.first_block = head * kBlocks,
                       .num_keys = kKeys,
                       .first = kBlockTokens,
                       .last = (kBlocks - 4) * kBlockTokens,
                       .budget = kBudget,
                       .query = head});
      for (uint32_t i = 0; i < kBudget; ++i) selected[head * kBudget + i] = kBlockTokens + i * 15;
    }
    std::vector<float> queries(kHeads * kGroup * kHeadDim);
    for (float& x : queries) x = Random(gpu.random);
    params_ = {.lists = gpu.Upload(lists),
               .num_rows = 1,
               .num_kv_heads = kHeads,
               .blocks = gpu.Upload(blocks),
               .keys = {.keys = RepeatedBf16(gpu, blocks.size() * kBlockTokens * 2 * kHeadDim, 1),
                        .block_stride = kBlockTokens * kRowBytes,
                        .key_stride = kRowBytes},
               .head_dim = kHeadDim,
               .group = kGroup,
               .scale = 1 / std::sqrt(float{kHeadDim}),
               .queries = gpu.Upload(queries),
               .max_keys = kKeys,
               .positions = gpu.Upload(std::vector<uint32_t>{kKeys - 1}),
               .prompt_tokens = gpu.Upload(std::vector<uint32_t>{kKeys - 1}),
               .interval = 16,
               .staggers = true,
               .selected = gpu.Upload(selected),
               .counts = gpu.Upload(std::vector<uint32_t>(kHeads, kBudget)),
               .max_budget = kBudget,
               .plan = gpu.Upload(std::vector<uint32_t>{1}),
               .masses = gpu.New<device::MeasuredMass>(kHeads),
               .arrivals = gpu.NewZeroed<uint32_t>(kHeads)};
    params_.scratch = gpu.New<uint8_t>(gpu.table.mass->mass_scratch_bytes(params_));
    WINNOW_CHECK(gpu.device.Synchronize(gpu.stream).ok());
  }

  void Enqueue(int launches) {
    for (int i = 0; i < launches; ++i) gpu_.table.mass->attended_mass(stream_, params_);
  }
  void Await() { WINNOW_CHECK(gpu_.device.Synchronize(stream_).ok()); }
  // NaN where the inputs are such that nothing is measured.
  float mass() { return gpu_.Download(params_.masses, 1)[0].mass; }

 private:
  GpuContext& gpu_;
  const device::Stream stream_;
  device::AttendedMassParams params_;
};

// enqueue(to) gives `count` words. Those of launches beside the measuring that are not the words of a quiet one.
template <typename Enqueue>
void CheckBits(GpuContext& gpu, Measuring& measuring, const std::string& name, size_t count, const Enqueue& enqueue) {
  constexpr int kRounds = 40, kLaunches = 8, kMeasured = 12;  // of a round; some 40 us each
  auto* words = gpu.New<uint32_t>(kLaunches * count);
  enqueue(words);
  const std::vector<uint32_t> quiet = gpu.Download(words, count);
  double differ = 0;
  for (int round = 0; round < kRounds; ++round) {
    gpu.device.FillAsync(words, 0xff, kLaunches * count * sizeof(uint32_t), gpu.stream);
    measuring.Enqueue(kMeasured);
    for (int i = 0; i < kLaunches; ++i) enqueue(words + i * count);
    const std::vector<uint32_t> beside = gpu.Download(words, kLaunches * count);
    measuring.Await();
    for (size_t i = 0; i < beside.size(); ++i) differ += beside[i] != quiet[i % count];
  }
  gpu.report.Check(name + " beside measuring, bits that differ", differ, 0);
}

void CheckProduct(GpuContext& gpu, Measuring& measuring, int out_features, int in_features, Dtype dtype, int num_rows) {
  const size_t count = size_t(out_features) * in_features;
  const device::DeviceMatrix matrix = {
      .data = gpu.New<uint8_t>(gpu.table.matmul->packed_bytes(out_features, in_features, dtype)),
      .scales = dtype == Dtype::kF8 ? gpu.New<float>(out_features) : nullptr,
      .out_features = out_features,
      .in_features = in_features,
      .dtype = dtype};
  gpu.table.matmul->pack(gpu.stream, RepeatedBf16(gpu, count, 0.05f), matrix);
  const uint16_t* x = gpu.Upload(RandomBf16(gpu.random, size_t(num_rows) * in_features, 1));
  void* scratch = gpu.NewZeroed<uint8_t>(gpu.table.matmul->decode_scratch_bytes(num_rows, out_features));
  CheckBits(gpu, measuring,
            "matmul decode " + std::to_string(out_features) + "x" + std::to_string(in_features) + " " +
                DtypeName(dtype) + ", " + std::to_string(num_rows) + " rows",
            size_t(num_rows) * out_features, [&](uint32_t* y) {
              gpu.table.matmul->decode_matmul(gpu.stream, {.x = x,
                                                           .x_stride = in_features,
                                                           .num_rows = num_rows,
                                                           .weight = matrix,
                                                           .y = y,
                                                           .y_stride = out_features,
                                                           .scratch = scratch});
            });
}

// Rows that follow each other in the pool come in boxes of the copy engine, others in pieces.
void CheckAttention(GpuContext& gpu, Measuring& measuring, Dtype dtype, bool scattered) {
  constexpr int kRows = 2, kKvHeads = 8, kGroup = 4, kHeadDim = 128;
  constexpr uint32_t kCount = 8192, kPages = kRows * kKvHeads * kCount / kSlotPageTokens;
  constexpr uint32_t kSlots = kPages * kSlotPageTokens;
  std::vector<uint32_t> pages(kPages), selected(kCount);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), gpu.random);
  std::iota(selected.begin(), selected.end(), 0);
  std::shuffle(selected.begin(), selected.end(), gpu.random);
  std::vector<device::AttentionList> lists(kRows * kKvHeads);
  for (size_t i = 0; i < lists.size(); ++i) {
    lists[i].first_page = static_cast<uint32_t>(i) * kCount / kSlotPageTokens;
    lists[i].selected_count = scattered ? kCount : 0;
    lists[i].ring_tokens = kCount;
    lists[i].recent_count = scattered ? 0 : kCount;
    lists[i].num_pages = kCount / kSlotPageTokens;
  }
  std::vector<float> q(size_t{kRows} * kKvHeads * kGroup * kHeadDim);
  for (float& x : q) x = Random(gpu.random);
  const uint16_t* rows = RepeatedBf16(gpu, size_t{kSlots} * 2 * kHeadDim, 1);
  device::DecodeAttentionParams params;
  params.slot_pool = rows;
  if (dtype != Dtype::kBf16) {
    auto* stored = gpu.New<uint8_t>(size_t{kSlots} * 2 * DtypeBytes(dtype, kHeadDim));
    auto* scales = gpu.New<float>(size_t{kSlots} * 2);
    gpu.table.attention->quantize_rows(gpu.stream, rows, kSlots, kHeadDim, dtype, stored, scales);
    params.slot_pool = stored;
    params.kv_scales = scales;
  }
  params.kv_dtype = dtype;
  params.q = gpu.Upload(q);
  params.num_rows = kRows;
  params.num_query_heads = kKvHeads * kGroup;
  params.num_kv_heads = kKvHeads;
  params.head_dim = kHeadDim;
  params.scale = 1 / std::sqrt(float{kHeadDim});
  params.lists = gpu.Upload(lists);
  params.pages = gpu.Upload(pages);
  params.selected = gpu.Upload(selected);
  params.max_count = kCount;
  params.out_dtype = Dtype::kF32;
  params.scratch = gpu.NewZeroed<uint8_t>(gpu.table.attention->decode_attention_scratch_bytes(params));
  CheckBits(gpu, measuring,
            std::string("decode attention ") + DtypeName(dtype) + (scattered ? ", selected rows" : ", rows in a row"),
            q.size(), [&](uint32_t* out) {
              params.out = out;
              gpu.table.attention->decode_attention(gpu.stream, params);
            });
}

void Check(GpuContext& gpu) {
  if (gpu.few_small) return;  // a sanitizer runs kernels one after the other
  Measuring measuring(gpu);
  measuring.Enqueue(1);
  measuring.Await();
  if (std::isnan(measuring.mass())) gpu.report.Fail("measuring beside", "nothing is measured");
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8}) {
    for (const int num_rows : {1, 8, 32, 64}) {
      CheckProduct(gpu, measuring, 4096, 12288, dtype, num_rows);
      if (num_rows == 1) CheckProduct(gpu, measuring, 24576, 4096, dtype, num_rows);
    }
  }
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI8, Dtype::kI4}) {
    for (const bool scattered : {false, true}) CheckAttention(gpu, measuring, dtype, scattered);
  }
}

void Bench(GpuContext&) {}

}  // namespace

GpuSection BesideSection() {
  return {.name = "beside", .check = Check, .bench = Bench};
}

}  // namespace winnow
