#include "tools/bench/gpu/checks/selection_checks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/kernel_table.h"
#include "tools/bench/gpu/checks/selection_inputs.h"

namespace winnow {
namespace {

using device::SelectionList;
using device::SelectParams;

constexpr uint32_t kPoison = 0xffffffffu;

void CheckScores(GpuContext& gpu) {
  struct Case {
    int head_dim, group;
    Dtype dtype;
    bool rows;
    int page_tokens;
  };
  std::vector<Case> cases;
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI8}) {
      cases.push_back({head_dim, 5, dtype, false, 16});
      cases.push_back({head_dim, head_dim == 96 ? 1 : 8, dtype, true, head_dim == 128 ? 8 : 32});
    }
  }
  for (const int group : {2, 3, 4, 6, 7}) cases.push_back({128, group, Dtype::kBf16, true, 16});
  for (const Case& c : gpu.Cases(cases, 4)) {
    const SelectionInputs inputs(gpu, {c.head_dim, c.group, c.dtype, c.page_tokens, c.rows},
                                 {0, 1, 31, 33, 500, 128, 2077, 7}, 16);
    const int64_t stride = 2112;
    for (const bool pages : {false, true}) {
      const size_t count = inputs.lists.size() * c.group * stride;
      float* scores = gpu.New<float>(count);
      const SelectParams params = inputs.Params();
      (pages ? gpu.table.selection->score_pages : gpu.table.selection->score)(gpu.stream, params, scores, stride);
      const std::vector<float> found = gpu.Download(scores, count);
      double worst = 0, differing = 0;
      for (size_t l = 0; l < inputs.lists.size(); ++l) {
        for (int q = 0; q < c.group && c.dtype == Dtype::kI8 && !pages; ++q) {
          const std::vector<float> exact = ScoresOfInt8(inputs, inputs.lists[l], q);
          const float* const row = &found[(l * c.group + q) * stride];
          for (size_t k = 0; k < exact.size(); ++k) differing += row[k] != exact[k];
        }
        const ReferenceScores reference =
            pages ? ScorePagesInF64(inputs, inputs.lists[l]) : ScoreKeysInF64(inputs, inputs.lists[l]);
        for (int q = 0; q < c.group; ++q) {
          const float* row = &found[(l * c.group + q) * stride];
          const std::vector<double>& expected = reference.scores[q];
          for (size_t k = 0; k < expected.size(); ++k) {
            const double error = std::abs(row[k] - expected[k]) / reference.delta;
            worst = error <= worst ? worst : error;  // keeps NaN
          }
          for (size_t k = expected.size(); k < static_cast<size_t>(stride); ++k) {
            if (!std::isnan(row[k])) worst = std::numeric_limits<double>::infinity();
          }
        }
      }
      gpu.report.Check(
          absl::StrCat(pages ? "page scores " : "scores ", DtypeName(c.dtype), " head_dim ", c.head_dim, " group ",
                       c.group, pages ? absl::StrCat(" pages of ", c.page_tokens) : "", ", errors in deltas"),
          worst, 1);
      if (c.dtype == Dtype::kI8 && !pages) {
        gpu.report.Check(absl::StrCat("scores int8 head_dim ", c.head_dim, " group ", c.group, ", bits of the CPU's"),
                         differing, 0);
      }
    }
    gpu.FreeAll();
  }
}

// Bit for bit the CPU's choice, for values of many kinds.
void CheckTopK(GpuContext& gpu) {
  const absl::StatusOr<const KernelTable*> cpu = CpuKernels();
  WINNOW_CHECK(cpu.ok());
  std::normal_distribution<float> normal;
  using Draw = std::function<float(uint32_t i, uint32_t n)>;
  const std::vector<std::pair<std::string, Draw>> kinds = {
      {"normal", [&](uint32_t, uint32_t) { return normal(gpu.random); }},
      {"softmax", [&](uint32_t, uint32_t) { return std::exp(8 * normal(gpu.random) - 20); }},
      {"few values", [&](uint32_t, uint32_t) { return static_cast<float>(gpu.random() % 7); }},
      {"one value", [&](uint32_t, uint32_t) { return 0.25f; }},
      {"ascending", [&](uint32_t i, uint32_t) { return static_cast<float>(i); }},
      {"descending", [&](uint32_t i, uint32_t) { return -static_cast<float>(i); }},
      {"signed zeros", [&](uint32_t, uint32_t) { return gpu.random() % 2 == 0 ? -0.0f : 0.0f; }},
      {"infinities",
       [&](uint32_t i, uint32_t) { return i % 3 == 0      ? -INFINITY
                                          : i % 1000 == 1 ? INFINITY
                                                          : normal(gpu.random); }},
      {"one hump",
       [&](uint32_t i, uint32_t n) { return i > n / 2 && i < n / 2 + 3000 ? 1 + normal(gpu.random) * 1e-3f : 0; }},
      {"a few above many", [&](uint32_t, uint32_t) { return gpu.random() % 512 == 0 ? normal(gpu.random) : -4.0f; }},
  };
  struct Shape {
    uint32_t keys;
    int lists;
    uint32_t budget;
  };
  const std::vector<Shape> all_shapes = {{1, 2, 16},        {37, 1, 2048},    {2048, 70, 2048},  {6000, 5, 2048},
                                         {32768, 40, 2048}, {32771, 3, 2047}, {131072, 9, 2048}, {262144, 2, 4096},
                                         {50000, 4, 1},     {9000, 300, 100}};
  const std::vector<Shape> small_shapes = {{1, 2, 16}, {37, 1, 2048}, {5000, 3, 300}};
  const std::vector<Shape>& shapes = gpu.few_small ? small_shapes : all_shapes;
  for (const auto& [kind, draw] : kinds) {
    std::string wrong;
    for (const Shape& shape : shapes) {
      if (shape.keys > 100000 && kind != "normal" && kind != "one value" && kind != "softmax") continue;
      // An odd stride for an odd number of keys: rows that are not aligned.
      const int64_t stride = shape.keys;
      std::vector<float> values(stride * shape.lists);
      std::vector<SelectionList> lists;
      for (int l = 0; l < shape.lists; ++l) {
        uint32_t n = l == 0 ? shape.keys : 1 + gpu.random() % shape.keys;
        if (l == 1) n = 0;
        const uint32_t first = std::min<uint32_t>(l % 3 * 5, n);
        lists.push_back({.first_block = 0,
                         .num_keys = n,
                         .first = first,
                         .last = n,
                         .budget = l % 5 == 4 ? shape.budget / 2 : shape.budget,
                         .query = 0});
        for (uint32_t i = 0; i < shape.keys; ++i) {
          values[l * stride + i] = i < n && i >= first ? draw(i, n) : std::numeric_limits<float>::quiet_NaN();
        }
      }
      uint32_t* selected = gpu.New<uint32_t>(size_t{shape.budget} * shape.lists);
      uint32_t* counts = gpu.New<uint32_t>(shape.lists);
      gpu.table.selection->top_k(gpu.stream, gpu.Upload(values), stride, gpu.Upload(lists), shape.lists, shape.keys,
                                 shape.budget, selected, counts, nullptr);
      const std::vector<uint32_t> found = gpu.Download(selected, size_t{shape.budget} * shape.lists);
      const std::vector<uint32_t> found_counts = gpu.Download(counts, shape.lists);
      for (int l = 0; l < shape.lists; ++l) {
        const SelectionList& list = lists[l];
        std::vector<uint32_t> expected(std::min(list.budget, list.last - list.first));
        std::vector<uint32_t> scratch(TopKScratchWords(list.last - list.first));
        (*cpu)->top_k({.values = &values[l * stride],
                       .first = list.first,
                       .last = list.last,
                       .k = list.budget,
                       .indices = expected.data(),
                       .scratch = scratch.data()});
        const uint32_t count = static_cast<uint32_t>(expected.size());
        expected.resize(shape.budget, kPoison);
        if (found_counts[l] != count ||
            !std::equal(expected.begin(), expected.end(), found.begin() + int64_t{l} * shape.budget)) {
          absl::StrAppend(&wrong, " [", shape.keys, " keys, list ", l, " of ", shape.lists, ": count ", found_counts[l],
                          " of ", count, "]");
        }
      }
      gpu.FreeAll();
    }
    if (wrong.empty()) {
      gpu.report.Check(absl::StrCat("top-k of values: ", kind), 0, 0);
    } else {
      gpu.report.Fail(absl::StrCat("top-k of values: ", kind), wrong);
    }
  }
}

}  // namespace

void CheckSelection(GpuContext& gpu) {
  CheckScores(gpu);
  CheckTopK(gpu);
  CheckSelectedLists(gpu);
}

}  // namespace winnow
