// Selections of whole units of rows against references in f64: cuboid-means, physical pages, lists of query heads, and
// pages that are read until their mass is enough.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/bench/gpu/checks/selection_inputs.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using device::Aggregation;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr uint32_t kPoison = ~0u;

// What `selections` of a list must be like.
struct UnitCase {
  std::string name;
  SelectionShape shape;
  uint32_t unit_tokens = 32;
  bool per_query = false;
  Aggregation aggregation = Aggregation::kSoftmaxSum;
  double min_mass = 0;
  float query_factor = 1;  // larger ones make narrower attention
};

class UnitReference {
 public:
  UnitReference(const SelectionInputs& inputs, const UnitCase& c, const device::SelectionList& list)
      : inputs_(inputs), case_(c), list_(list), pages_(ScorePagesInF64(inputs, list)) {
    if (c.min_mass > 0) keys_ = ScoreKeysInF64(inputs, list);
  }

  // What is wrong with the rows selected for queries [first, first + count); empty when nothing is.
  std::string Check(const std::vector<uint32_t>& rows, int first, int count) const {
    const uint32_t selectable = list_.last > list_.first ? list_.last - list_.first : 0;
    const uint32_t most = std::min(selectable, list_.budget);
    const bool by_mass = case_.min_mass > 0 && selectable > list_.budget;
    if (rows.size() > most || (!by_mass && rows.size() != most)) {
      return absl::StrFormat("%d rows instead of %d", rows.size(), most);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] < list_.first || rows[i] >= list_.last || (i > 0 && rows[i] <= rows[i - 1])) {
        return absl::StrFormat("row %d is out of place", rows[i]);
      }
    }
    if (most == 0) return {};
    const std::vector<double> importance = Importance(first, count);
    std::vector<uint32_t> held(importance.size());
    for (const uint32_t row : rows) ++held[row / case_.unit_tokens];
    double least = kInfinity;
    uint32_t least_unit = 0, partial = 0;
    for (uint32_t unit = 0; unit < held.size(); ++unit) {
      if (held[unit] == 0) continue;
      partial += held[unit] != Rows(unit);
      if (importance[unit] < least) {
        least = importance[unit];
        least_unit = unit;
      }
    }
    if (partial > 1) return "more than one unit is cut";
    for (uint32_t unit = list_.first / case_.unit_tokens; unit < held.size(); ++unit) {
      if (held[unit] > 0 || Rows(unit) == 0 || !IsMore(importance[unit], least)) continue;
      return absl::StrFormat("unit %d of importance %.6g is left out for one of %.6g", unit, importance[unit], least);
    }
    return by_mass ? CheckMass(held, least_unit, rows.size() == most) : std::string();
  }

 private:
  uint32_t Begin(uint32_t unit) const { return std::max(unit * case_.unit_tokens, list_.first); }
  uint32_t End(uint32_t unit) const { return std::min((unit + 1) * case_.unit_tokens, list_.last); }
  uint32_t Rows(uint32_t unit) const { return End(unit) > Begin(unit) ? End(unit) - Begin(unit) : 0; }
  bool IsMore(double outside, double inside) const {
    if (case_.aggregation == Aggregation::kSoftmaxSum) {
      // Sums of softmaxes err by the scores' errors and by those of the exponentials and their sum in f32.
      return outside > inside * std::exp(4 * pages_.delta) * (1 + 1e-4) + 1e-30;
    }
    return outside > inside + 2 * pages_.delta + 1e-5 * std::abs(inside);
  }

  std::vector<double> Importance(int first, int count) const {
    const uint32_t page = inputs_.shape.page_tokens, pages = list_.num_keys / page, end = list_.last / page;
    std::vector<double> of_pages(end, case_.aggregation == Aggregation::kMax ? -kInfinity : 0);
    for (int q = first; q < first + count; ++q) {
      const std::vector<double>& scores = pages_.scores[q];
      double most = -kInfinity, sum = 0;
      for (uint32_t p = 0; p < pages; ++p) most = std::max(most, scores[p]);
      for (uint32_t p = 0; p < pages; ++p) sum += std::exp(scores[p] - most);
      for (uint32_t p = 0; p < end; ++p) {
        if (case_.aggregation == Aggregation::kSoftmaxSum) of_pages[p] += std::exp(scores[p] - most) / sum;
        if (case_.aggregation == Aggregation::kMax) of_pages[p] = std::max(of_pages[p], scores[p]);
        if (case_.aggregation == Aggregation::kMean) of_pages[p] += scores[p] / count;
      }
    }
    const uint32_t per_unit = case_.unit_tokens / page;
    std::vector<double> units((list_.last + case_.unit_tokens - 1) / case_.unit_tokens, -kInfinity);
    for (uint32_t unit = 0; unit < units.size(); ++unit) {
      if (unit * per_unit >= end) units[unit] = kInfinity;
      for (uint32_t p = unit * per_unit; p < std::min((unit + 1) * per_unit, end); ++p) {
        units[unit] = std::max(units[unit], of_pages[p]);
      }
    }
    return units;
  }

  // The share that Algorithm 1 of PSA takes to be held, summed over the queries, of whole units.
  double Held(const std::vector<bool>& read) const {
    double all = 0;
    uint32_t left = 0;
    for (uint32_t unit = list_.first / case_.unit_tokens; unit < read.size(); ++unit) left += !read[unit];
    for (const std::vector<double>& scores : keys_.scores) {
      const double most = *std::max_element(scores.begin(), scores.begin() + list_.num_keys);
      double held = 0, least = kInfinity;
      for (uint32_t row = 0; row < list_.num_keys; ++row) {
        if (row < list_.first || row >= list_.last) held += std::exp(scores[row] - most);
      }
      for (uint32_t unit = list_.first / case_.unit_tokens; unit < read.size(); ++unit) {
        if (!read[unit]) continue;
        double mass = 0;
        for (uint32_t row = Begin(unit); row < End(unit); ++row) mass += std::exp(scores[row] - most);
        held += mass;
        least = std::min(least, mass);
      }
      all += left == 0 ? 1 : least == kInfinity ? 0 : held / (held + left * least);
    }
    return all;
  }

  std::string CheckMass(const std::vector<uint32_t>& held, uint32_t least_unit, bool budget_is_spent) const {
    std::vector<bool> read(held.size());
    for (uint32_t unit = 0; unit < held.size(); ++unit) read[unit] = held[unit] > 0;
    const double target = case_.min_mass * inputs_.shape.group;
    // A share moves by at most a quarter of what the logarithms of its two masses do.
    const double slack = inputs_.shape.group * (keys_.delta + 1e-4);
    const double now = Held(read);
    if (!budget_is_spent && now < target - slack) {
      return absl::StrFormat("stops at %.5f of %.5f", now, target);
    }
    read[least_unit] = false;
    const double before = Held(read);
    if (before > target + slack) return absl::StrFormat("goes on behind %.5f of %.5f", before, target);
    return {};
  }

  const SelectionInputs& inputs_;
  const UnitCase& case_;
  const device::SelectionList& list_;
  const ReferenceScores pages_;
  ReferenceScores keys_;
};

void CheckUnits(GpuContext& gpu, const UnitCase& c) {
  SelectionInputs inputs(gpu, c.shape, {3000, 150, 64, 8191, 700, 2049, 0, 5000}, 512);
  device::UnitSelectParams params{.list = inputs.Params(), .unit_tokens = c.unit_tokens};
  if (c.query_factor != 1) {
    for (float& q : inputs.queries) q *= c.query_factor;
    params.list.queries = gpu.Upload(inputs.queries);
  }
  params.list.aggregation = c.aggregation;
  params.list.min_mass = static_cast<float>(c.min_mass);
  params.list.takes_all_that_fit = true;
  params.lists_per_group = c.per_query ? c.shape.group : 1;
  const size_t lists = inputs.lists.size(), selections = lists * params.lists_per_group;
  const int64_t stride = (inputs.max_keys / c.shape.page_tokens + 31) / 32 * 32;
  params.selected = gpu.New<uint32_t>(selections * inputs.max_budget);
  params.count_stride = 3;
  params.counts = gpu.New<uint32_t>(selections * 3);
  params.scratch = gpu.New<uint8_t>(gpu.table.page_units->unit_scratch_bytes(params));
  float* scores = gpu.New<float>(lists * c.shape.group * stride);
  gpu.table.selection->score_pages(gpu.stream, params.list, scores, stride);
  for (int i = 0; i < 2; ++i) gpu.table.page_units->select_units(gpu.stream, params, scores, stride);
  const std::vector<uint32_t> rows = gpu.Download(params.selected, selections * inputs.max_budget);
  const std::vector<uint32_t> counts = gpu.Download(params.counts, selections * 3);
  size_t taken = 0;
  for (size_t s = 0; s < selections; ++s) {
    const device::SelectionList& list = inputs.lists[s / params.lists_per_group];
    const std::string where = absl::StrCat("units ", c.name, ", list ", s);
    if (counts[3 * s] > inputs.max_budget) {
      gpu.report.Fail(where, absl::StrCat(counts[3 * s], " rows"));
      continue;
    }
    const auto first = rows.begin() + static_cast<int64_t>(s * inputs.max_budget);
    taken += counts[3 * s];
    const int query = c.per_query ? static_cast<int>(s) % c.shape.group : 0;
    const std::string wrong =
        UnitReference(inputs, c, list).Check({first, first + counts[3 * s]}, query, c.per_query ? 1 : c.shape.group);
    if (!wrong.empty()) gpu.report.Fail(where, wrong);
  }
  gpu.report.Check(absl::StrCat("units ", c.name), 0, 0);
  gpu.report.Note(absl::StrCat("units ", c.name), absl::StrCat(taken, " rows of ", selections, " selections"));
  gpu.FreeAll();
}

// Between anchors nothing is written, and lists that keep their selection or stream are not scored.
void CheckKeptSelections(GpuContext& gpu) {
  const UnitCase c{.name = "kept", .shape = {.page_tokens = 16}, .unit_tokens = 64, .per_query = true};
  constexpr int kHeads = 2;
  SelectionInputs inputs(gpu, c.shape, {3000, 2500, 3001, 2600, 3004, 2700, 3002, 2800}, 256);
  // Rows at prompt, behind it, at an anchor, and between anchors with a prompt that was shorter.
  const std::vector<uint32_t> positions = {3000, 3001, 3004, 3002}, prompts = {3000, 2999, 3003, 100};
  const std::vector<bool> keeps = {false, true, false, true};
  inputs.lists[1].budget = 0;
  device::UnitSelectParams params{.list = inputs.Params(), .unit_tokens = c.unit_tokens};
  device::SelectionList* lists = gpu.Upload(inputs.lists);
  params.list.lists = lists;
  params.lists_per_group = c.shape.group;
  params.reuse_interval = 4;
  params.positions = gpu.Upload(positions);
  params.prompt_tokens = gpu.Upload(prompts);
  params.num_kv_heads = kHeads;
  const size_t selections = inputs.lists.size() * c.shape.group;
  const int64_t stride = (inputs.max_keys / 16 + 31) / 32 * 32;
  params.selected = gpu.New<uint32_t>(selections * inputs.max_budget);
  params.counts = gpu.New<uint32_t>(selections);
  float* scores = gpu.New<float>(inputs.lists.size() * c.shape.group * stride);
  gpu.table.page_units->hold_lists(gpu.stream, {.lists = lists,
                                                .num_layers = 1,
                                                .max_rows = 4,
                                                .num_rows = 4,
                                                .num_kv_heads = kHeads,
                                                .reuse_interval = 4,
                                                .positions = params.positions,
                                                .prompt_tokens = params.prompt_tokens});
  gpu.table.selection->score_pages(gpu.stream, params.list, scores, stride);
  gpu.table.page_units->select_units(gpu.stream, params, scores, stride);
  const std::vector<uint32_t> counts = gpu.Download(params.counts, selections);
  const std::vector<uint32_t> rows = gpu.Download(params.selected, selections * inputs.max_budget);
  const std::vector<device::SelectionList> held = gpu.Download(lists, inputs.lists.size());
  int wrong = 0;
  for (size_t s = 0; s < selections; ++s) {
    const size_t list = s / c.shape.group;
    const bool kept = keeps[list / kHeads], streams = inputs.lists[list].budget == 0;
    const uint32_t expected = kept ? kPoison : streams ? 0 : inputs.lists[list].budget;
    wrong += counts[s] != expected;
    wrong += held[list].num_keys != (kept || streams ? 0 : inputs.lists[list].num_keys);
    if (kept) wrong += rows[s * inputs.max_budget] != kPoison;
    if (kept || streams || counts[s] > inputs.max_budget) continue;
    const auto first = rows.begin() + static_cast<int64_t>(s * inputs.max_budget);
    wrong += !UnitReference(inputs, c, inputs.lists[list])
                  .Check({first, first + counts[s]}, static_cast<int>(s) % c.shape.group, 1)
                  .empty();
  }
  gpu.report.Check("units, kept selections and streaming heads", wrong, 0);
  gpu.FreeAll();
}

void CheckCuboids(GpuContext& gpu, int head_dim, int page_tokens) {
  const SelectionInputs inputs(gpu, {.head_dim = head_dim, .page_tokens = page_tokens, .rows = true},
                               {1000, 33, 31, 512, 64}, 16);
  const size_t dim = head_dim;
  for (const bool one_by_one : {false, true}) {
    // One by one as far apart as 8-bit keys.
    const size_t block_pages = 32 / page_tokens, stride = one_by_one ? 16 * dim : block_pages * 2 * dim;
    auto* cuboids = gpu.New<uint16_t>(inputs.blocks.size() * stride);
    device::CuboidParams params{.lists = inputs.Params().lists,
                                .num_lists = 1,
                                .blocks = inputs.Params().blocks,
                                .row_pool = inputs.Params().keys.keys,
                                .head_dim = head_dim,
                                .page_tokens = page_tokens,
                                .cuboids = cuboids,
                                .block_stride = static_cast<int64_t>(one_by_one ? stride * sizeof(uint16_t) : 0)};
    for (size_t list = 0; list < inputs.lists.size(); ++list, ++params.lists) {
      const uint32_t n = inputs.lists[list].num_keys;
      params.rows_per_list = one_by_one ? 1 : static_cast<int>(n);
      for (uint32_t first = 0; first < n; first += params.rows_per_list) {
        if (one_by_one && n > 100) break;
        params.positions = gpu.Upload(std::vector<uint32_t>{first});
        gpu.table.page_units->index_cuboids(gpu.stream, params);
      }
    }
    const std::vector<uint16_t> got = gpu.Download(cuboids, inputs.blocks.size() * stride);
    double worst = 0;
    for (const device::SelectionList& list : inputs.lists) {
      if (one_by_one && list.num_keys > 100) continue;
      for (uint32_t page = 0; page < list.num_keys / page_tokens; ++page) {
        const size_t block = inputs.blocks[list.first_block + page * page_tokens / 32];
        const size_t at = block * stride + page * page_tokens % 32 / page_tokens * 2 * dim;
        for (size_t d = 0; d < dim; ++d) {
          double high = -kInfinity, low = kInfinity, distance = 0;
          const auto key = [&](uint32_t i) { return inputs.Key(list, page * page_tokens + i, static_cast<int>(d)); };
          for (int i = 0; i < page_tokens; ++i) high = std::max(high, key(i)), low = std::min(low, key(i));
          const double centre = (high + low) / 2;
          for (int i = 0; i < page_tokens; ++i) distance += std::abs(key(i) - centre) / page_tokens;
          for (const bool upper : {true, false}) {
            const double expected = upper ? centre + distance : centre - distance;
            const double value = std::bit_cast<float>(uint32_t{got[at + (upper ? d : dim + d)]} << 16);
            // Rounding to bf16 is half a unit in the 8th bit; what f32 adds is far below the magnitudes' 2^-20.
            const double error = std::abs(value - expected) /
                                 (std::abs(expected) * 0x1p-8 + std::max(std::abs(high), std::abs(low)) * 0x1p-20);
            if (!(error <= worst)) worst = error;
          }
        }
      }
    }
    gpu.report.Check(
        absl::StrFormat("cuboids, head_dim %d, pages of %d%s", head_dim, page_tokens, one_by_one ? ", row by row" : ""),
        worst, 1);
  }
  gpu.FreeAll();
}

void Check(GpuContext& gpu) {
  for (const int head_dim : {64, 96, 128, 256}) CheckCuboids(gpu, head_dim, head_dim == 96 ? 16 : 32);
  for (const int head_dim : {64, 96, 128, 256}) {
    CheckUnits(gpu, {.name = absl::StrCat("of 64, a list per query, head_dim ", head_dim),
                     .shape = {.head_dim = head_dim},
                     .unit_tokens = 64,
                     .per_query = true});
    CheckUnits(gpu, {.name = absl::StrCat("by mass, head_dim ", head_dim),
                     .shape = {.head_dim = head_dim, .group = 5, .page_tokens = 32, .rows = true},
                     .min_mass = 0.95,
                     .query_factor = 4});
  }
  for (const int group : {1, 2, 4, 8}) {
    CheckUnits(gpu, {.name = absl::StrCat("of 64, group ", group), .shape = {.group = group}, .unit_tokens = 64});
    CheckUnits(gpu, {.name = absl::StrCat("by mass, group ", group),
                     .shape = {.group = group, .page_tokens = 16, .rows = true},
                     .unit_tokens = 16,
                     .min_mass = 0.8,
                     .query_factor = 2});
  }
  for (const auto& [aggregation, name] : {std::pair{Aggregation::kMax, "max"}, {Aggregation::kMean, "mean"}}) {
    CheckUnits(gpu, {.name = absl::StrCat("of 64 by ", name),
                     .shape = {.page_tokens = 32},
                     .unit_tokens = 64,
                     .aggregation = aggregation});
  }
  CheckKeptSelections(gpu);
}

// Per layer of Qwen3-14B at 32k: what one step's selection takes.
void Bench(GpuContext&) {}

}  // namespace

GpuSection PageUnitsSection() {
  return {"page_units", Check, Bench};
}

}  // namespace winnow
