#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tools/bench/gpu/checks/selection_checks.h"
#include "tools/bench/gpu/checks/selection_inputs.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using device::SelectionList;
using device::SelectParams;

constexpr int kKvHeads = 8, kGroup = 5, kHeadDim = 128;
constexpr uint32_t kBudget = 2048, kSinks = 4, kRecent = 64;
constexpr size_t kL2Bytes = 50 << 20;

// Random bytes that any key, bound or value may have, as often as they are needed.
uint8_t* RandomBytes(GpuContext& gpu, size_t bytes, Dtype dtype) {
  constexpr size_t kPiece = 32 << 20;
  std::vector<uint8_t> piece(kPiece);
  for (size_t i = 0; i < kPiece; i += 8) {
    const uint64_t word = gpu.random();
    std::memcpy(&piece[i], &word, 8);
  }
  if (dtype == Dtype::kBf16) {  // magnitudes from 1/8 to 2
    for (size_t i = 1; i < kPiece; i += 2) piece[i] = (piece[i] & 0x81) | 0x3e;
  } else if (dtype == Dtype::kF8) {
    for (uint8_t& byte : piece) byte = (byte & 0x9f) | 0x20;
  }
  uint8_t* all = gpu.New<uint8_t>(bytes);
  uint8_t* from = gpu.Upload(piece);
  for (size_t at = 0; at < bytes; at += kPiece) {
    gpu.device.CopyAsync(all + at, from, std::min(kPiece, bytes - at), gpu.stream);
  }
  return all;
}

struct Workload {
  SelectParams params;
  int sets = 1;
  size_t lists_per_set = 0;

  // The launch's parameters over the `set`-th lists.
  SelectParams Of(int set) const {
    SelectParams p = params;
    p.lists += set * lists_per_set;
    return p;
  }
};

// Lists of `keys` keys for a batch, as many sets of them as pass the L2 by far.
Workload MakeWorkload(GpuContext& gpu, int batch, uint32_t keys, Dtype dtype, int page_tokens, bool reads_keys,
                      bool reads_pages) {
  Workload w;
  const uint32_t blocks_per_list = keys / 32;
  // Keys of int8 lie in rows of keys and values, others beside each other.
  const size_t row_keys = dtype == Dtype::kI8 ? 2 : 1;
  const size_t key_bytes = row_keys * kHeadDim * DtypeBytes(dtype), block_bytes = 32 * key_bytes;
  const size_t page_block_bytes = 32 / page_tokens * size_t{4} * kHeadDim;
  const size_t list_bytes = blocks_per_list * ((reads_keys ? block_bytes : 0) + (reads_pages ? page_block_bytes : 0));
  w.lists_per_set = batch * kKvHeads;
  w.sets = static_cast<int>(std::clamp<size_t>(3 * kL2Bytes / (list_bytes * w.lists_per_set) + 1, 1, 24));
  const size_t lists = w.lists_per_set * w.sets, blocks = lists * blocks_per_list;
  std::vector<uint32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0u);
  std::shuffle(table.begin(), table.end(), gpu.random);
  std::vector<SelectionList> all;
  for (size_t l = 0; l < lists; ++l) {
    all.push_back({.first_block = static_cast<uint32_t>(l * blocks_per_list),
                   .num_keys = keys,
                   .first = kSinks,
                   .last = keys - kRecent,
                   .budget = kBudget,
                   .query = static_cast<uint32_t>(l % w.lists_per_set)});
  }
  std::vector<float> queries(w.lists_per_set * kGroup * kHeadDim);
  std::normal_distribution<float> normal;
  for (float& q : queries) q = normal(gpu.random);
  w.params = {.lists = gpu.Upload(all),
              .num_lists = static_cast<int>(w.lists_per_set),
              .blocks = gpu.Upload(table),
              .keys = {.keys = reads_keys ? RandomBytes(gpu, blocks * block_bytes, dtype) : nullptr,
                       .block_stride = static_cast<int64_t>(block_bytes),
                       .key_stride = static_cast<int64_t>(key_bytes),
                       .scales = dtype == Dtype::kBf16 ? nullptr
                                                       : gpu.Upload(std::vector<float>(blocks * 32 * row_keys, 0.01f)),
                       .scale_stride = static_cast<uint32_t>(row_keys),
                       .dtype = dtype},
              .pages = {.bounds = reads_pages ? RandomBytes(gpu, blocks * page_block_bytes, Dtype::kBf16) : nullptr,
                        .page_tokens = page_tokens},
              .head_dim = kHeadDim,
              .group = kGroup,
              .queries = gpu.Upload(queries),
              .scale = 0.088f,
              .max_keys = keys,
              .max_budget = kBudget,
              .max_kept = kSinks + kRecent,
              .selected = gpu.New<uint32_t>(w.lists_per_set * kBudget),
              .counts = gpu.New<uint32_t>(w.lists_per_set)};
  return w;
}

std::string Thousands(uint32_t keys) {
  return absl::StrCat(keys / 1024, "k");
}

void BenchScores(GpuContext& gpu) {
  struct Row {
    uint32_t keys;
    int batch;
    double goal_us;
  };
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI8}) {
    for (const Row& row : {Row{32768, 1, 18}, {32768, 8, 125}, {131072, 1, 64}, {131072, 8, 495}}) {
      const Workload w = MakeWorkload(gpu, row.batch, row.keys, dtype, 16, true, false);
      const int64_t stride = row.keys;
      float* scores = gpu.New<float>(w.lists_per_set * kGroup * stride);
      const double us = gpu.MedianUs(w.sets, 4, [&](device::Stream stream, int set) {
        gpu.table.selection->score(stream, w.Of(set), scores, stride);
      });
      const size_t keys = w.lists_per_set * row.keys;
      const double floor_us =
          keys * (kHeadDim * DtypeBytes(dtype) + 4.0 * (dtype != Dtype::kBf16)) / gpu.read_bytes_per_us;
      gpu.report.Time(absl::StrCat("q.K ", DtypeName(dtype), " ", Thousands(row.keys), " B=", row.batch), us, floor_us,
                      dtype == Dtype::kBf16 ? row.goal_us : row.goal_us / 2);
      gpu.FreeAll();
    }
  }
}

void BenchPages(GpuContext& gpu) {
  for (const auto& [batch, goal_us] : {std::pair{1, 12.0}, {8, 65.0}, {32, 245.0}}) {
    Workload w = MakeWorkload(gpu, batch, 131072, Dtype::kBf16, 16, false, true);
    w.params.scratch = gpu.New<uint8_t>(gpu.table.selection->select_scratch_bytes(w.params));
    const double floor_us = w.lists_per_set * 8192.0 * 4 * kHeadDim / gpu.read_bytes_per_us;
    const double us = gpu.MedianUs(
        w.sets, 4, [&](device::Stream stream, int set) { gpu.table.selection->select_pages(stream, w.Of(set)); });
    gpu.report.Time(absl::StrCat("select pages of 16, 128k B=", batch), us, floor_us, goal_us);
    float* scores = gpu.New<float>(w.lists_per_set * kGroup * 8192);
    const double score_us = gpu.MedianUs(w.sets, 4, [&](device::Stream stream, int set) {
      gpu.table.selection->score_pages(stream, w.Of(set), scores, 8192);
    });
    gpu.report.Time(absl::StrCat("scores of pages of 16, 128k B=", batch), score_us, floor_us);
    gpu.FreeAll();
  }
}

void BenchTopK(GpuContext& gpu) {
  struct Row {
    uint32_t keys;
    int lists;
    double goal_us;
  };
  std::normal_distribution<float> normal;
  for (const Row& row : {Row{32768, 8, 0},
                         {32768, 64, 10},
                         {32768, 256, 16},
                         {32768, 512, 30},
                         {131072, 8, 0},
                         {131072, 64, 22},
                         {131072, 256, 60},
                         {131072, 512, 110}}) {
    const size_t values_per_set = size_t{row.keys} * row.lists;
    const int sets = static_cast<int>(std::clamp<size_t>(3 * kL2Bytes / (4 * values_per_set) + 1, 1, 24));
    std::vector<float> values(size_t{row.keys} * 64);
    for (float& value : values) value = std::exp(2 * normal(gpu.random));
    const float* from = gpu.Upload(values);
    float* all = gpu.New<float>(values_per_set * sets);
    for (size_t at = 0; at < values_per_set * sets; at += values.size()) {
      gpu.device.CopyAsync(all + at, from, std::min(values.size(), values_per_set * sets - at) * sizeof(float),
                           gpu.stream);
    }
    const SelectionList* lists = gpu.Upload(std::vector<SelectionList>(
        row.lists,
        {.first_block = 0, .num_keys = row.keys, .first = 0, .last = row.keys, .budget = kBudget, .query = 0}));
    uint32_t* selected = gpu.New<uint32_t>(size_t{kBudget} * row.lists);
    uint32_t* counts = gpu.New<uint32_t>(row.lists);
    const double us = gpu.MedianUs(sets, 8, [&](device::Stream stream, int set) {
      gpu.table.selection->top_k(stream, all + set * values_per_set, row.keys, lists, row.lists, row.keys, kBudget,
                                 selected, counts, nullptr);
    });
    gpu.report.Time(absl::StrCat("top-2048 of ", Thousands(row.keys), ", ", row.lists, " lists"), us,
                    4.0 * values_per_set / gpu.read_bytes_per_us, row.goal_us);
    gpu.FreeAll();
  }
}

void BenchSelect(GpuContext& gpu) {
  struct Row {
    Dtype dtype;
    uint32_t keys;
    int batch;
    int page_tokens;  // 0: every key
    double goal_us;
  };
  for (const Row& row : {Row{Dtype::kBf16, 32768, 1, 0, 0},
                         {Dtype::kBf16, 32768, 8, 0, 0},
                         {Dtype::kF8, 32768, 8, 0, 0},
                         {Dtype::kI8, 32768, 8, 0, 0},
                         {Dtype::kI8, 32768, 1, 16, 0},
                         {Dtype::kI8, 32768, 8, 16, 0},
                         {Dtype::kI8, 131072, 8, 16, 0},
                         {Dtype::kF8, 32768, 1, 16, 0},
                         {Dtype::kF8, 32768, 8, 16, 35},
                         {Dtype::kF8, 32768, 8, 32, 35},
                         {Dtype::kF8, 32768, 4, 16, 0},
                         {Dtype::kF8, 32768, 20, 16, 0},
                         {Dtype::kF8, 32768, 24, 16, 0},
                         {Dtype::kF8, 32768, 32, 16, 0},
                         {Dtype::kF8, 131072, 8, 16, 0}}) {
    const bool two_stage = row.page_tokens > 0;
    Workload w = MakeWorkload(gpu, row.batch, row.keys, row.dtype, two_stage ? row.page_tokens : 16, true, two_stage);
    w.params.min_candidates = two_stage ? 4 * kBudget : 0;
    w.params.settled = true;
    w.params.scratch = gpu.New<uint8_t>(gpu.table.selection->select_scratch_bytes(w.params));
    const double scored = two_stage ? 4.0 * kBudget : row.keys;
    const double list_bytes = scored * (kHeadDim * DtypeBytes(row.dtype) + 4.0 * (row.dtype != Dtype::kBf16)) +
                              (two_stage ? 4.0 * row.keys / row.page_tokens * kHeadDim : 0);
    const double us = gpu.MedianUs(
        w.sets, 4, [&](device::Stream stream, int set) { gpu.table.selection->select(stream, w.Of(set)); });
    gpu.report.Time(absl::StrCat("select ", DtypeName(row.dtype), " ", Thousands(row.keys), " B=", row.batch,
                                 two_stage ? absl::StrCat(", two-stage of ", row.page_tokens) : ", every key"),
                    us, w.lists_per_set * list_bytes / gpu.read_bytes_per_us, row.goal_us);
    gpu.FreeAll();
  }
}

void Bench(GpuContext& gpu) {
  BenchScores(gpu);
  BenchPages(gpu);
  BenchTopK(gpu);
  BenchSelect(gpu);
}

}  // namespace

GpuSection SelectionSection() {
  return {"selection", CheckSelection, Bench};
}

}  // namespace winnow
