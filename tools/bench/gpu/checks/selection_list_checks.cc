#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/bench/gpu/checks/selection_checks.h"
#include "tools/bench/gpu/checks/selection_inputs.h"

namespace winnow {
namespace {

using device::Aggregation;
using device::SelectionList;
using device::SelectParams;

constexpr uint32_t kPoison = 0xffffffffu;
constexpr uint32_t kManyKeys = 60000;  // of a list that the blocks of a cluster share
constexpr uint32_t kMillionKeys = 1100000;

struct Selected {
  std::vector<uint32_t> rows;  // [lists, max_budget]
  std::vector<uint32_t> counts;
  std::vector<float> masses;
  friend bool operator==(const Selected& a, const Selected& b) {
    return a.rows == b.rows && a.counts == b.counts && a.masses.size() == b.masses.size() &&
           std::memcmp(a.masses.data(), b.masses.data(), a.masses.size() * sizeof(float)) == 0;
  }
};

Selected RunSelect(GpuContext& gpu, SelectParams params, bool pages, bool with_mass = true) {
  params.selected = gpu.New<uint32_t>(size_t{params.max_budget} * params.num_lists);
  params.counts = gpu.New<uint32_t>(params.num_lists);
  params.captured_mass = pages || !with_mass ? nullptr : gpu.New<float>(params.num_lists);
  params.settled = true;  // copies, not launches, write what is read
  params.scratch = gpu.New<uint8_t>(gpu.table.selection->select_scratch_bytes(params));
  (pages ? gpu.table.selection->select_pages : gpu.table.selection->select)(gpu.stream, params);
  Selected out;
  out.rows = gpu.Download(params.selected, size_t{params.max_budget} * params.num_lists);
  out.counts = gpu.Download(params.counts, params.num_lists);
  if (params.captured_mass != nullptr) out.masses = gpu.Download(params.captured_mass, params.num_lists);
  return out;
}

// Positions and columns of one list that were asked for, the best ones, ascending, and nothing behind them.
void CheckShape(GpuContext& gpu, const std::string& what, const SelectionList& list, const Selected& selected,
                size_t index, uint32_t max_budget) {
  const uint32_t count = selected.counts[index];
  if (count > max_budget) return gpu.report.Fail(what, absl::StrCat("count ", count));
  const uint32_t* rows = &selected.rows[index * max_budget];
  for (uint32_t i = 0; i < max_budget; ++i) {
    if (i >= count ? rows[i] != kPoison
                   : rows[i] < list.first || rows[i] >= list.last || (i > 0 && rows[i] <= rows[i - 1])) {
      return gpu.report.Fail(what, absl::StrCat("list ", index, " of ", list.num_keys, " keys: place ", i, " of ",
                                                count, " holds ", rows[i]));
    }
  }
}

// Importance in f64 of the columns of `scores`, each softmax over `summed`, with bounds of what it errs by.
struct ReferenceImportance {
  std::vector<double> value, delta;
  std::vector<std::vector<double>> shares;  // [group][columns]
};
ReferenceImportance ImportanceInF64(const ReferenceScores& reference, Aggregation aggregation,
                                    const std::vector<bool>& summed) {
  const size_t group = reference.scores.size(), columns = reference.scores[0].size();
  ReferenceImportance out;
  out.value.assign(columns, 0);
  out.delta.assign(columns, reference.delta * (1 + 1e-6) + 1e-6 * (aggregation != Aggregation::kSoftmaxSum));
  for (size_t q = 0; q < group; ++q) {
    const std::vector<double>& scores = reference.scores[q];
    double largest = -INFINITY, sum = 0;
    for (size_t c = 0; c < columns; ++c) {
      if (summed[c]) largest = std::max(largest, scores[c]);
    }
    for (size_t c = 0; c < columns; ++c) {
      if (summed[c]) sum += std::exp(scores[c] - largest);
    }
    out.shares.emplace_back(columns);
    for (size_t c = 0; c < columns; ++c) out.shares[q][c] = std::exp(scores[c] - largest) / sum;
  }
  for (size_t c = 0; c < columns; ++c) {
    double total = 0, most = -INFINITY;
    for (size_t q = 0; q < group; ++q) {
      if (aggregation == Aggregation::kSoftmaxSum) {
        out.value[c] += out.shares[q][c];
      } else {
        total += reference.scores[q][c];
        most = std::max(most, reference.scores[q][c]);
      }
    }
    if (aggregation == Aggregation::kMax) out.value[c] = most;
    if (aggregation == Aggregation::kMean) out.value[c] = total / static_cast<double>(group);
    // Shares err by the scores' errors twice (their own and the sums'), and by 2^-18 for f32 exponents up to 100 and
    // the approximate exp2.
    if (aggregation == Aggregation::kSoftmaxSum) {
      out.delta[c] = out.value[c] * (std::expm1(2 * reference.delta) + 0x1p-18) + 1e-30;
    }
  }
  return out;
}

// Whether no column left out is surely more important than one that was chosen.
bool IsBest(const ReferenceImportance& importance, const std::vector<uint32_t>& eligible,
            const std::vector<bool>& chosen) {
  double least_chosen = INFINITY, most_left = -INFINITY;
  for (const uint32_t c : eligible) {
    if (chosen[c]) {
      least_chosen = std::min(least_chosen, importance.value[c] + importance.delta[c]);
    } else {
      most_left = std::max(most_left, importance.value[c] - importance.delta[c]);
    }
  }
  return least_chosen >= most_left;
}

// Units [first, last) of the best importance, those that surely are among the best `count` and those that may be.
bool SurelyBest(const ReferenceImportance& importance, uint32_t first, uint32_t last, uint32_t count,
                std::vector<bool>* best) {
  std::vector<uint32_t> order(last - first);
  std::iota(order.begin(), order.end(), first);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return importance.value[a] > importance.value[b]; });
  best->assign(importance.value.size(), false);
  for (uint32_t i = 0; i < std::min<uint32_t>(count, static_cast<uint32_t>(order.size())); ++i) {
    (*best)[order[i]] = true;
  }
  return count >= order.size() || importance.value[order[count - 1]] - importance.delta[order[count - 1]] >
                                      importance.value[order[count]] + importance.delta[order[count]];
}

// Pages of groups that do not stay are the least important ones. True where it is sure which groups stay.
bool LeaveOutGroups(const SelectionInputs& inputs, const SelectParams& params, const SelectionList& list,
                    ReferenceImportance& of_pages) {
  const PageGroups groups = GroupsOf(params, list);
  if (!groups.leaves_out()) return true;
  const ReferenceScores bounds = ScoreGroupsInF64(inputs, list, groups.end);
  std::vector<bool> stays;
  const bool sure = SurelyBest(ImportanceInF64(bounds, Aggregation::kMax, std::vector<bool>(groups.end, true)),
                               groups.begin, groups.end, groups.kept, &stays);
  for (uint32_t page = groups.begin * kGroupPages; page < groups.end * kGroupPages; ++page) {
    if (stays[page / kGroupPages]) continue;
    of_pages.value[page] = -std::numeric_limits<double>::max();
    of_pages.delta[page] = 0;
  }
  return sure;
}

const char* NameOf(Aggregation aggregation) {
  return aggregation == Aggregation::kSoftmaxSum ? "softmax-sum" : aggregation == Aggregation::kMax ? "max" : "mean";
}

// Without a captured mass other launches select.
void CheckSelectCase(GpuContext& gpu, const SelectionShape& shape, Aggregation aggregation, uint32_t candidate_pages,
                     float min_mass, bool with_mass = true, uint32_t greatest_size = 20000,
                     uint32_t score_all_below = 0) {
  const uint32_t budget = 96;
  const std::vector<uint32_t> sizes = {3000, 0, 3, 69, 100, 2500, 8000, 4111, 777, greatest_size};
  const SelectionInputs inputs(gpu, shape, gpu.Cases(sizes, 3), budget);
  SelectParams params = inputs.Params();
  params.aggregation = aggregation;
  params.min_candidates = candidate_pages * shape.page_tokens;
  params.min_mass = min_mass;
  params.score_all_below = score_all_below;
  const Selected selected = RunSelect(gpu, params, false, with_mass);
  const std::string what =
      absl::StrCat("select ", DtypeName(shape.dtype), " head_dim ", shape.head_dim, " group ", shape.group, " ",
                   NameOf(aggregation), candidate_pages > 0 ? absl::StrCat(" two-stage of ", shape.page_tokens) : "",
                   shape.group_candidates > 0 ? absl::StrCat(" and groups of ", shape.group_candidates, " rows") : "",
                   min_mass > 0 ? " mass" : "", with_mass ? "" : " alone",
                   greatest_size != 20000 ? absl::StrCat(" up to ", greatest_size, " keys") : "",
                   score_all_below > 0 ? absl::StrCat(", whole below ", score_all_below) : "");
  int unsure = 0, tested = 0;
  double worst_mass = 0;
  for (size_t l = 0; l < inputs.lists.size(); ++l) {
    const SelectionList& list = inputs.lists[l];
    CheckShape(gpu, what, list, selected, l, budget);
    const uint32_t count = selected.counts[l];
    if (count > budget) return;
    const ReferenceScores scores = ScoreKeysInF64(inputs, list);
    const uint32_t page = shape.page_tokens, selectable = list.last - list.first;
    std::vector<bool> scored(list.num_keys, true), summed(list.num_keys, true);
    const bool two_stage = candidate_pages > 0 && selectable > candidate_pages * page && selectable >= score_all_below;
    ReferenceScores bounds;
    if (two_stage) {
      bounds = ScorePagesInF64(inputs, list);
      const uint32_t first_page = list.first / page, last_page = (list.last + page - 1) / page;
      ReferenceImportance of_pages =
          ImportanceInF64(bounds, Aggregation::kMax, std::vector<bool>(bounds.scores[0].size(), true));
      const bool sure_of_groups = LeaveOutGroups(inputs, params, list, of_pages);
      std::vector<bool> kept;
      // The first page may be clipped; then it takes one more to hold as many rows.
      bool sure = SurelyBest(of_pages, first_page, last_page, candidate_pages, &kept) && sure_of_groups;
      if (list.first % page != 0 && kept[first_page]) {
        sure = sure && SurelyBest(of_pages, first_page, last_page, candidate_pages + 1, &kept);
      }
      if (!sure) {
        ++unsure;
        continue;
      }
      std::vector<bool> granule((list.num_keys + 15) / 16);
      for (uint32_t row = 0; row < list.num_keys; ++row) {
        if (row < list.first || row >= list.last / page * page || kept[row / page]) granule[row / 16] = true;
      }
      for (uint32_t row = 0; row < list.num_keys; ++row) {
        scored[row] = granule[row / 16];
        summed[row] = scored[row] && row < list.num_keys / 16 * 16;
      }
    }
    ++tested;
    const ReferenceImportance importance =
        list.num_keys == 0 ? ReferenceImportance{} : ImportanceInF64(scores, aggregation, summed);
    const ReferenceImportance mass_of =
        list.num_keys == 0 ? ReferenceImportance{} : ImportanceInF64(scores, Aggregation::kSoftmaxSum, summed);
    std::vector<uint32_t> eligible;
    for (uint32_t row = list.first; row < list.last; ++row) {
      if (scored[row]) eligible.push_back(row);
    }
    std::vector<bool> chosen(list.num_keys);
    bool known = true;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t row = selected.rows[l * budget + i];
      if (row >= list.num_keys) return;
      known &= scored[row];
      chosen[row] = true;
    }
    if (!known) gpu.report.Fail(what, absl::StrCat("list ", l, " selects a row that is not scored"));
    if (!IsBest(importance, eligible, chosen)) gpu.report.Fail(what, absl::StrCat("list ", l, " is not the best"));
    const uint32_t all = std::min<uint32_t>(list.budget, static_cast<uint32_t>(eligible.size()));
    if (min_mass == 0 ? count != all : count > all) {
      gpu.report.Fail(what, absl::StrCat("list ", l, " has ", count, " rows of ", all));
    }
    // Masses: what is held, relative to all that is known.
    double mean = 0, held = 0, least = INFINITY;
    for (int q = 0; q < shape.group; ++q) {
      double mass = 0, tail = 0, unscored = 0;
      double largest = -INFINITY, sum = 0;
      for (uint32_t row = 0; row < list.num_keys; ++row) {
        if (!scored[row]) continue;
        const double share = mass_of.shares[q][row];
        if (!summed[row]) {
          tail += share;
        } else if (row < list.first || row >= list.last || chosen[row]) {
          mass += share;
        }
        if (summed[row]) largest = std::max(largest, scores.scores[q][row]);
      }
      for (uint32_t row = 0; row < list.num_keys; ++row) {
        if (summed[row]) sum += std::exp(scores.scores[q][row] - largest);
      }
      for (uint32_t p = 0; two_stage && p < list.last / page; ++p) {
        for (uint32_t row = p * page; row < (p + 1) * page; ++row) {
          if (!scored[row]) unscored += std::exp(bounds.scores[q][p] - largest) / sum;
        }
      }
      held += mass;
      mean += (mass + tail) / ((two_stage ? 1 + tail : 1) + unscored) / shape.group;
    }
    if (min_mass > 0 && list.num_keys > 0) {
      for (uint32_t row = 0; row < list.num_keys; ++row) {
        if (chosen[row]) least = std::min(least, mass_of.value[row]);
      }
      const double target = double{min_mass} * shape.group, slack = shape.group * (4 * scores.delta + 1e-5);
      if (count < all && held < target - slack) gpu.report.Fail(what, absl::StrCat("list ", l, " holds too little"));
      if (count > 0 && held - least > target + slack) {
        gpu.report.Fail(what, absl::StrCat("list ", l, " holds a row too many"));
      }
    }
    if (list.num_keys > 0 && with_mass) {
      const double error = std::abs(selected.masses[l] - mean) / (4 * (scores.delta + bounds.delta) + 1e-5);
      worst_mass = error <= worst_mass ? worst_mass : error;
    }
  }
  // Of a few lists most may be such that cannot be told, but not all.
  const auto num_lists = static_cast<int>(inputs.lists.size());
  if (tested * 10 < (num_lists < 10 ? 10 : num_lists * 6)) {
    gpu.report.Fail(what, absl::StrCat("only ", tested, " lists could be told, ", unsure, " not"));
  }
  gpu.report.Check(what + ", captured mass in deltas", worst_mass, 1);
  gpu.FreeAll();
}

void CheckSelectPages(GpuContext& gpu, int page_tokens, Aggregation aggregation, uint32_t budget) {
  const SelectionShape shape{.head_dim = 128, .group = 5, .page_tokens = page_tokens};
  const std::vector<uint32_t> sizes = {3000, 0, 3, 69, 100, 2500, 8000, 4111, 777, 20000};
  const SelectionInputs inputs(gpu, shape, gpu.Cases(sizes, 3), budget);
  SelectParams params = inputs.Params();
  params.aggregation = aggregation;
  const Selected selected = RunSelect(gpu, params, true);
  const std::string what = absl::StrCat("select pages of ", page_tokens, " ", NameOf(aggregation), " budget ", budget);
  for (size_t l = 0; l < inputs.lists.size(); ++l) {
    const SelectionList& list = inputs.lists[l];
    CheckShape(gpu, what, list, selected, l, budget);
    const uint32_t count = selected.counts[l], page = page_tokens;
    if (count != std::min(list.budget, list.last - list.first)) {
      gpu.report.Fail(what, absl::StrCat("list ", l, " has ", count, " rows"));
      continue;
    }
    if (count == 0) continue;
    const ReferenceScores scores = ScorePagesInF64(inputs, list);
    ReferenceImportance importance =
        ImportanceInF64(scores, aggregation, std::vector<bool>(scores.scores[0].size(), true));
    const uint32_t last_page = (list.last + page - 1) / page;
    importance.value.resize(last_page, std::numeric_limits<float>::max());
    importance.delta.resize(last_page, 0);
    std::vector<uint32_t> rows_of(last_page), eligible;
    std::vector<bool> chosen(last_page);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t row = selected.rows[l * budget + i];
      ++rows_of[row / page];
      chosen[row / page] = true;
    }
    int partial = 0;
    uint32_t held = 0;
    double least = INFINITY;
    for (uint32_t p = list.first / page; p < last_page; ++p) {
      eligible.push_back(p);
      const uint32_t rows = std::min((p + 1) * page, list.last) - std::max(p * page, list.first);
      if (!chosen[p]) continue;
      held += rows;
      if (rows_of[p] == rows) continue;
      ++partial;
      // It gives its first rows.
      const auto begin = selected.rows.begin() + static_cast<int64_t>(l * budget);
      if (!std::binary_search(begin, begin + count, std::max(p * page, list.first))) ++partial;
      least = importance.value[p] - importance.delta[p];
    }
    for (const uint32_t p : eligible) {
      if (partial > 0 && chosen[p] && importance.value[p] + importance.delta[p] < least) ++partial;
    }
    if (partial > 1 || (held > count) != (partial == 1) || held >= count + page) {
      gpu.report.Fail(what, absl::StrCat("list ", l, " clips the wrong pages"));
    }
    if (!IsBest(importance, eligible, chosen)) gpu.report.Fail(what, absl::StrCat("list ", l, " is not the best"));
  }
  gpu.report.Check(what, 0, 0);
  gpu.FreeAll();
}

// Equally important rows, all of them: the first ones are taken.
void CheckTies(GpuContext& gpu, Dtype dtype, uint32_t candidate_pages, bool with_mass) {
  const uint32_t budget = 700;
  const SelectionInputs inputs(gpu, {.dtype = dtype, .one_key = true}, {3000, 0, 3, 69, 100, 8000, 20000}, budget);
  SelectParams params = inputs.Params();
  params.min_candidates = candidate_pages * params.pages.page_tokens;
  const Selected selected = RunSelect(gpu, params, false, with_mass);
  int wrong = 0;
  for (size_t l = 0; l < inputs.lists.size(); ++l) {
    const SelectionList& list = inputs.lists[l];
    std::vector<uint32_t> expected(budget, kPoison);
    const uint32_t count = std::min(list.budget, list.last - list.first);
    std::iota(expected.begin(), expected.begin() + count, list.first);
    const bool same = std::equal(expected.begin(), expected.end(), selected.rows.begin() + int64_t{budget} * l);
    if (selected.counts[l] != count || !same) ++wrong;
  }
  gpu.report.Check(absl::StrCat("one importance, ", DtypeName(dtype), candidate_pages > 0 ? ", two-stage" : "",
                                with_mass ? "" : ", alone"),
                   wrong, 0);
  gpu.FreeAll();
}

// Launches that select in one go, and those that need several, find the same rows of groups that stay, but one that
// another is as good as.
void CheckGroupedLaunches(GpuContext& gpu, Dtype dtype) {
  const SelectionInputs inputs(gpu, {.dtype = dtype, .rows = dtype == Dtype::kI8, .group_candidates = 4096},
                               {40000, 0, 3000, 60000, 8000, 20000}, 700);
  SelectParams params = inputs.Params();
  params.min_candidates = 1024;
  const Selected in_one = RunSelect(gpu, params, false, false);
  params.max_kept = 0;  // promises nothing, so that nothing fits
  const Selected in_several = RunSelect(gpu, params, false, false);
  double differ = 0;
  for (size_t l = 0; l < inputs.lists.size(); ++l) {
    const auto rows_of = [&](const Selected& selected) {
      const auto begin = selected.rows.begin() + static_cast<int64_t>(l * 700);
      return std::vector<uint32_t>(begin, begin + std::min(selected.counts[l], 700u));
    };
    const std::vector<uint32_t> one = rows_of(in_one), several = rows_of(in_several);
    std::vector<uint32_t> apart;
    std::set_symmetric_difference(one.begin(), one.end(), several.begin(), several.end(), std::back_inserter(apart));
    differ = std::max(differ, static_cast<double>(apart.size()));
  }
  gpu.report.Check(absl::StrCat("groups of pages, ", DtypeName(dtype), ": one launch and several"), differ, 2);
  gpu.FreeAll();
}

// The same bits alone and among others, whatever the launch may meet beside it.
void CheckIndependence(GpuContext& gpu) {
  struct Case {
    uint32_t candidate_pages;
    bool with_mass;
  };
  for (const auto& [candidate_pages, with_mass] : {Case{0, true}, {0, false}, {40, true}, {40, false}}) {
    std::vector<uint32_t> sizes = {30000, 1234};
    for (int i = 0; i < 148; ++i) sizes.push_back(2000 + gpu.random() % 3000);
    const SelectionInputs inputs(gpu, {.dtype = candidate_pages > 0 ? Dtype::kF8 : Dtype::kBf16}, sizes, 300);
    SelectParams params = inputs.Params();
    params.min_candidates = candidate_pages * params.pages.page_tokens;
    const Selected together = RunSelect(gpu, params, false, with_mass);
    int differ = 0;
    for (const size_t l : {size_t{0}, size_t{1}, size_t{77}}) {
      SelectParams alone = params;
      alone.lists += l;
      alone.num_lists = 1;
      alone.max_keys = inputs.lists[l].num_keys + 5 * l;
      const Selected one = RunSelect(gpu, alone, false, with_mass);
      const auto begin = together.rows.begin() + static_cast<int64_t>(l * 300);
      Selected same = {{begin, begin + 300}, {together.counts[l]}, {}};
      if (with_mass) same.masses = {together.masses[l]};
      if (!(one == same)) ++differ;
    }
    gpu.report.Check(absl::StrCat("lists alone and among others", candidate_pages > 0 ? ", two-stage" : "",
                                  with_mass ? "" : ", alone"),
                     differ, 0);
    gpu.FreeAll();
  }
}

}  // namespace

void CheckSelectedLists(GpuContext& gpu) {
  using enum Aggregation;
  for (const Aggregation aggregation : gpu.Cases<Aggregation>({kSoftmaxSum, kMax, kMean})) {
    CheckSelectCase(gpu, {}, aggregation, 0, 0);
    CheckSelectCase(gpu, {.dtype = Dtype::kF8}, aggregation, 24, 0);
    CheckSelectCase(gpu, {.dtype = Dtype::kF8}, aggregation, 24, 0, false);
    CheckSelectCase(gpu, {.dtype = Dtype::kI8, .rows = true}, aggregation, 24, 0, false);
    CheckSelectCase(gpu, {.dtype = Dtype::kI8, .rows = true}, aggregation, 0, 0, false);
    CheckSelectCase(gpu, {}, aggregation, 0, 0, false);
    CheckSelectCase(gpu, {}, aggregation, 0, 0, false, kManyKeys);
    CheckSelectPages(gpu, 16, aggregation, 320);
  }
  for (const bool with_mass : {true, false}) {
    CheckSelectCase(gpu, {.head_dim = 64, .group = 8, .page_tokens = 8, .rows = true}, kSoftmaxSum, 48, 0, with_mass);
    CheckSelectCase(gpu, {.head_dim = 96, .group = 1, .dtype = Dtype::kF8, .page_tokens = 32}, kSoftmaxSum, 12, 0,
                    with_mass);
    CheckSelectCase(gpu, {.head_dim = 256, .group = 4, .page_tokens = 32, .rows = true}, kSoftmaxSum, 12, 0, with_mass);
  }
  for (const int head_dim : {64, 96, 256}) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI8}) {
      CheckSelectCase(gpu, {.head_dim = head_dim, .group = 7, .dtype = dtype, .rows = dtype == Dtype::kI8}, kSoftmaxSum,
                      24, 0, false);
    }
  }
  CheckSelectCase(gpu, {.group = 3}, kSoftmaxSum, 0, 0.05f);
  CheckSelectCase(gpu, {.dtype = Dtype::kF8}, kSoftmaxSum, 0, 0.2f);
  for (const uint32_t greatest_size : {20000u, kManyKeys}) {
    CheckSelectCase(gpu, {.dtype = Dtype::kF8}, kSoftmaxSum, 0, 0.05f, false, greatest_size);
    CheckSelectCase(gpu, {.group = 3}, kSoftmaxSum, 0, 0.2f, false, greatest_size);
  }
  CheckSelectCase(gpu, {.dtype = Dtype::kF8}, kSoftmaxSum, 24, 0.05f, false);
  CheckSelectCase(gpu, {.dtype = Dtype::kI8, .rows = true}, kSoftmaxSum, 24, 0.05f, false);
  CheckSelectCase(gpu, {.dtype = Dtype::kI8, .rows = true}, kSoftmaxSum, 0, 0.05f, false, kManyKeys);
  CheckSelectCase(gpu, {.dtype = Dtype::kI8, .rows = true}, kSoftmaxSum, 24, 0.2f, true);
  // Short lists are scored whole, of more columns than a block's shared memory has room for.
  for (const uint32_t below : {4000u, 16384u}) {
    CheckSelectCase(gpu, {.dtype = Dtype::kF8}, kSoftmaxSum, 24, 0, false, 20000, below);
    CheckSelectCase(gpu, {.dtype = Dtype::kF8}, kSoftmaxSum, 24, 0.2f, false, 20000, below);
    CheckSelectCase(gpu, {.head_dim = 64, .group = 8}, kMax, 24, 0, false, 20000, below);
  }
  // Groups of pages are left out of long lists: of the longest nearly all.
  for (const float min_mass : {0.0f, 0.05f}) {
    CheckSelectCase(gpu, {.dtype = Dtype::kI8, .rows = true, .group_candidates = 2048}, kSoftmaxSum, 24, min_mass,
                    false, kManyKeys);
    CheckSelectCase(gpu, {.dtype = Dtype::kF8, .group_candidates = 4096}, kMax, 48, 0, false, 3 * kManyKeys);
  }
  CheckSelectCase(gpu, {.head_dim = 64, .group = 8, .page_tokens = 8, .rows = true, .group_candidates = 1000},
                  kSoftmaxSum, 24, 0, false);
  CheckSelectCase(gpu, {.head_dim = 96, .group = 1, .page_tokens = 32, .group_candidates = 2048}, kMean, 12, 0, false);
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI8}) CheckGroupedLaunches(gpu, dtype);
  CheckSelectPages(gpu, 8, kSoftmaxSum, 100);
  CheckSelectPages(gpu, 32, kMax, 250);
  if (gpu.few_small) return;
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8, Dtype::kI8}) {
    CheckTies(gpu, dtype, 0, true);
    CheckTies(gpu, dtype, 0, false);
    CheckTies(gpu, dtype, 50, true);
    CheckTies(gpu, dtype, 50, false);
  }
  CheckIndependence(gpu);
  CheckSelectCase(gpu, {.dtype = Dtype::kI8, .rows = true, .group_candidates = 65536}, kSoftmaxSum, 512, 0, false,
                  kMillionKeys);
}

}  // namespace winnow
