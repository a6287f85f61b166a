#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "tests/support/host_gpu/host_cpu.h"
#include "tests/support/host_gpu/host_exchange.h"
#include "tests/support/host_gpu/host_numbers.h"

namespace winnow::test {
namespace {

using device::Stream;

// The greatest bound by the queries of a group, of [2 * head_dim] maxima and minima.
float BoundOf(const device::SelectParams& p, const device::SelectionList& list, const uint16_t* greatest) {
  float best = -INFINITY;
  for (int g = 0; g < p.group; ++g) best = std::max(best, BoundByQuery(p, list, g, greatest));
  return best;
}

// Leaves the pages of groups that do not stay nothing to be chosen for.
void LeaveOutGroups(const device::SelectParams& p, const device::SelectionList& list, std::vector<float>& best) {
  const PageGroups groups = GroupsOf(p, list);
  if (!groups.leaves_out()) return;
  const auto* const bounds =
      static_cast<const uint16_t*>(p.pages.group_bounds) +
      list.first_block / device::GroupBlocks(static_cast<uint32_t>(p.pages.page_tokens)) * size_t{2} * p.head_dim;
  std::vector<float> of_group(groups.end);
  for (uint32_t group = groups.begin; group < groups.end; ++group) {
    of_group[group] = BoundOf(p, list, bounds + size_t{group} * 2 * p.head_dim);
  }
  std::vector<uint32_t> order(groups.end - groups.begin);
  std::iota(order.begin(), order.end(), groups.begin);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return of_group[a] > of_group[b]; });
  for (size_t i = groups.kept; i < order.size(); ++i) {
    std::fill_n(best.begin() + order[i] * kGroupPages, kGroupPages, -INFINITY);
  }
}

// Two-stage: rows whose keys are scored, in granules of 16.
std::vector<bool> ScoredRows(const device::SelectParams& p, const device::SelectionList& list) {
  constexpr uint32_t kGranule = 16;
  const uint32_t selectable = list.last - list.first, wanted = CandidateRows(p, list.budget);
  std::vector<bool> scored(list.num_keys, true);
  if (!IsTwoStage(p) || selectable <= wanted || selectable < p.score_all_below) return scored;
  const uint32_t page = p.pages.page_tokens, tail = list.last / page * page;
  std::vector<float> best(tail / page, -INFINITY);
  for (uint32_t i = 0; i < best.size(); ++i) {
    best[i] = BoundOf(p, list, BoundsOfPage(p, list, i));
  }
  LeaveOutGroups(p, list, best);
  std::vector<uint32_t> order(best.size() - list.first / page);
  std::iota(order.begin(), order.end(), list.first / page);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return best[a] > best[b]; });
  std::vector<bool> granules((list.num_keys + kGranule - 1) / kGranule);
  const auto take = [&](uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) granules[row / kGranule] = true;
  };
  take(0, list.first);
  take(tail, list.num_keys);
  uint32_t held = list.last - tail;  // the page that the recent window begins in is one of them
  for (size_t i = 0; i < order.size() && held < wanted; ++i) {
    const uint32_t begin = std::max(order[i] * page, list.first), end = (order[i] + 1) * page;
    take(begin, end);
    held += end - begin;
  }
  // The newest rows, which fill no granule yet, take no part in the softmaxes.
  const uint32_t scored_end = list.num_keys / kGranule * kGranule;
  for (uint32_t row = 0; row < list.num_keys; ++row) scored[row] = row < scored_end && granules[row / kGranule];
  return scored;
}

void SelectList(const device::SelectParams& p, const device::SelectionList& list, uint32_t* selected, uint32_t* count) {
  *count = 0;
  if (list.last <= list.first || list.budget == 0) return;
  const uint32_t selectable = list.last - list.first;
  std::vector<uint32_t> order(selectable);
  std::iota(order.begin(), order.end(), list.first);
  if (!(p.takes_all_that_fit && selectable <= list.budget)) {
    WINNOW_CHECK(p.aggregation == device::Aggregation::kSoftmaxSum);
    const std::vector<bool> scored = ScoredRows(p, list);
    std::erase_if(order, [&](uint32_t row) { return !scored[row]; });
    std::vector<double> mass(list.num_keys);
    std::vector<double> scores(list.num_keys);
    for (int g = 0; g < p.group; ++g) {
      const std::vector<float> query =
          ScoringQuery(p, p.queries + (static_cast<size_t>(list.query) * p.group + g) * p.head_dim);
      for (uint32_t k = 0; k < list.num_keys; ++k) {
        if (!scored[k]) {
          scores[k] = -INFINITY;
          continue;
        }
        const std::vector<float> key = KeyAt(p, list, k);
        scores[k] = p.scale * std::inner_product(key.begin(), key.end(), query.begin(), 0.0);
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - most);
      for (uint32_t k = 0; k < list.num_keys; ++k) mass[k] += scores[k] / sum / p.group;
    }
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return mass[a] > mass[b]; });
    order.resize(std::min<size_t>(order.size(), list.budget));
    if (p.min_mass > 0) {
      double held = std::accumulate(mass.begin(), mass.end(), 0.0);
      for (uint32_t k = list.first; k < list.last; ++k) held -= mass[k];
      size_t taken = 0;
      while (taken < order.size() && held < p.min_mass) held += mass[order[taken++]];
      order.resize(taken);
    }
    std::sort(order.begin(), order.end());
  }
  std::copy(order.begin(), order.end(), selected);
  *count = static_cast<uint32_t>(order.size());
}

void Select(Stream, const device::SelectParams& p) {
  for (int list = 0; list < p.num_lists; ++list) {
    SelectList(p, p.lists[list], p.selected + static_cast<size_t>(list) * p.max_budget, p.counts + list);
  }
}

void TopK(Stream, const float* values, int64_t stride, const device::SelectionList* lists, int num_lists,
          uint32_t max_keys, uint32_t max_budget, uint32_t* selected, uint32_t* counts, void*) {
  for (int i = 0; i < num_lists; ++i) {
    const device::SelectionList& list = lists[i];
    const uint32_t selectable = list.last > list.first ? list.last - list.first : 0;
    WINNOW_CHECK(list.last <= max_keys && list.budget <= max_budget);
    counts[i] = std::min(selectable, list.budget);
    if (counts[i] == 0) continue;
    std::vector<uint32_t> scratch(TopKScratchWords(selectable));
    Cpu().top_k({.values = values + i * stride,
                 .first = list.first,
                 .last = list.last,
                 .k = counts[i],
                 .indices = selected + static_cast<size_t>(i) * max_budget,
                 .scratch = scratch.data()});
  }
}

}  // namespace

device::SelectionKernels HostSelectionKernels() {
  device::SelectionKernels kernels{};
  kernels.select_scratch_bytes = [](const device::SelectParams&) { return size_t{256}; };
  kernels.select = Select;
  kernels.top_k = TopK;
  AddHostPageKernels(kernels);
  return kernels;
}

}  // namespace winnow::test
