#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/bench/gpu/random_rows.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using device::AttentionList;

constexpr RowLayout kRow = {.value_is_key = true};
constexpr uint32_t kPageSlots = kSlotPageTokens;

struct Error {
  double out = 0, lse = 0;
  void Take(double& worst, double error) {
    if (!(error <= worst)) worst = error;
  }
};

// Attention of one query over rows, of which `row_of(j)` gives the j-th, against an answer, over what arithmetic
// allows: scores err by what sums of f32 do, weights are rounded to bf16, and so may be the answer.
template <typename RowOf>
void Compare(const std::vector<float>& rows, int key_dim, const float* query, double scale, uint32_t count,
             const RowOf& row_of, const float* out, bool out_is_bf16, const float* lse, Error& error) {
  std::vector<double> scores(count), sum(key_dim), magnitudes(key_dim);
  double score_error = 0, most = -INFINITY, total = 0, largest = 0;
  for (uint32_t j = 0; j < count; ++j) {
    const float* const key = &rows[static_cast<size_t>(row_of(j)) * key_dim];
    double dot = 0, magnitude = 0;
    for (int d = 0; d < key_dim; ++d) {
      dot += double{query[d]} * key[d];
      magnitude += std::fabs(double{query[d]} * key[d]);
    }
    scores[j] = dot * scale;
    score_error = std::max(score_error, magnitude * scale * key_dim * 0x1p-23);
    most = std::max(most, scores[j]);
  }
  for (uint32_t j = 0; j < count; ++j) {
    const float* const key = &rows[static_cast<size_t>(row_of(j)) * key_dim];
    const double weight = std::exp(scores[j] - most);
    total += weight;
    for (int d = 0; d < key_dim; ++d) {
      sum[d] += weight * key[d];
      magnitudes[d] += weight * std::fabs(key[d]);
      largest = std::max<double>(largest, std::fabs(key[d]));
    }
  }
  const double rounding = 0x1p-8 + 2 * score_error + 0x1p-18;
  for (int d = 0; d < key_dim; ++d) {
    const double want = count == 0 ? 0 : sum[d] / total;
    const double allowed = count == 0 ? 0 : rounding * magnitudes[d] / total + 0x1p-22 * largest;
    const double off = std::fabs(out[d] - want);
    error.Take(error.out, off == 0 ? 0 : off / (allowed + (out_is_bf16 ? 0x1p-8 * std::fabs(want) : 0)));
  }
  if (lse == nullptr) return;
  const double want = count == 0 ? -INFINITY : most + std::log(total);
  error.Take(error.lse,
             *lse == want ? 0 : std::fabs(*lse - want) / (score_error + 0x1p-17 + std::fabs(want) * 0x1p-22));
}

struct DecodeCase {
  int key_dim, num_heads;
  bool lists_by_head = false;
  int index_dim = 0;  // of rows that have more behind their keys

  std::string Name() const {
    return absl::StrCat("latent decode, keys of ", key_dim, ", ", num_heads, " heads",
                        lists_by_head ? " with lists of their own" : "", index_dim > 0 ? ", index keys" : "");
  }
};

struct Lists {
  std::vector<AttentionList> lists;
  std::vector<uint32_t> pages, selected;

  void Add(std::mt19937_64& random, uint32_t sinks, uint32_t chosen, uint32_t recent, uint32_t pool_pages) {
    AttentionList list = {};
    list.first_page = pages.size();
    list.sinks = sinks;
    list.selected_first = selected.size();
    list.selected_count = chosen;
    list.pool_base = sinks;
    list.ring_base = sinks + chosen + 50;
    list.ring_tokens = recent + 1 + random() % 7;
    list.recent_begin = random() % 100000;
    list.recent_count = recent;
    if (chosen == 0 && sinks == 0 && random() % 2 == 0) {  // by position
      list.ring_base = random() % 3 * kPageSlots;
      list.recent_begin = random() % 3 * kPageSlots;
      list.ring_tokens = list.recent_begin + recent + 1 + random() % 100;
    }
    for (uint32_t i = 0; i < chosen; ++i) selected.push_back(random() % (chosen + 50));
    const uint32_t tokens = list.ring_base + list.ring_tokens;
    for (uint32_t i = 0; i <= tokens / kPageSlots; ++i) pages.push_back(random() % pool_pages);
    lists.push_back(list);
  }
  uint32_t Slot(const AttentionList& list, uint32_t j) const {
    return list.SlotOfRow(j, selected.data(), pages.data());
  }
};

void CheckDecode(GpuContext& gpu, const DecodeCase& c) {
  constexpr uint32_t kPages = 64;
  const size_t row_elements = c.key_dim + c.index_dim;
  const std::vector<uint16_t> pool = RandomBf16(gpu.random, kPages * kPageSlots * row_elements, 2);
  std::vector<float> keys;
  for (size_t i = 0; i < pool.size(); ++i) {
    if (i % row_elements < static_cast<size_t>(c.key_dim)) keys.push_back(FromBf16(pool[i]));
  }
  const int kv_heads = c.lists_by_head ? c.num_heads : 1, group = c.num_heads / kv_heads;
  Lists lists;
  std::vector<uint32_t> counts = {0, 1, 63, 64, 65, 255, 256, 257, 700, gpu.Size(2000u, 900u), gpu.Size(20000u, 1200u)};
  for (const uint32_t count : counts) {
    for (int head = 0; head < kv_heads; ++head) {
      const uint32_t chosen = count % 3 == 0 ? count / 2 : 0, sinks = chosen > 4 ? 4 : 0;
      lists.Add(gpu.random, sinks, chosen, count - chosen - sinks, kPages);
    }
  }
  const int num_rows = static_cast<int>(counts.size());
  std::vector<float> q(static_cast<size_t>(num_rows) * c.num_heads * c.key_dim);
  for (float& x : q) x = FromBf16(Bf16Bits(3 * Random(gpu.random)));
  device::DecodeAttentionParams params;
  params.num_rows = num_rows;
  params.num_query_heads = c.num_heads;
  params.num_kv_heads = kv_heads;
  params.head_dim = c.key_dim;
  params.scale = 1 / std::sqrt(static_cast<float>(c.key_dim));
  params.slot_pool = gpu.Upload(pool);
  params.row = kRow;
  params.row.index_dim = c.index_dim;
  const float* const device_q = gpu.Upload(q);
  const AttentionList* const device_lists = gpu.Upload(lists.lists);
  params.pages = gpu.Upload(lists.pages);
  lists.selected.push_back(0);
  params.selected = gpu.Upload(lists.selected);
  params.max_count = *std::max_element(counts.begin(), counts.end());
  const auto run = [&](int first, int count, Dtype dtype, std::vector<float>& out, std::vector<float>& lse) {
    const size_t heads = static_cast<size_t>(count) * c.num_heads;
    params.q = device_q + static_cast<size_t>(first) * c.num_heads * c.key_dim;
    params.lists = device_lists + first * kv_heads;
    params.num_rows = count;
    params.out_dtype = dtype;
    params.out = gpu.New<float>(heads * c.key_dim);
    params.lse = gpu.New<float>(heads);
    params.scratch = gpu.New<uint8_t>(gpu.table.attention->decode_attention_scratch_bytes(params));
    gpu.table.attention->decode_attention(gpu.stream, params);
    out.clear();
    if (dtype == Dtype::kF32) {
      out = gpu.Download(static_cast<const float*>(params.out), heads * c.key_dim);
    } else {
      for (const uint16_t x : gpu.Download(static_cast<const uint16_t*>(params.out), heads * c.key_dim)) {
        out.push_back(FromBf16(x));
      }
    }
    lse = gpu.Download(params.lse, heads);
  };
  std::vector<float> out, lse, other, other_lse;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    run(0, num_rows, dtype, out, lse);
    Error error;
    for (int row = 0; row < num_rows; ++row) {
      for (const int head :
           {0, c.num_heads / 2 + static_cast<int>(gpu.random() % (c.num_heads - c.num_heads / 2)), c.num_heads - 1}) {
        const size_t at = static_cast<size_t>(row) * c.num_heads + head;
        const AttentionList& list = lists.lists[at / group];
        Compare(
            keys, c.key_dim, &q[at * c.key_dim], params.scale, list.count(),
            [&](uint32_t j) { return lists.Slot(list, j); }, &out[at * c.key_dim], dtype == Dtype::kBf16, &lse[at],
            error);
      }
    }
    const std::string what = c.Name() + (dtype == Dtype::kF32 ? "" : ", bf16");
    gpu.report.Check(what, error.out, 1);
    gpu.report.Check(what + ", lse", error.lse, 1);
  }
  // The same rows alone, and where longer lists are allowed: bit by bit.
  run(0, num_rows, Dtype::kF32, out, lse);
  double differ = 0;
  for (int row = 0; row < num_rows; ++row) {
    if (row % 2 == 0) params.max_count = counts[row];
    run(row, 1, Dtype::kF32, other, other_lse);
    differ += std::memcmp(other.data(), &out[row * other.size()], other.size() * sizeof(float)) != 0;
    params.max_count = 40000;
  }
  gpu.report.Check(c.Name() + ", rows whose bits depend on others", differ, 0);
  gpu.FreeAll();
}

void CheckPrefill(GpuContext& gpu, const DecodeCase& c, int first_position, int num_queries) {
  const int end = first_position + num_queries;
  const size_t row_elements = c.key_dim + c.index_dim, query_elements = static_cast<size_t>(c.num_heads) * c.key_dim;
  std::vector<uint16_t> rows = RandomBf16(gpu.random, end * row_elements, 2);
  rows.resize((end + 3) * row_elements, 0xffff);  // nobody's
  std::vector<float> keys;
  for (size_t i = 0; i < end * row_elements; ++i) {
    if (i % row_elements < static_cast<size_t>(c.key_dim)) keys.push_back(FromBf16(rows[i]));
  }
  const std::vector<uint16_t> q = RandomBf16(gpu.random, num_queries * query_elements, 3);
  device::PrefillAttentionParams params;
  params.num_query_heads = c.num_heads;
  params.num_kv_heads = 1;
  params.head_dim = c.key_dim;
  params.scale = 1 / std::sqrt(static_cast<float>(c.key_dim));
  params.kv = gpu.Upload(rows);
  params.kv_head_stride = end + 3;
  params.row = kRow;
  params.row.index_dim = c.index_dim;
  const uint16_t* const device_q = gpu.Upload(q);
  const auto run = [&](int begin, int count) {
    params.q = device_q + begin * query_elements;
    params.first_position = first_position + begin;
    params.num_queries = count;
    params.out = gpu.New<uint16_t>(count * query_elements);
    gpu.table.prefill->prefill_attention(gpu.stream, params);
    return gpu.Download(static_cast<const uint16_t*>(params.out), count * query_elements);
  };
  const std::vector<uint16_t> out = run(0, num_queries);
  Error error;
  std::vector<float> query(c.key_dim), answer(c.key_dim);
  for (int sample = 0; sample < 60; ++sample) {
    const int at = sample < 3   ? std::min(sample, num_queries - 1)
                   : sample < 6 ? std::max(num_queries - 1 - (sample - 3), 0)
                                : static_cast<int>(gpu.random() % num_queries);
    const size_t from = at * query_elements + gpu.random() % c.num_heads * c.key_dim;
    for (int d = 0; d < c.key_dim; ++d) query[d] = FromBf16(q[from + d]), answer[d] = FromBf16(out[from + d]);
    Compare(
        keys, c.key_dim, query.data(), params.scale, first_position + at + 1, [](uint32_t j) { return j; },
        answer.data(), /*out_is_bf16=*/true, nullptr, error);
  }
  const std::string what = absl::StrCat("latent prefill, keys of ", c.key_dim, ", ", c.num_heads, " heads, ",
                                        num_queries, " queries at ", first_position);
  gpu.report.Check(what, error.out, 1);
  gpu.report.Check(what + ", unwritten",
                   std::count_if(out.begin(), out.end(), [](uint16_t x) { return (x & 0x7fff) > 0x7f80; }), 0);
  double differ = 0;
  for (int round = 0; round < 3 && num_queries > 1; ++round) {
    const int begin = static_cast<int>(gpu.random() % num_queries);
    const int count = 1 + static_cast<int>(gpu.random() % (num_queries - begin));
    const std::vector<uint16_t> part = run(begin, count);
    differ += !std::equal(part.begin(), part.end(), out.begin() + static_cast<int64_t>(begin * query_elements));
  }
  gpu.report.Check(what + ", chunks that give other bits", differ, 0);
  gpu.FreeAll();
}

// Each query to positions of its own.
void CheckSelected(GpuContext& gpu, const DecodeCase& c, int num_queries, uint32_t count) {
  constexpr uint32_t kRows = 1500;
  const size_t row_elements = c.key_dim + c.index_dim, query_elements = static_cast<size_t>(c.num_heads) * c.key_dim;
  const std::vector<uint16_t> rows = RandomBf16(gpu.random, kRows * row_elements, 2);
  std::vector<float> keys;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i % row_elements < static_cast<size_t>(c.key_dim)) keys.push_back(FromBf16(rows[i]));
  }
  std::vector<uint32_t> selected, all(kRows);
  for (uint32_t i = 0; i < kRows; ++i) all[i] = i;
  for (int query = 0; query < num_queries; ++query) {
    std::sample(all.begin(), all.end(), std::back_inserter(selected), count, gpu.random);
  }
  const std::vector<uint16_t> q = RandomBf16(gpu.random, num_queries * query_elements, 3);
  device::PrefillAttentionParams params;
  params.q = gpu.Upload(q);
  params.num_queries = num_queries;
  params.num_query_heads = c.num_heads;
  params.num_kv_heads = 1;
  params.head_dim = c.key_dim;
  params.scale = 1 / std::sqrt(static_cast<float>(c.key_dim));
  params.kv = gpu.Upload(rows);
  params.kv_head_stride = kRows;
  params.row = kRow;
  params.row.index_dim = c.index_dim;
  params.selected = gpu.Upload(selected);
  params.selected_count = count;
  auto* const out_at = gpu.New<uint16_t>(num_queries * query_elements);
  params.out = out_at;
  gpu.table.prefill->prefill_attention(gpu.stream, params);
  const std::vector<uint16_t> out = gpu.Download(out_at, num_queries * query_elements);
  Error error;
  std::vector<float> query(c.key_dim), answer(c.key_dim);
  for (int sample = 0; sample < 60; ++sample) {
    const int at = sample < 2 ? sample * (num_queries - 1) : static_cast<int>(gpu.random() % num_queries);
    const size_t from = at * query_elements + gpu.random() % c.num_heads * c.key_dim;
    for (int d = 0; d < c.key_dim; ++d) query[d] = FromBf16(q[from + d]), answer[d] = FromBf16(out[from + d]);
    Compare(
        keys, c.key_dim, query.data(), params.scale, count, [&](uint32_t j) { return selected[at * count + j]; },
        answer.data(), /*out_is_bf16=*/true, nullptr, error);
  }
  const std::string what = absl::StrCat("latent prefill, keys of ", c.key_dim, ", ", c.num_heads, " heads, ",
                                        num_queries, " queries to ", count, " positions each");
  gpu.report.Check(what, error.out, 1);
  gpu.report.Check(what + ", unwritten",
                   std::count_if(out.begin(), out.end(), [](uint16_t x) { return (x & 0x7fff) > 0x7f80; }), 0);
  gpu.FreeAll();
}

const DecodeCase kCases[] = {{48, 4},   {64, 16},  {96, 8, true},         {80, 17},   {128, 33},      {320, 40},
                             {320, 20}, {576, 16}, {576, 64, false, 128}, {576, 128}, {576, 16, true}};

void Check(GpuContext& gpu) {
  for (const DecodeCase& c : gpu.Cases<DecodeCase>({std::begin(kCases), std::end(kCases)}, 3)) {
    CheckDecode(gpu, c);
    if (c.lists_by_head) continue;
    CheckPrefill(gpu, c, 0, gpu.Size(333, 70));
    CheckPrefill(gpu, c, gpu.Size(1931, 131), 1);
    CheckPrefill(gpu, c, 700, gpu.Size(200, 33));
    CheckSelected(gpu, c, 1, 64);
    CheckSelected(gpu, c, gpu.Size(64, 9), gpu.Size(777u, 100u));
  }
}

// Of DeepSeek-V2-Lite's and V3's heads.
void Bench(GpuContext& gpu) {
  constexpr int kKeyDim = 576, kSets = 4;
  for (const int heads : {16, 128}) {
    for (const auto& [num_rows, count] : {std::pair(1, 4096), {8, 4096}, {32, 4096}, {1, 32768}, {8, 32768}}) {
      const uint32_t pages = static_cast<uint32_t>(num_rows * count) / kPageSlots;
      const size_t elements = size_t{pages} * kPageSlots * kKeyDim;
      Lists lists;
      for (int row = 0; row < num_rows; ++row) {
        AttentionList list = {};
        list.first_page = lists.pages.size();
        list.recent_count = list.ring_tokens = static_cast<uint32_t>(count);
        for (uint32_t i = 0; i < static_cast<uint32_t>(count) / kPageSlots; ++i) {
          lists.pages.push_back(static_cast<uint32_t>((lists.pages.size() * 7919) % pages));
        }
        lists.lists.push_back(list);
      }
      device::DecodeAttentionParams params;
      params.num_rows = num_rows;
      params.num_query_heads = heads;
      params.num_kv_heads = 1;
      params.head_dim = kKeyDim;
      params.scale = 0.05f;
      params.row = kRow;
      params.lists = gpu.Upload(lists.lists);
      params.pages = gpu.Upload(lists.pages);
      params.max_count = count;
      std::vector<float> q(size_t(num_rows) * heads * kKeyDim);
      for (float& x : q) x = Random(gpu.random);
      params.q = gpu.Upload(q);
      params.out = gpu.New<uint16_t>(q.size());
      params.scratch = gpu.New<uint8_t>(gpu.table.attention->decode_attention_scratch_bytes(params));
      std::vector<void*> pools;
      for (int set = 0; set < kSets; ++set) {
        pools.push_back(gpu.New<uint16_t>(elements));
        gpu.table.elementwise->fill_normal(gpu.stream, pools.back(), elements, set, 1);
      }
      const double us = gpu.MedianUs(
          kSets, 8,
          [&](device::Stream stream, int set) {
            device::DecodeAttentionParams of = params;
            of.slot_pool = pools[set];
            gpu.table.attention->decode_attention(stream, of);
          },
          7);
      const double flops = 4.0 * num_rows * count * heads * kKeyDim;
      gpu.report.Time(absl::StrCat("latent decode, ", num_rows, " x ", count, " rows, ", heads, " heads"), us,
                      std::max(elements * 2 / gpu.read_bytes_per_us, flops / 790e6));
      gpu.FreeAll();
    }
    const int length = 4096;
    device::PrefillAttentionParams params;
    params.num_queries = 2048;
    params.first_position = length - 2048;
    params.num_query_heads = heads;
    params.num_kv_heads = 1;
    params.head_dim = kKeyDim;
    params.scale = 0.05f;
    params.row = kRow;
    const size_t q_elements = size_t{2048} * heads * kKeyDim;
    void* const kv = gpu.New<uint16_t>(size_t{length} * kKeyDim);
    void* const q = gpu.New<uint16_t>(q_elements);
    gpu.table.elementwise->fill_normal(gpu.stream, kv, size_t{length} * kKeyDim, 1, 1);
    gpu.table.elementwise->fill_normal(gpu.stream, q, q_elements, 2, 1);
    params.kv = kv;
    params.q = q;
    params.out = gpu.New<uint16_t>(q_elements);
    const double us = gpu.MedianUs(
        1, 2, [&](device::Stream stream, int) { gpu.table.prefill->prefill_attention(stream, params); }, 5);
    const double flops = 4.0 * 2048 * (length - 1024.0) * heads * kKeyDim;
    gpu.report.Time(absl::StrCat("latent prefill, 2048 queries at 2048, ", heads, " heads, ",
                                 static_cast<int>(flops / us / 1e6), " TFLOP/s"),
                    us, flops / 790e6);
    gpu.FreeAll();
  }
}

}  // namespace

GpuSection LatentAttentionSection() {
  return {"latent-attention", Check, Bench};
}

}  // namespace winnow
