#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/kernel_table.h"
#include "tools/bench/gpu/elementwise_reference.h"
#include "tools/bench/gpu/random_rows.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using device::AttentionList;

constexpr RowLayout WithIndex(int dim) {
  return {.value_is_key = true, .index_dim = dim};
}

struct Shape {
  int key_dim, num_heads, dim, rope_dim;
  bool interleaved = false;

  std::string Name() const { return absl::StrCat("indexer of ", num_heads, " heads of ", dim); }
};

void Take(double& worst, double error) {
  if (!(error <= worst)) worst = error;
}

// Index keys and queries against the CPU's kernels.
void CheckAppend(GpuContext& gpu, const Shape& shape, int num_rows) {
  using elementwise::Bf16ToF32, elementwise::Normal;
  const LatentShape latent = {.rank = shape.key_dim - shape.rope_dim, .rope_dim = shape.rope_dim};
  const RowLayout row = WithIndex(shape.dim);
  const int elements = static_cast<int>(row.elements(shape.key_dim)), floats = shape.num_heads * shape.dim;
  const int keys_stride = shape.dim + shape.num_heads + 3, heads_stride = floats + 5;
  const std::vector<float> keys = Normal(gpu, static_cast<size_t>(num_rows) * keys_stride);
  const std::vector<float> heads = Normal(gpu, static_cast<size_t>(num_rows) * heads_stride);
  const std::vector<float> norm = Normal(gpu, shape.dim), bias = Normal(gpu, shape.dim);
  const std::vector<float> latents = Normal(gpu, static_cast<size_t>(num_rows) * shape.key_dim);
  const std::vector<float> latent_norm = Normal(gpu, latent.rank);
  std::vector<float> inv_freq(shape.rope_dim / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = std::pow(1e4f, -static_cast<float>(i) / inv_freq.size());
  std::vector<uint32_t> positions(num_rows);
  for (uint32_t& position : positions) position = gpu.random() % 100000;
  const device::LatentAppendParams params{.heads = gpu.New<float>(num_rows * (8 + shape.rope_dim)),
                                          .heads_stride = 8 + shape.rope_dim,
                                          .latents = gpu.Upload(latents),
                                          .latents_stride = shape.key_dim,
                                          .num_rows = num_rows,
                                          .num_heads = 1,
                                          .nope_dim = 8,
                                          .shape = latent,
                                          .norm_weight = gpu.Upload(latent_norm),
                                          .norm_epsilon = 1e-6f,
                                          .positions = gpu.Upload(positions),
                                          .rope_inv_freq = gpu.Upload(inv_freq),
                                          .rope_attention_factor = 1.25f,
                                          .nope = gpu.New<uint16_t>(num_rows * 8),
                                          .kv_copy = gpu.New<uint16_t>(static_cast<size_t>(num_rows) * elements),
                                          .index = {.num_heads = shape.num_heads,
                                                    .dim = shape.dim,
                                                    .keys = gpu.Upload(keys),
                                                    .keys_stride = keys_stride,
                                                    .heads = gpu.Upload(heads),
                                                    .heads_stride = heads_stride,
                                                    .norm_weight = gpu.Upload(norm),
                                                    .norm_bias = gpu.Upload(bias),
                                                    .interleaved = shape.interleaved,
                                                    .weight_factor = 0.25f,
                                                    .queries = gpu.New<float>(num_rows * (floats + shape.num_heads))}};
  gpu.table.latent->append(gpu.stream, params);

  const KernelTable& cpu = **CpuKernels("portable");
  const std::unique_ptr<Executor> executor = cpu.new_executor(1);
  std::vector<float> want_rows(static_cast<size_t>(num_rows) * elements), index_keys;
  std::vector<float> want(static_cast<size_t>(num_rows) * floats);
  for (int r = 0; r < num_rows; ++r) {
    const auto key = keys.begin() + static_cast<int64_t>(r) * keys_stride;
    index_keys.insert(index_keys.end(), key, key + shape.dim);
    std::copy_n(heads.begin() + static_cast<int64_t>(r) * heads_stride, floats,
                want.begin() + static_cast<int64_t>(r) * floats);
  }
  cpu.latent_append(*executor, {.projected = latents.data(),
                                .stride = shape.key_dim,
                                .num_rows = num_rows,
                                .norm_weight = latent_norm.data(),
                                .norm_epsilon = 1e-6f,
                                .shape = latent,
                                .positions = positions.data(),
                                .rope_inv_freq = inv_freq.data(),
                                .rope_attention_factor = 1.25f,
                                .index_keys = index_keys.data(),
                                .index_norm_weight = norm.data(),
                                .index_norm_bias = bias.data(),
                                .index_interleaved = shape.interleaved,
                                .row = row,
                                .kv_dtype = Dtype::kF32,
                                .kv_rows = want_rows.data()});
  cpu.rotate_leading(*executor, {.x = want.data(),
                                 .stride = floats,
                                 .num_rows = num_rows,
                                 .num_heads = shape.num_heads,
                                 .head_dim = shape.dim,
                                 .rope_dim = shape.rope_dim,
                                 .interleaved = shape.interleaved,
                                 .positions = positions.data(),
                                 .rope_inv_freq = inv_freq.data(),
                                 .rope_attention_factor = 1.25f});
  const std::vector<uint16_t> rows =
      gpu.Download(static_cast<const uint16_t*>(params.kv_copy), static_cast<size_t>(num_rows) * elements);
  const std::vector<float> queries = gpu.Download(params.index.queries, num_rows * (floats + shape.num_heads));
  constexpr double kTolerance = 64 * elementwise::kF32;
  double worst_key = 0, worst_query = 0, weights_differ = 0;
  for (int r = 0; r < num_rows; ++r) {
    const float* const key = &want_rows[static_cast<size_t>(r) * elements + row.index_offset(shape.key_dim)];
    double largest = 1e-20;
    for (int d = 0; d < shape.dim; ++d) largest = std::max<double>(largest, std::fabs(key[d]));
    for (int d = 0; d < shape.dim; ++d) {
      const float got = Bf16ToF32(rows[static_cast<size_t>(r) * elements + row.index_offset(shape.key_dim) + d]);
      Take(worst_key, std::fabs(double{got} - key[d]) / largest);
    }
    const float* const got = &queries[static_cast<size_t>(r) * (floats + shape.num_heads)];
    for (int h = 0; h < shape.num_heads; ++h) {
      const float* const query = &want[static_cast<size_t>(r) * floats + h * shape.dim];
      largest = 1e-20;
      for (int d = 0; d < shape.dim; ++d) largest = std::max<double>(largest, std::fabs(query[d]));
      for (int d = 0; d < shape.dim; ++d) {
        Take(worst_query, std::fabs(double{got[h * shape.dim + d]} - query[d]) / largest);
      }
      weights_differ += got[floats + h] != 0.25f * keys[static_cast<size_t>(r) * keys_stride + shape.dim + h];
    }
  }
  const std::string what = absl::StrCat(shape.Name(), ", ", num_rows, " rows");
  gpu.report.Check("index keys, " + what, worst_key, elementwise::kBf16 + kTolerance);
  gpu.report.Check("index queries, " + what, worst_query, elementwise::kBf16 + kTolerance);
  gpu.report.Check("weights of heads, " + what, weights_differ, 0);
  gpu.FreeAll();
}

// A launch over some queries with slots of their own, or over one sequence's rows by position.
struct Launch {
  device::IndexScoreParams params;
  std::vector<uint32_t> counts, budgets;  // keys and budget of each query
  std::vector<uint16_t> rows;
  std::vector<float> queries;
  std::vector<AttentionList> lists;
  std::vector<uint32_t> pages;
  uint32_t* selected = nullptr;
  uint32_t* num_selected = nullptr;
  size_t row_elements = 0;

  size_t RowOf(int query, uint32_t key) const {
    return lists.empty() ? key
                         : size_t{pages[lists[query].first_page + key / kSlotPageTokens]} * kSlotPageTokens +
                               key % kSlotPageTokens;
  }
};

constexpr uint32_t kMaxBudget = 100;

Launch MakeLaunch(GpuContext& gpu, const Shape& shape, bool in_slots) {
  Launch launch;
  launch.row_elements = WithIndex(shape.dim).elements(shape.key_dim);
  constexpr uint32_t kPages = 40;
  const uint32_t longest = gpu.Size(kPages * kSlotPageTokens - 3, 700u);
  if (in_slots) {
    launch.counts = {1, 0, kMaxBudget, kMaxBudget + 1, 255, 256, 257, 1000 % longest, longest, longest};
    launch.budgets.assign(launch.counts.size(), kMaxBudget);
    launch.budgets.back() = 0;  // of a row that attends to everything
    launch.budgets[7] = 17;
    for (const uint32_t count : launch.counts) {
      AttentionList list = {};
      list.first_page = launch.pages.size();
      list.ring_tokens = kPages * kSlotPageTokens;
      list.recent_count = count;
      list.selected_count = 5;  // of a step before
      for (uint32_t i = 0; i < kPages; ++i) launch.pages.push_back(gpu.random() % kPages);
      launch.lists.push_back(list);
    }
  } else {
    for (uint32_t i = 0; i < 33; ++i) launch.counts.push_back(longest - 32 + i);
    launch.budgets.assign(launch.counts.size(), kMaxBudget);
  }
  const int num_rows = static_cast<int>(launch.counts.size());
  launch.rows = RandomBf16(gpu.random, kPages * kSlotPageTokens * launch.row_elements, 2);
  launch.queries.resize(static_cast<size_t>(num_rows) * shape.num_heads * (shape.dim + 1));
  for (float& x : launch.queries) x = FromBf16(Bf16Bits(Random(gpu.random)));
  std::vector<uint32_t> positions;
  for (const uint32_t count : launch.counts) positions.push_back(count - 1);  // of none: kNoPosition
  const uint32_t stride = (longest + 63) / 64 * 64;
  launch.params = {.rows = gpu.Upload(launch.rows),
                   .key_dim = shape.key_dim,
                   .dim = shape.dim,
                   .num_heads = shape.num_heads,
                   .lists = in_slots ? gpu.Upload(launch.lists) : nullptr,
                   .pages = in_slots ? gpu.Upload(launch.pages) : nullptr,
                   .positions = in_slots ? gpu.Upload(positions) : nullptr,
                   .first_position = in_slots ? 0 : positions[0],
                   .budgets = in_slots ? gpu.Upload(launch.budgets) : nullptr,
                   .max_budget = kMaxBudget,
                   .num_rows = num_rows,
                   .queries = gpu.Upload(launch.queries),
                   .max_keys = longest,
                   .scores = gpu.New<float>(static_cast<size_t>(num_rows) * stride),
                   .stride = stride,
                   .selections = gpu.New<device::SelectionList>(num_rows)};
  launch.selected = gpu.New<uint32_t>(num_rows * kMaxBudget);
  launch.num_selected = gpu.New<uint32_t>(num_rows);
  return launch;
}

void Run(GpuContext& gpu, const Launch& launch) {
  const device::IndexScoreParams& p = launch.params;
  gpu.table.indexer->scores(gpu.stream, p);
  gpu.table.selection->top_k(gpu.stream, p.scores, p.stride, p.selections, p.num_rows, p.max_keys, p.max_budget,
                             launch.selected, launch.num_selected, nullptr);
}

// Error of a query's scores against f64, over what sums of f32 may differ by.
double ScoreError(const Launch& launch, const Shape& shape, int query, const float* scores) {
  double worst = 0;
  const float* const queries = &launch.queries[static_cast<size_t>(query) * shape.num_heads * (shape.dim + 1)];
  for (uint32_t key = 0; key < launch.counts[query]; key += 1 + key % 3) {
    const uint16_t* const at = &launch.rows[launch.RowOf(query, key) * launch.row_elements + shape.key_dim];
    double want = 0, magnitude = 0;
    for (int head = 0; head < shape.num_heads; ++head) {
      double dot = 0, terms = 0;
      for (int d = 0; d < shape.dim; ++d) {
        const double term = double{queries[head * shape.dim + d]} * FromBf16(at[d]);
        dot += term;
        terms += std::fabs(term);
      }
      const double weight = queries[shape.num_heads * shape.dim + head];
      want += weight * std::max(dot, 0.0);
      magnitude += std::fabs(weight) * terms;
    }
    Take(worst, std::fabs(scores[key] - want) / (magnitude * (shape.dim + shape.num_heads) * 0x1p-23));
  }
  return worst;
}

void CheckScores(GpuContext& gpu, const Shape& shape, bool in_slots) {
  const Launch launch = MakeLaunch(gpu, shape, in_slots);
  Run(gpu, launch);
  const device::IndexScoreParams& p = launch.params;
  const std::vector<float> scores = gpu.Download(p.scores, static_cast<size_t>(p.num_rows) * p.stride);
  const std::vector<uint32_t> selected = gpu.Download(launch.selected, static_cast<size_t>(p.num_rows) * kMaxBudget);
  const std::vector<AttentionList> lists =
      in_slots ? gpu.Download(p.lists, launch.lists.size()) : std::vector<AttentionList>();
  double worst = 0, others = 0, lists_differ = 0;
  for (int query = 0; query < p.num_rows; ++query) {
    const uint32_t count = launch.counts[query], budget = launch.budgets[query];
    const bool selects = budget > 0 && count > budget;
    const float* const of_query = &scores[static_cast<size_t>(query) * p.stride];
    if (in_slots) {
      const AttentionList& list = lists[query];
      lists_differ += list.selected_count != (selects ? budget : 0) || list.recent_count != (selects ? 0 : count) ||
                      (selects && list.selected_first != query * kMaxBudget);
    }
    if (!selects) continue;
    Take(worst, ScoreError(launch, shape, query, of_query));
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return of_query[a] > of_query[b]; });
    order.resize(budget);
    std::sort(order.begin(), order.end());
    others += !std::equal(order.begin(), order.end(), &selected[static_cast<size_t>(query) * kMaxBudget]);
  }
  const std::string what = absl::StrCat(shape.Name(), in_slots ? ", in slots" : ", by position");
  gpu.report.Check("scores, " + what, worst, 1);
  gpu.report.Check("queries that select others than the best, " + what, others, 0);
  gpu.report.Check("lists that name something else, " + what, lists_differ, 0);

  // The same of one query alone.
  Launch alone = launch;
  alone.params.num_rows = 1;
  const int last = p.num_rows - 2;
  if (in_slots) {
    alone.params.lists = gpu.Upload(launch.lists) + last;
    alone.params.positions += last;
    alone.params.budgets += last;
  } else {
    alone.params.first_position += last;
  }
  alone.params.queries += static_cast<size_t>(last) * shape.num_heads * (shape.dim + 1);
  alone.params.scores = gpu.New<float>(p.stride);
  Run(gpu, alone);
  const std::vector<float> again = gpu.Download(alone.params.scores, launch.counts[last]);
  gpu.report.Check("scores of one query alone, " + what,
                   elementwise::Differing(again, {&scores[static_cast<size_t>(last) * p.stride],
                                                  &scores[static_cast<size_t>(last) * p.stride + again.size()]}),
                   0);
  gpu.FreeAll();
}

void Check(GpuContext& gpu) {
  for (const Shape& shape : gpu.Cases<Shape>({{48, 4, 32, 16, true},
                                              {64, 3, 40, 32},
                                              {96, 17, 64, 32, true},
                                              {576, 32, 128, 64},
                                              {576, 64, 128, 64, true}},
                                             2)) {
    for (const int num_rows : {1, 9, gpu.Size(300, 40)}) CheckAppend(gpu, shape, num_rows);
    for (const bool in_slots : {true, false}) CheckScores(gpu, shape, in_slots);
  }
}

// Of DeepSeek V3.2: index keys are 256 of 1,408 bytes of a row, and 2,048 positions are selected.
void Bench(GpuContext& gpu) {
  constexpr int kKeyDim = 576, kDim = 128, kHeads = 64, kSets = 3;
  constexpr uint32_t kTopK = 2048;
  for (const auto& [num_rows, count] :
       {std::pair(1, 4096u), {8, 4096u}, {1, 32768u}, {8, 32768u}, {1, 131072u}, {32, 32768u}}) {
    const uint32_t per_list = count / kSlotPageTokens, pages = num_rows * per_list;
    const size_t row_elements = WithIndex(kDim).elements(kKeyDim);
    std::vector<AttentionList> lists(num_rows);
    std::vector<uint32_t> table(pages);
    for (uint32_t i = 0; i < pages; ++i) table[i] = static_cast<uint32_t>(i * 7919ull % pages);
    for (int row = 0; row < num_rows; ++row) {
      lists[row] = {};
      lists[row].first_page = row * per_list;
      lists[row].ring_tokens = count;
    }
    std::vector<float> queries(static_cast<size_t>(num_rows) * kHeads * (kDim + 1));
    for (float& x : queries) x = Random(gpu.random);
    device::IndexScoreParams params{.key_dim = kKeyDim,
                                    .dim = kDim,
                                    .num_heads = kHeads,
                                    .lists = gpu.Upload(lists),
                                    .pages = gpu.Upload(table),
                                    .positions = gpu.Upload(std::vector<uint32_t>(num_rows, count - 1)),
                                    .budgets = gpu.Upload(std::vector<uint32_t>(num_rows, kTopK)),
                                    .max_budget = kTopK,
                                    .num_rows = num_rows,
                                    .queries = gpu.Upload(queries),
                                    .max_keys = count,
                                    .scores = gpu.New<float>(static_cast<size_t>(num_rows) * count),
                                    .stride = count,
                                    .selections = gpu.New<device::SelectionList>(num_rows)};
    uint32_t *const selected = gpu.New<uint32_t>(num_rows * kTopK), *const counts = gpu.New<uint32_t>(num_rows);
    std::vector<void*> pools;
    const size_t elements = size_t{pages} * kSlotPageTokens * row_elements;
    for (int set = 0; set < kSets; ++set) {
      pools.push_back(gpu.New<uint16_t>(elements));
      gpu.table.elementwise->fill_normal(gpu.stream, pools.back(), elements, set, 1);
    }
    for (const bool with_top_k : {false, true}) {
      const double us = gpu.MedianUs(
          kSets, 6,
          [&](device::Stream stream, int set) {
            device::IndexScoreParams of = params;
            of.rows = pools[set];
            gpu.table.indexer->scores(stream, of);
            if (!with_top_k) return;
            gpu.table.selection->top_k(stream, of.scores, of.stride, of.selections, num_rows, count, kTopK, selected,
                                       counts, nullptr);
          },
          7);
      const double keys = static_cast<double>(num_rows) * count;
      gpu.report.Time(absl::StrCat("index scores", with_top_k ? " and top 2,048" : "", ", ", num_rows, " x ", count),
                      us, std::max(keys * kDim * 2 / gpu.read_bytes_per_us, keys * kHeads * kDim * 2 / 790e6));
    }
    gpu.FreeAll();
  }
}

}  // namespace

GpuSection IndexerSection() {
  return {"indexer", Check, Bench};
}

}  // namespace winnow
