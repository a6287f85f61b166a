#include "tools/bench/gpu/attention_bench.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "tools/bench/gpu/random_rows.h"

namespace winnow {
namespace {

using device::AttentionList;
using device::DecodeAttentionParams;

constexpr uint32_t kPageSlots = kSlotPageTokens;

// Memory of bytes that repeat every 16 MiB, without drawing all of them.
const void* RandomBytes(GpuContext& gpu, size_t bytes, bool floats) {
  std::vector<uint16_t> block = RandomBf16(gpu.random, size_t{8} << 20, 1);
  if (floats) {
    for (size_t i = 0; i < block.size(); i += 2) {
      const uint32_t bits = std::bit_cast<uint32_t>(0.01f + 0.001f * FromBf16(block[i]));
      std::memcpy(&block[i], &bits, sizeof(bits));
    }
  }
  const size_t block_bytes = block.size() * sizeof(uint16_t);
  uint8_t* data = gpu.New<uint8_t>(bytes);
  for (size_t at = 0; at < bytes; at += block_bytes) {
    gpu.device.CopyAsync(data + at, block.data(), std::min(block_bytes, bytes - at), gpu.stream);
  }
  WINNOW_CHECK(gpu.device.Synchronize(gpu.stream).ok());
  return data;
}

// With the scales of K and V.
double RowBytes(int head_dim, Dtype dtype) {
  return 2.0 * DtypeBytes(dtype, head_dim) + (dtype == Dtype::kBf16 ? 0 : 8);
}

struct BenchPool {
  const void* rows;
  const void* scales;
  uint32_t pages;
};

struct BenchCase {
  std::string name;
  int rows;
  uint32_t count;        // of each list
  uint32_t pool_tokens;  // 0: dense; else `count` of so many are selected
  double goal_us;
};

constexpr int kBenchKvHeads = 8, kBenchGroup = 5;

void BenchOne(GpuContext& gpu, const BenchPool& pool, const BenchCase& bench, int head_dim, Dtype dtype) {
  const uint32_t tokens = bench.pool_tokens == 0 ? bench.count : bench.pool_tokens;
  const uint32_t list_pages = tokens / kPageSlots, list_count = bench.rows * kBenchKvHeads;
  const double bytes = RowBytes(head_dim, dtype) * bench.count * list_count;
  const int sets = std::clamp<int>(pool.pages / (list_pages * list_count), 1, std::ceil(400e6 / bytes));
  std::vector<uint32_t> pages(pool.pages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), gpu.random);
  std::vector<DecodeAttentionParams> params(sets);
  const size_t query_heads = size_t(bench.rows) * kBenchKvHeads * kBenchGroup;
  void* scratch = nullptr;
  for (int set = 0; set < sets; ++set) {
    std::vector<AttentionList> lists(list_count);
    std::vector<uint32_t> selected, indices(tokens);
    std::iota(indices.begin(), indices.end(), 0);
    for (uint32_t i = 0; i < list_count; ++i) {
      AttentionList& list = lists[i];
      list = {};
      list.first_page = (set * list_count + i) * list_pages;
      list.num_pages = list_pages;
      list.ring_tokens = tokens;
      if (bench.pool_tokens == 0) {
        list.recent_count = bench.count;
        continue;
      }
      list.selected_first = selected.size();
      list.selected_count = bench.count;
      std::shuffle(indices.begin(), indices.end(), gpu.random);
      selected.insert(selected.end(), indices.begin(), indices.begin() + bench.count);
    }
    std::vector<float> q(query_heads * head_dim);
    for (float& x : q) x = Random(gpu.random);
    DecodeAttentionParams& p = params[set];
    p.q = gpu.Upload(q);
    p.num_rows = bench.rows;
    p.num_query_heads = kBenchKvHeads * kBenchGroup;
    p.num_kv_heads = kBenchKvHeads;
    p.head_dim = head_dim;
    p.scale = 1 / std::sqrt(static_cast<float>(head_dim));
    p.slot_pool = pool.rows;
    p.kv_dtype = dtype;
    p.kv_scales = pool.scales;
    p.lists = gpu.Upload(lists);
    p.pages = set == 0 ? gpu.Upload(pages) : params[0].pages;
    selected.push_back(0);
    p.selected = gpu.Upload(selected);
    p.max_count = bench.count;
    p.out = gpu.New<uint16_t>(query_heads * head_dim);
    if (set == 0) scratch = gpu.NewZeroed<uint8_t>(gpu.table.attention->decode_attention_scratch_bytes(p));
    p.scratch = scratch;
  }
  // Launches in a row write nothing that the next one reads.
  for (const bool settled : {false, true}) {
    for (DecodeAttentionParams& p : params) p.settled = settled;
    const double us = gpu.MedianUs(
        sets, std::max(4, std::min(64, static_cast<int>(4e9 / bytes))),
        [&](device::Stream stream, int set) { gpu.table.attention->decode_attention(stream, params[set]); });
    gpu.report.Time("decode attention " + bench.name + (settled ? ", settled" : ""), us, bytes / gpu.read_bytes_per_us,
                    bench.goal_us);
  }
}

}  // namespace

// Goals of narrow rows are those of bf16 rows, less what they are smaller.
void BenchAttention(GpuContext& gpu) {
  constexpr uint32_t kPages = 32 * kBenchKvHeads * 32768 / kPageSlots;  // 4.3 GB of 512 B rows
  constexpr size_t kSlots = size_t{kPages} * kPageSlots;
  const BenchPool pool{RandomBytes(gpu, kSlots * 512, false), RandomBytes(gpu, kSlots * 8, true), kPages};
  const BenchCase cases[] = {
      {"sparse 1", 1, 2048, 4096, 6.5},    {"sparse 8", 8, 2048, 4096, 20},    {"sparse 16", 16, 2048, 4096, 36},
      {"sparse 64", 64, 2048, 4096, 130},  {"dense 1x32k", 1, 32768, 0, 38.1}, {"dense 8x32k", 8, 32768, 0, 242.5},
      {"dense 32x32k", 32, 32768, 0, 963},
  };
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI8, Dtype::kI4}) {
    for (BenchCase bench : cases) {
      bench.name += std::string(" ") + DtypeName(dtype);
      bench.goal_us *= RowBytes(128, dtype) / RowBytes(128, Dtype::kBf16);
      BenchOne(gpu, pool, bench, 128, dtype);
    }
  }
  for (BenchCase bench : {cases[1], cases[5]}) {
    bench.name += " bf16 head_dim 64";
    bench.goal_us /= 2;
    BenchOne(gpu, pool, bench, 64, Dtype::kBf16);
  }
}

}  // namespace winnow
