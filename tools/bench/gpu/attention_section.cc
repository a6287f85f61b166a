#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/bench/gpu/attention_bench.h"
#include "tools/bench/gpu/random_rows.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using device::AttentionList;
using device::DecodeAttentionParams;

constexpr Dtype kKvDtypes[] = {Dtype::kBf16, Dtype::kF8, Dtype::kI8, Dtype::kI4};
constexpr uint32_t kPageSlots = kSlotPageTokens;

float FromF8(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// A slot pool on both sides; the host's holds what the stored rows stand for.
struct Pool {
  int head_dim;
  Dtype dtype;
  uint32_t slots;
  const void* rows = nullptr;
  const void* scales = nullptr;
  std::vector<float> values = {};  // [slots, 2 * head_dim]
};

Pool MakePool(GpuContext& gpu, int head_dim, Dtype dtype, uint32_t slots) {
  Pool pool{head_dim, dtype, slots};
  const std::vector<uint16_t> bf16 = RandomBf16(gpu.random, size_t{slots} * 2 * head_dim, 2);
  const uint16_t* device_bf16 = gpu.Upload(bf16);
  pool.values.resize(bf16.size());
  for (size_t i = 0; i < bf16.size(); ++i) pool.values[i] = FromBf16(bf16[i]);
  if (dtype == Dtype::kBf16) {
    pool.rows = device_bf16;
    return pool;
  }
  const size_t half_bytes = DtypeBytes(dtype, head_dim);
  uint8_t* rows = gpu.New<uint8_t>(size_t{slots} * 2 * half_bytes);
  float* scales = gpu.New<float>(size_t{slots} * 2);
  gpu.table.attention->quantize_rows(gpu.stream, device_bf16, slots, head_dim, dtype, rows, scales);
  const std::vector<uint8_t> stored = gpu.Download(rows, size_t{slots} * 2 * half_bytes);
  const std::vector<float> stored_scales = gpu.Download(scales, size_t{slots} * 2);
  // Of an element e in a half of largest magnitude a: fp8 errs by half a unit of its last place (2^-4 |e|, or 2^-10
  // of the scale where it is subnormal), int8 by half a step, int4 by no more in all than with steps of a / 7.
  double worst = 0;
  for (size_t half = 0; half < size_t{slots} * 2; ++half) {
    float* x = &pool.values[half * head_dim];
    double largest = 0, squares = 0;
    for (int d = 0; d < head_dim; ++d) largest = std::max<double>(largest, std::fabs(x[d]));
    for (int d = 0; d < head_dim; ++d) {
      const uint8_t byte = stored[half * half_bytes + (dtype == Dtype::kI4 ? d / 2 : d)];
      float value = 0;
      if (dtype == Dtype::kF8) value = FromF8(byte);
      if (dtype == Dtype::kI8) value = static_cast<int8_t>(byte);
      if (dtype == Dtype::kI4) value = static_cast<float>(d % 2 == 0 ? byte & 15 : byte >> 4) - 8;
      value *= stored_scales[half];
      const double error = std::fabs(value - x[d]);
      const double bound = dtype == Dtype::kF8 ? std::max(std::fabs(x[d]) / 16.0, largest / 448 / 1024) : largest / 254;
      if (dtype == Dtype::kI4) {
        squares += error * error;
      } else {
        worst = std::isnan(error) ? error : std::max(worst, error / (bound * (1 + 1e-5)));
      }
      x[d] = value;
    }
    if (dtype == Dtype::kI4) {
      worst = std::max(worst, std::sqrt(squares) / (std::sqrt(head_dim) * largest / 14 * (1 + 1e-4)));
    }
  }
  gpu.report.Check(std::string("quantize_rows ") + DtypeName(dtype) + " head_dim " + std::to_string(head_dim), worst,
                   1);
  pool.rows = rows;
  pool.scales = scales;
  return pool;
}

// Lists over a pool; those of a sequence's kv heads one after the other.
struct Lists {
  std::vector<AttentionList> lists;
  std::vector<uint32_t> pages, selected;
  uint32_t max_count = 0;

  void Add(std::mt19937_64& random, uint32_t sinks, uint32_t selected_count, uint32_t recent, uint32_t pool_pages) {
    AttentionList list = {};
    list.first_page = pages.size();
    list.sinks = sinks;
    list.selected_first = selected.size();
    list.selected_count = selected_count;
    list.pool_base = sinks + random() % 5;
    const uint32_t pool_tokens = selected_count + 100;
    list.ring_base = list.pool_base + pool_tokens;
    list.ring_tokens = recent + 1 + random() % 7;
    list.recent_begin = random() % 100000;
    list.recent_count = recent;
    for (uint32_t i = 0; i < selected_count; ++i) selected.push_back(random() % pool_tokens);
    const uint32_t tokens = list.ring_base + list.ring_tokens;
    const uint32_t num_pages = (tokens + kPageSlots - 1) / kPageSlots;
    list.num_pages = random() % 2 == 0 ? num_pages : 0;
    for (uint32_t i = 0; i < num_pages; ++i) pages.push_back(random() % pool_pages);
    lists.push_back(list);
    max_count = std::max(max_count, list.count());
  }
  uint32_t Slot(const AttentionList& list, uint32_t j) const {
    return list.SlotOfRow(j, selected.data(), pages.data());
  }
};

struct Answer {
  std::vector<float> out, lse;
};

Answer Run(GpuContext& gpu, DecodeAttentionParams params) {
  const size_t heads = size_t(params.num_rows) * params.num_query_heads, count = heads * params.head_dim;
  float* out = gpu.New<float>(count);
  float* lse = gpu.New<float>(heads);
  params.out = out;
  params.lse = lse;
  params.scratch = gpu.NewZeroed<uint8_t>(gpu.table.attention->decode_attention_scratch_bytes(params));
  gpu.table.attention->decode_attention(gpu.stream, params);
  Answer answer;
  if (params.out_dtype == Dtype::kF32) {
    answer.out = gpu.Download(out, count);
  } else {
    for (const uint16_t bits : gpu.Download(reinterpret_cast<const uint16_t*>(out), count)) {
      answer.out.push_back(FromBf16(bits));
    }
  }
  answer.lse = gpu.Download(lse, heads);
  return answer;
}

// The answer's worst errors as fractions of what the arithmetic allows.
//
// Queries are exact in bf16 here, so scores err by what sums of head_dim products in f32 do, head_dim 2^-23 of the sum
// of magnitudes (and 2^-14 |q| |k| / 2^11 for query elements that are subnormal in f16, far less). An error d of all
// scores moves each weight by a factor e^(2d). Weights are rounded to bf16 (2^-8) or f16 (2^-11, and of small ones
// 2^-25 of the largest in a tile of 16 rows), sums over the list are of relative 2^-20. With rows of int8 queries are
// integers, to half a 32,767th of their largest element, and weights, with the scales of their values, to as much of
// the largest of 32 rows.
struct Errors {
  double out = 0, lse = 0;
  void Take(double& worst, double error) {
    worst = std::isnan(error) || std::isnan(worst) ? NAN : std::max(worst, error);
  }
};

// `sinks`: by query head; empty where there are none.
Errors Compare(const Pool& pool, const Lists& lists, const DecodeAttentionParams& params, const std::vector<float>& q,
               const std::vector<float>& sinks, const Answer& answer) {
  Errors errors;
  const int head_dim = params.head_dim, group = params.num_query_heads / params.num_kv_heads;
  std::vector<double> scores, sum(head_dim), magnitudes(head_dim);
  for (size_t head = 0; head < size_t(params.num_rows) * params.num_query_heads; ++head) {
    const AttentionList& list = lists.lists[head / group];
    const float* query = &q[head * head_dim];
    const uint32_t count = list.count();
    scores.assign(count, 0);
    double score_error = 0, max_score = -INFINITY;
    double largest_query = 0;
    for (int d = 0; d < head_dim; ++d) largest_query = std::max<double>(largest_query, std::fabs(query[d]));
    const double query_error = params.kv_dtype == Dtype::kI8 ? largest_query / 65534 : 0;
    for (uint32_t j = 0; j < count; ++j) {
      const float* k = &pool.values[size_t{lists.Slot(list, j)} * 2 * head_dim];
      double dot = 0, magnitude = 0, key_sum = 0;
      for (int d = 0; d < head_dim; ++d) {
        key_sum += std::fabs(k[d]);
        dot += double{query[d]} * k[d];
        magnitude += std::fabs(double{query[d]} * k[d]);
      }
      scores[j] = dot * params.scale;
      score_error = std::max(score_error, (magnitude * head_dim * 0x1p-23 + key_sum * query_error) * params.scale);
      max_score = std::max(max_score, scores[j]);
    }
    double total = 0, largest = 0;
    std::fill(sum.begin(), sum.end(), 0);
    std::fill(magnitudes.begin(), magnitudes.end(), 0);
    // Of 32 rows: the largest weight with its value's scale, and the sum of codes by element.
    std::vector<double> coarse(head_dim), codes(head_dim);
    double heaviest = 0;
    const auto end_rows = [&] {
      for (int d = 0; d < head_dim; ++d) coarse[d] += heaviest / 65534 * std::exchange(codes[d], 0);
      heaviest = 0;
    };
    for (uint32_t j = 0; j < count; ++j) {
      if (j % 32 == 0) end_rows();
      const double p = std::exp(scores[j] - max_score);
      const float* v = &pool.values[size_t{lists.Slot(list, j)} * 2 * head_dim + head_dim];
      total += p;
      for (int d = 0; d < head_dim; ++d) {
        sum[d] += p * v[d];
        magnitudes[d] += p * std::fabs(v[d]);
        largest = std::max<double>(largest, std::fabs(v[d]));
      }
      double scale = 0;
      for (int d = 0; d < head_dim; ++d) scale = std::max<double>(scale, std::fabs(v[d]) / 127);
      heaviest = std::max(heaviest, p * scale);
      for (int d = 0; d < head_dim && scale > 0; ++d) codes[d] += std::fabs(v[d]) / scale;
    }
    end_rows();
    if (!sinks.empty()) total += std::exp(sinks[head % params.num_query_heads] - max_score);
    const double rounding = (params.kv_dtype == Dtype::kBf16 ? 0x1p-8 : 0x1p-11) + 2 * score_error + 0x1p-18;
    for (int d = 0; d < head_dim; ++d) {
      const double expected = count == 0 ? 0 : sum[d] / total;
      double allowed = count == 0 ? 0 : rounding * magnitudes[d] / total + 0x1p-22 * largest;
      if (count > 0 && params.kv_dtype == Dtype::kI8) allowed += coarse[d] / total;
      if (params.out_dtype == Dtype::kBf16) allowed += 0x1p-8 * std::fabs(expected);
      const double error = std::fabs(answer.out[head * head_dim + d] - expected);
      errors.Take(errors.out, error == 0 ? 0 : error / allowed);
    }
    const double lse = count == 0 ? -INFINITY : max_score + std::log(total);
    errors.Take(errors.lse, answer.lse[head] == lse ? 0
                                                    : std::fabs(answer.lse[head] - lse) /
                                                          (score_error + 0x1p-18 + std::fabs(lse) * 0x1p-22));
  }
  return errors;
}

DecodeAttentionParams Params(GpuContext& gpu, const Pool& pool, const Lists& lists, int rows, int kv_heads, int group,
                             const std::vector<float>& q) {
  DecodeAttentionParams params;
  params.q = gpu.Upload(q);
  params.num_rows = rows;
  params.num_query_heads = kv_heads * group;
  params.num_kv_heads = kv_heads;
  params.head_dim = pool.head_dim;
  params.scale = 1 / std::sqrt(static_cast<float>(pool.head_dim));
  params.slot_pool = pool.rows;
  params.kv_dtype = pool.dtype;
  params.kv_scales = pool.scales;
  params.lists = gpu.Upload(lists.lists);
  params.pages = gpu.Upload(lists.pages);
  params.selected = gpu.Upload(lists.selected);
  params.max_count = lists.max_count;
  params.out_dtype = Dtype::kF32;
  return params;
}

std::vector<float> RandomQueries(std::mt19937_64& random, size_t count) {
  std::vector<float> q(count);
  for (float& x : q) x = FromBf16(Bf16Bits(3 * Random(random)));
  return q;
}

bool SameBits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// Every dtype, head_dim and group: lists of all three parts, of lengths around tiles, chunks and splits, and empty.
void CheckAgainstReference(GpuContext& gpu) {
  constexpr int kRows = 8, kKvHeads = 2;
  for (const Dtype dtype : kKvDtypes) {
    std::vector<int> head_dims = {64, 96, 128, 256};
    if (dtype == Dtype::kBf16) head_dims.insert(head_dims.begin(), {16, 32});
    for (const int head_dim : gpu.Cases<int>(head_dims, 2)) {
      const Pool pool = MakePool(gpu, head_dim, dtype, 64 * kPageSlots);
      for (const int group : gpu.Cases<int>({1, 2, 3, 4, 5, 6, 7, 8})) {
        Lists lists;
        for (const uint32_t largest : {0u, 1u, 15u, 48u, 64u, 333u, 1200u, 2048u}) {
          const uint32_t selected = gpu.Size(largest, largest / 4);
          lists.Add(gpu.random, selected == 0 ? 0 : 4, selected, selected == 0 ? 0 : selected % 3 * 40, 64);
          lists.Add(gpu.random, 0, 0, gpu.random() % 200 + (selected == 2048 ? 4000 : 0), 64);
        }
        const std::vector<float> q = RandomQueries(gpu.random, size_t{kRows} * kKvHeads * group * head_dim);
        DecodeAttentionParams params = Params(gpu, pool, lists, kRows, kKvHeads, group, q);
        if (group % 2 == 0) params.out_dtype = Dtype::kBf16;
        // Some of no weight, some of as much as all rows, some of nearly all.
        std::vector<float> sinks;
        for (int head = 0; group % 4 > 1 && head < params.num_query_heads; ++head) sinks.push_back(head % 4 * 12 - 8);
        if (!sinks.empty()) params.sinks = gpu.Upload(sinks);
        const Answer answer = Run(gpu, params);
        const Errors errors = Compare(pool, lists, params, q, sinks, answer);
        const std::string what = std::string("decode attention ") + DtypeName(dtype) + " head_dim " +
                                 std::to_string(head_dim) + " group " + std::to_string(group) +
                                 (sinks.empty() ? "" : ", sinks");
        gpu.report.Check(what, errors.out, 1);
        gpu.report.Check(what + " lse", errors.lse, 1);
      }
      gpu.FreeAll();
    }
  }
}

// A row's bits do not depend on the batch it is in, on max_count, nor on how much a thread block takes.
void CheckInvariance(GpuContext& gpu) {
  constexpr int kKvHeads = 2, kGroup = 5, kHeadDim = 128;
  const int num_rows = gpu.Size(64, 3);
  for (const Dtype dtype : kKvDtypes) {
    const Pool pool = MakePool(gpu, kHeadDim, dtype, 64 * kPageSlots);
    Lists lists;
    for (int i = 0; i < num_rows * kKvHeads; ++i) {
      lists.Add(gpu.random, i % 5, gpu.random() % (i % 7 == 0 ? 9000 : 2100), gpu.random() % 300, 64);
    }
    const std::vector<float> q = RandomQueries(gpu.random, size_t(num_rows) * kKvHeads * kGroup * kHeadDim);
    DecodeAttentionParams params = Params(gpu, pool, lists, num_rows, kKvHeads, kGroup, q);
    params.sinks = gpu.Upload(RandomQueries(gpu.random, kKvHeads * kGroup));
    const Answer all = Run(gpu, params);
    int wrong = 0;
    for (int level = 0; level <= 3; ++level) {
      for (const uint32_t more : gpu.Cases<uint32_t>({0, 1000, 100000})) {
        DecodeAttentionParams other = params;
        other.unit_level = level;
        other.max_count += more;
        const Answer answer = Run(gpu, other);
        wrong += !SameBits(all.out.data(), answer.out.data(), all.out.size());
        wrong += !SameBits(all.lse.data(), answer.lse.data(), all.lse.size());
      }
    }
    gpu.report.Check(std::string("bits with other units and max_count, ") + DtypeName(dtype), wrong, 0);
    wrong = 0;
    constexpr size_t kRowFloats = size_t{kKvHeads} * kGroup * kHeadDim;
    for (const int batch : gpu.Cases<int>({1, 2, 3, 7, 16, 33, 63})) {
      for (int first = 0; first < num_rows; first += batch) {
        DecodeAttentionParams part = params;
        part.num_rows = std::min(batch, num_rows - first);
        part.q += first * kRowFloats;
        part.lists += first * kKvHeads;
        const Answer answer = Run(gpu, part);
        wrong += !SameBits(&all.out[first * kRowFloats], answer.out.data(), answer.out.size());
      }
    }
    gpu.report.Check(std::string("bits of a row in batches of 1 to 64, ") + DtypeName(dtype), wrong, 0);
    gpu.FreeAll();
  }
}

// The last row of each list is written by the kernel before, which still runs when settled rows are read: in a graph of
// both, whose rows change between replays, and bit for bit as without the promise.
void CheckSettled(GpuContext& gpu) {
  constexpr int kRows = 16, kKvHeads = 2, kGroup = 5, kHeadDim = 128, kLists = kRows * kKvHeads;
  constexpr size_t kRowElements = 2 * kHeadDim;
  const uint32_t list_pages = gpu.Size(40, 3);
  Pool pool = MakePool(gpu, kHeadDim, Dtype::kBf16, kLists * list_pages * kPageSlots);
  Lists lists;
  std::vector<uint32_t> last_slots;
  for (uint32_t i = 0; i < kLists; ++i) {
    AttentionList list = {};
    list.first_page = lists.pages.size();
    list.recent_count = 1 + gpu.random() % (list_pages * kPageSlots);
    list.ring_tokens = list_pages * kPageSlots;
    list.num_pages = list_pages;
    for (uint32_t page = 0; page < list_pages; ++page) lists.pages.push_back(i * list_pages + page);
    last_slots.push_back(i * list_pages * kPageSlots + list.recent_count - 1);
    lists.lists.push_back(list);
    lists.max_count = std::max(lists.max_count, list.count());
  }
  lists.selected.push_back(0);
  const std::vector<float> q = RandomQueries(gpu.random, size_t{kRows} * kKvHeads * kGroup * kHeadDim);
  DecodeAttentionParams params = Params(gpu, pool, lists, kRows, kKvHeads, kGroup, q);
  float* const out = gpu.New<float>(q.size());
  params.out = out;
  params.unit_level = 0;  // that needs most
  params.scratch = gpu.NewZeroed<uint8_t>(gpu.table.attention->decode_attention_scratch_bytes(params));
  uint16_t* const last_rows = gpu.New<uint16_t>(kLists * kRowElements);
  const device::ScatterRowsParams scatter = {.rows = last_rows,
                                             .slots = gpu.Upload(last_slots),
                                             .num_rows = kLists,
                                             .row_bytes = kRowElements * sizeof(uint16_t),
                                             .slot_pool = const_cast<void*>(pool.rows)};
  int wrong = 0;
  for (int level = -1; level <= 3; ++level) {
    params.unit_level = level;
    params.settled = true;
    const auto graph = gpu.device.Capture(gpu.stream, [&](device::Stream stream) {
      gpu.table.step->scatter_rows(stream, scatter);
      gpu.table.attention->decode_attention(stream, params);
    });
    if (!graph.ok()) return gpu.report.Fail("capture", std::string(graph.status().message()));
    params.settled = false;
    for (int replay = 0; replay < 3; ++replay) {
      const std::vector<uint16_t> rows = RandomBf16(gpu.random, kLists * kRowElements, 2);
      gpu.device.CopyAsync(last_rows, rows.data(), rows.size() * sizeof(uint16_t), gpu.stream);
      (*graph)->Launch(gpu.stream);
      const std::vector<float> early = gpu.Download(out, q.size());
      gpu.table.attention->decode_attention(gpu.stream, params);
      wrong += !SameBits(early.data(), gpu.Download(out, q.size()).data(), q.size());
    }
  }
  gpu.report.Check("bits with settled rows", wrong, 0);
  gpu.FreeAll();
}

// Lists, selections and rows that cache ranks write while attention waits for them: bit for bit what it gives when all
// was there before. A cache rank that says nothing ends its wait with an error, and no other's.
void CheckRemoteFlags(GpuContext& gpu) {
  // Few rows: what raises the flags needs room beside the launch that waits for them.
  constexpr int kRows = 4, kKvHeads = 2, kGroup = 5, kHeadDim = 128, kPeers = 3, kLayer = 1;
  constexpr uint32_t kValue = 7;
  constexpr size_t kFlag = 256, kSentFlag = 512, kTo = 1024, kSentBytes = 1040, kInboxBytes = 32 << 10;
  std::vector<uint8_t> sent(kRows * kSentBytes);
  for (uint8_t& byte : sent) byte = static_cast<uint8_t>(gpu.random());
  const Pool pool = MakePool(gpu, kHeadDim, Dtype::kBf16, 64 * kPageSlots);
  const uint32_t* const value = gpu.Upload(std::vector<uint32_t>{kValue});
  const device::Stream peer_stream = gpu.device.NewStream();
  for (int level = -1; level <= 3; ++level) {
    for (const bool sends : {false, true}) {
      for (const bool one_is_late : {false, true}) {
        Lists before, after;
        for (int i = 0; i < kRows * kKvHeads; ++i) {
          const uint32_t largest = gpu.Size(2000, 200);
          before.Add(gpu.random, 4, gpu.random() % largest, 1 + gpu.random() % 100, 64);
          after.Add(gpu.random, 4, gpu.random() % largest, 1 + gpu.random() % 100, 64);
        }
        before.selected.resize(std::max(before.selected.size(), after.selected.size()));
        after.selected.resize(before.selected.size());
        before.pages.resize(std::max(before.pages.size(), after.pages.size()));
        after.pages.resize(before.pages.size());
        before.max_count = after.max_count = std::max(before.max_count, after.max_count);
        std::vector<device::ExchangePeer> peers(device::kMaxExchangePeers);
        std::vector<uint32_t*> flags, errors;
        for (int i = 0; i < kPeers; ++i) {
          flags.push_back(gpu.NewZeroed<uint32_t>(kLayer + 1));
          errors.push_back(gpu.NewZeroed<uint32_t>(1));
          peers[7 * i] = {.inbox = gpu.NewZeroed<std::byte>(kInboxBytes),
                          .delta_flags = flags[i],
                          .abort = gpu.NewZeroed<uint32_t>(1),
                          .error = errors[i]};
        }
        const std::vector<float> q = RandomQueries(gpu.random, size_t{kRows} * kKvHeads * kGroup * kHeadDim);
        DecodeAttentionParams params = Params(gpu, pool, before, kRows, kKvHeads, kGroup, q);
        DecodeAttentionParams there = Params(gpu, pool, after, kRows, kKvHeads, kGroup, q);
        params.unit_level = there.unit_level = level;
        const Answer expected = Run(gpu, there);
        float* const out = gpu.New<float>(q.size());
        params.out = out;
        params.scratch = gpu.NewZeroed<uint8_t>(gpu.table.attention->decode_attention_scratch_bytes(params));
        params.settled = true;
        params.remote_flags = {.peers = gpu.Upload(peers),
                               .flag = kFlag,
                               .layer = kLayer,
                               .value = value,
                               .timeout_us = one_is_late ? 20'000u : 5'000'000u};
        std::vector<void*> regions;
        for (int row = 0; row < kRows; ++row) regions.push_back(row == 3 ? nullptr : peers[7 * (row % 3)].inbox);
        if (sends) {
          params.sends = {.from = gpu.Upload(sent),
                          .row_bytes = kSentBytes,
                          .num_rows = kRows,
                          .regions = gpu.Upload(regions),
                          .to = kTo,
                          .peers = params.remote_flags.peers,
                          .flag = kSentFlag,
                          .value = value,
                          .arrivals = gpu.NewZeroed<uint32_t>(1)};
        }
        gpu.table.attention->decode_attention(gpu.stream, params);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const auto copy = [&](const void* to, const void* from, size_t bytes) {
          gpu.device.CopyAsync(const_cast<void*>(to), from, bytes, peer_stream);
        };
        copy(params.lists, there.lists, after.lists.size() * sizeof(AttentionList));
        copy(params.selected, there.selected, after.selected.size() * sizeof(uint32_t));
        copy(params.pages, there.pages, after.pages.size() * sizeof(uint32_t));
        for (int i = 0; i < kPeers - (one_is_late ? 1 : 0); ++i) {
          gpu.table.cache->raise(peer_stream, {.flag = flags[i] + kLayer, .value = value});
        }
        const std::vector<float> got = gpu.Download(out, q.size());
        const std::string what = absl::StrCat("attention that waits for cache ranks, unit level ", level,
                                              sends ? ", sends" : "", one_is_late ? ", one late" : "");
        int wrong = one_is_late ? 0 : !SameBits(got.data(), expected.out.data(), q.size());
        for (int i = 0; i < kPeers; ++i) {
          const std::vector<std::byte> inbox = gpu.Download(peers[7 * i].inbox, kInboxBytes);
          const auto word = [&](size_t at) { return *reinterpret_cast<const uint32_t*>(&inbox[at]); };
          wrong += word(kFlag) != kValue || word(kSentFlag) != (sends ? kValue : 0);
          for (int row = 0; row < kRows && sends; ++row) {
            if (regions[row] != peers[7 * i].inbox) continue;
            wrong += std::memcmp(&inbox[kTo + row * kSentBytes], &sent[row * kSentBytes], kSentBytes) != 0;
          }
          const bool late = one_is_late && i == kPeers - 1;
          wrong += gpu.Download(errors[i], 1)[0] != (late ? device::kWaitTimedOut : 0);
        }
        gpu.report.Check(what, wrong, 0);
      }
    }
  }
  gpu.FreeAll();
}

void Check(GpuContext& gpu) {
  CheckAgainstReference(gpu);
  CheckInvariance(gpu);
  CheckSettled(gpu);
  CheckRemoteFlags(gpu);
}

}  // namespace

GpuSection AttentionSection() {
  return {"attention", Check, BenchAttention};
}

}  // namespace winnow
