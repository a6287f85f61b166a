#include <cmath>

#include "tools/bench/gpu/checks/cache_checks.h"
#include "tools/bench/gpu/checks/cache_fixture.h"

namespace winnow {
namespace {

float Bf16ToFloat(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

// Value of an e4m3 byte (OCP 8-bit floating point, 1.0): bias 7, no infinities, 0x7f and 0xff are NaN.
float E4m3ToFloat(uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  const float magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}

// The nearest of all 127 magnitudes, ties to the even byte.
uint8_t NearestE4m3(float value) {
  uint8_t best = 0;
  for (uint8_t byte = 1; byte < 0x7f; ++byte) {
    const double here = std::fabs(std::fabs(static_cast<double>(value)) - E4m3ToFloat(byte)),
                 there = std::fabs(std::fabs(static_cast<double>(value)) - E4m3ToFloat(best));
    if (here < there || (here == there && byte % 2 == 0)) best = byte;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

struct Pools {
  std::vector<uint16_t> rows;
  std::vector<uint8_t> keys;
  std::vector<float> scales;
  std::vector<uint16_t> bounds;
};

struct Case {
  int head_dim, page_tokens, rows_per_list;
  bool spaced = false;  // bounds lie as far apart as 8-bit keys
};

// Fills lists from position 0 in steps of several sizes and compares whole pools, with what must not change.
void CheckSteps(GpuContext& gpu, const Case& c) {
  constexpr int kLists = 5;
  const int row_elements = 2 * c.head_dim, pages_per_block = kBlockTokens / c.page_tokens;
  const int block_elements =
      c.spaced ? static_cast<int>(kBlockTokens) * c.head_dim / 2 : pages_per_block * row_elements;
  const BlockLists lists(gpu, kLists, 96);
  Pools host;
  host.rows.assign(lists.num_rows() * row_elements, 0xffff);
  host.keys.assign(lists.num_rows() * c.head_dim, 0xff);
  host.scales.assign(lists.num_rows(), -1);
  host.bounds.assign(static_cast<size_t>(lists.num_blocks) * block_elements, 0xffff);
  uint16_t* const row_pool = gpu.Upload(host.rows);
  uint8_t* const key_copy = gpu.Upload(host.keys);
  float* const key_scales = gpu.Upload(host.scales);
  uint16_t* const bounds = gpu.Upload(host.bounds);

  std::vector<uint32_t> next;  // position per list; they are at different ones
  for (int list = 0; list < kLists; ++list) next.push_back(0);
  for (int step = 0; step < 96 / c.rows_per_list; ++step) {
    std::vector<uint16_t> rows(static_cast<size_t>(kLists) * c.rows_per_list * row_elements);
    for (uint16_t& value : rows) {
      value = static_cast<uint16_t>(gpu.random() & 0x83ff) | static_cast<uint16_t>(0x3c00 + gpu.random() % 0x400);
    }
    if (step == 1) std::fill(rows.begin(), rows.begin() + c.head_dim, 0);  // a key of zeros
    const device::AppendParams p{.rows = gpu.Upload(rows),
                                 .num_lists = kLists,
                                 .rows_per_list = c.rows_per_list,
                                 .head_dim = c.head_dim,
                                 .positions = gpu.Upload(next),
                                 .lists = lists.device_lists,
                                 .blocks = lists.device_blocks,
                                 .row_pool = row_pool,
                                 .key_copy = key_copy,
                                 .key_scales = key_scales,
                                 .bounds = bounds,
                                 .page_tokens = c.page_tokens,
                                 .page_block_stride = c.spaced ? block_elements * int64_t{sizeof(uint16_t)} : 0};
    gpu.table.cache->append(gpu.stream, p);
    for (int list = 0; list < kLists; ++list) {
      for (int i = 0; i < c.rows_per_list; ++i) {
        const uint32_t position = next[list]++;
        const size_t row = lists.Row(list, position);
        const uint16_t* from = rows.data() + (static_cast<size_t>(list) * c.rows_per_list + i) * row_elements;
        std::copy_n(from, row_elements, host.rows.begin() + row * row_elements);
        float magnitude = 0;
        for (int e = 0; e < c.head_dim; ++e) magnitude = std::max(magnitude, std::fabs(Bf16ToFloat(from[e])));
        const float scale = magnitude > 0 ? magnitude / 448.0f : 1;
        host.scales[row] = scale;
        uint16_t* const page = host.bounds.data() + row / kBlockTokens * block_elements +
                               row % kBlockTokens / c.page_tokens * row_elements;
        for (int e = 0; e < c.head_dim; ++e) {
          const float key = Bf16ToFloat(from[e]);
          host.keys[row * c.head_dim + e] = NearestE4m3(key / scale);
          if (position % c.page_tokens == 0 || key > Bf16ToFloat(page[e])) page[e] = from[e];
          if (position % c.page_tokens == 0 || key < Bf16ToFloat(page[c.head_dim + e])) page[c.head_dim + e] = from[e];
        }
      }
    }
  }
  const std::string name = "append, head_dim " + std::to_string(c.head_dim) + ", pages of " +
                           std::to_string(c.page_tokens) + ", " + std::to_string(c.rows_per_list) +
                           (c.spaced ? " rows, spaced: " : " rows: ");
  gpu.report.Check(name + "rows", Differences(gpu.Download(row_pool, host.rows.size()), host.rows), 0);
  gpu.report.Check(name + "fp8 keys", Differences(gpu.Download(key_copy, host.keys.size()), host.keys), 0);
  gpu.report.Check(name + "scales", Differences(gpu.Download(key_scales, host.scales.size()), host.scales), 0);
  gpu.report.Check(name + "bounds", Differences(gpu.Download(bounds, host.bounds.size()), host.bounds), 0);
  gpu.FreeAll();
}

}  // namespace

void CheckAppend(GpuContext& gpu) {
  for (const int head_dim : gpu.Cases<int>({64, 96, 128, 256})) {
    for (const int page_tokens : {8, 16, 32}) CheckSteps(gpu, {head_dim, page_tokens, 1});
    CheckSteps(gpu, {head_dim, 16, 5});
    CheckSteps(gpu, {head_dim, 16, 48});
    CheckSteps(gpu, {head_dim, 16, 5, /*spaced=*/true});
  }
}

}  // namespace winnow
