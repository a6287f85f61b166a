// Selections of whole pages by brute force (kernels/device/params/page_units.h).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "tests/support/host_gpu/host_exchange.h"
#include "tests/support/host_gpu/host_numbers.h"

namespace winnow::test {
namespace {

using device::Stream;

uint32_t PageRows(const device::SelectParams& p) {
  return static_cast<uint32_t>(p.pages.page_tokens);
}

void ScorePages(Stream, const device::SelectParams& p, float* scores, int64_t stride) {
  for (int i = 0; i < p.num_lists; ++i) {
    const device::SelectionList& list = p.lists[i];
    for (uint32_t page = 0; page < list.num_keys / PageRows(p); ++page) {
      const uint16_t* const bounds = BoundsOfPage(p, list, page);
      for (int g = 0; g < p.group; ++g) {
        scores[(int64_t{i} * p.group + g) * stride + page] = p.scale * BoundByQuery(p, list, g, bounds);
      }
    }
  }
}

// Over `heads` queries, whose scores lie `stride` apart.
std::vector<double> PageImportance(const float* scores, int64_t stride, int heads, uint32_t pages,
                                   device::Aggregation aggregation) {
  const bool is_max = aggregation == device::Aggregation::kMax;
  std::vector<double> importance(pages, is_max ? -INFINITY : 0);
  for (int g = 0; g < heads && pages > 0; ++g) {
    const float* const of_query = scores + g * stride;
    const double most = *std::max_element(of_query, of_query + pages);
    double sum = 0;
    for (uint32_t page = 0; page < pages; ++page) sum += std::exp(of_query[page] - most);
    for (uint32_t page = 0; page < pages; ++page) {
      double& of_page = importance[page];
      if (is_max) of_page = std::max<double>(of_page, of_query[page]);
      if (aggregation == device::Aggregation::kMean) of_page += of_query[page] / heads;
      if (aggregation == device::Aggregation::kSoftmaxSum) of_page += std::exp(of_query[page] - most) / sum;
    }
  }
  return importance;
}

// Units of a list that is selected from, in the order of their importance, and their rows that may be selected.
struct Units {
  uint32_t rows = 0, first = 0, last = 0;
  std::vector<uint32_t> order = {};

  uint32_t Begin(uint32_t unit) const { return std::max(unit * rows, first); }
  uint32_t End(uint32_t unit) const { return std::min((unit + 1) * rows, last); }
};

Units UnitsOf(const device::UnitSelectParams& p, const device::SelectionList& list,
              const std::vector<double>& importance) {
  Units units{.rows = p.unit_tokens, .first = list.first, .last = list.last};
  const uint32_t end = (list.last + units.rows - 1) / units.rows, per_unit = units.rows / PageRows(p.list);
  const uint32_t page_end = list.last / PageRows(p.list);
  std::vector<double> best(end, INFINITY);
  for (uint32_t unit = 0; unit < end; ++unit) {
    const uint32_t pages_begin = unit * per_unit, pages_end = std::min(pages_begin + per_unit, page_end);
    if (pages_begin < pages_end) {
      best[unit] = *std::max_element(importance.begin() + pages_begin, importance.begin() + pages_end);
    }
  }
  units.order.resize(end - list.first / units.rows);
  std::iota(units.order.begin(), units.order.end(), list.first / units.rows);
  std::stable_sort(units.order.begin(), units.order.end(), [&](uint32_t a, uint32_t b) { return best[a] > best[b]; });
  return units;
}

// The share of the softmax that sinks, window and the units read so far hold, if those not read held as much each as
// the least of those; in the mean over the queries.
class HeldMass {
 public:
  HeldMass(const device::SelectParams& p, const device::SelectionList& list)
      : p_(p), list_(list), held_(p.group), least_(p.group, INFINITY) {
    for (int g = 0; g < p.group; ++g) held_[g] = Sum(g, 0, list.first) + Sum(g, list.last, list.num_keys);
  }
  double Read(uint32_t begin, uint32_t end, size_t units_left) {
    double mean = 0;
    for (int g = 0; g < p_.group; ++g) {
      const double of_unit = Sum(g, begin, end);
      held_[g] += of_unit;
      least_[g] = std::min(least_[g], of_unit);
      mean += held_[g] / (held_[g] + least_[g] * static_cast<double>(units_left)) / p_.group;
    }
    return mean;
  }

 private:
  double Sum(int query, uint32_t begin, uint32_t end) const {
    const float* const of_query = p_.queries + (static_cast<size_t>(list_.query) * p_.group + query) * p_.head_dim;
    double sum = 0;
    for (uint32_t row = begin; row < end; ++row) {
      const std::vector<float> key = KeyAt(p_, list_, row);
      sum += std::exp(p_.scale * std::inner_product(key.begin(), key.end(), of_query, 0.0));
    }
    return sum;
  }

  const device::SelectParams& p_;
  const device::SelectionList& list_;
  std::vector<double> held_, least_;
};

void SelectOfList(const device::UnitSelectParams& p, const device::SelectionList& list,
                  const std::vector<double>& importance, uint32_t* selected, uint32_t* count) {
  const Units units = UnitsOf(p, list, importance);
  const bool by_mass = p.list.min_mass > 0 && !(p.list.takes_all_that_fit && list.last - list.first <= list.budget);
  std::optional<HeldMass> held;
  if (by_mass) held.emplace(p.list, list);
  std::vector<uint32_t> rows;
  for (size_t i = 0; i < units.order.size() && rows.size() < list.budget; ++i) {
    const uint32_t begin = units.Begin(units.order[i]), end = units.End(units.order[i]);
    for (uint32_t row = begin; row < end && rows.size() < list.budget; ++row) rows.push_back(row);
    if (by_mass && held->Read(begin, end, units.order.size() - 1 - i) >= p.list.min_mass) break;
  }
  std::sort(rows.begin(), rows.end());
  std::copy(rows.begin(), rows.end(), selected);
  *count = static_cast<uint32_t>(rows.size());
}

bool KeepsSelection(uint32_t position, uint32_t prompt_tokens, uint32_t interval) {
  return interval > 1 && position > prompt_tokens && position % interval != 0;
}

// Lists that are left as they are: of rows that are nobody's here, and between anchors.
bool IsLeftAlone(const device::UnitSelectParams& p, int row) {
  if (p.positions == nullptr) return false;
  return p.positions[row] == device::kNoPosition ||
         (p.reuse_interval > 1 && KeepsSelection(p.positions[row], p.prompt_tokens[row], p.reuse_interval));
}

void SelectUnits(Stream, const device::UnitSelectParams& p, const float* scores, int64_t stride) {
  for (int out = 0; out < p.list.num_lists * p.lists_per_group; ++out) {
    const int index = out / p.lists_per_group, row = index / p.num_kv_heads;
    const device::SelectionList& list = p.list.lists[index];
    if (IsLeftAlone(p, row)) continue;
    uint32_t* const count = p.counts + static_cast<size_t>(out) * p.count_stride;
    if (list.last <= list.first || list.budget == 0) {
      *count = 0;
      continue;
    }
    const bool each = p.lists_per_group > 1;
    const int64_t query = int64_t{index} * p.list.group + (each ? out % p.lists_per_group : 0);
    const std::vector<double> importance = PageImportance(scores + query * stride, stride, each ? 1 : p.list.group,
                                                          list.num_keys / PageRows(p.list), p.list.aggregation);
    SelectOfList(p, list, importance, p.selected + static_cast<size_t>(out) * p.list.max_budget, count);
  }
}

void SelectPages(Stream stream, const device::SelectParams& p) {
  const auto stride = static_cast<int64_t>(p.max_keys / PageRows(p) + 1);
  std::vector<float> scores(static_cast<size_t>(p.num_lists) * p.group * stride);
  ScorePages(stream, p, scores.data(), stride);
  device::UnitSelectParams units{.list = p, .unit_tokens = PageRows(p), .selected = p.selected, .counts = p.counts};
  units.list.min_mass = 0;
  SelectUnits(stream, units, scores.data(), stride);
}

// The row's key, as it is where pages are indexed.
std::vector<float> KeyIn(const device::CuboidParams& p, size_t row) {
  std::vector<float> key(p.head_dim);
  for (int d = 0; d < p.head_dim; ++d) {
    const size_t at = row * 2 * p.head_dim + d;
    if (p.row_scales == nullptr) {
      key[d] = Bf16ToF32(static_cast<const uint16_t*>(p.row_pool)[at]);
    } else {
      const float scale = p.row_scales[2 * row];
      key[d] = static_cast<const int8_t*>(p.row_pool)[at] * (std::isfinite(scale) ? scale : 0);
    }
  }
  return key;
}

void IndexCuboids(Stream, const device::CuboidParams& p) {
  const uint32_t page_rows = p.page_tokens;
  const int64_t stride = device::PageBlockStride(p.block_stride, p.page_tokens, p.head_dim);
  for (int i = 0; i < p.num_lists; ++i) {
    if (p.positions[i] == device::kNoPosition) continue;
    for (uint32_t page = p.positions[i] / page_rows; (page + 1) * page_rows <= p.positions[i] + p.rows_per_list;
         ++page) {
      const uint32_t begin = page * page_rows, in_block = begin % kBlockTokens;
      const size_t block = p.blocks[p.lists[i].first_block + begin / kBlockTokens];
      std::vector<std::vector<float>> keys;
      for (uint32_t row = 0; row < page_rows; ++row) keys.push_back(KeyIn(p, block * kBlockTokens + in_block + row));
      auto* const to =
          reinterpret_cast<uint16_t*>(static_cast<std::byte*>(p.cuboids) + static_cast<int64_t>(block) * stride) +
          in_block / page_rows * size_t{2} * p.head_dim;
      for (int d = 0; d < p.head_dim; ++d) {
        float high = keys[0][d], low = keys[0][d], distance = 0;
        for (const std::vector<float>& key : keys) high = std::max(high, key[d]), low = std::min(low, key[d]);
        const float centre = high / 2 + low / 2;
        for (const std::vector<float>& key : keys) distance += std::abs(key[d] - centre);
        const float radius = distance / static_cast<float>(page_rows);
        to[d] = F32ToBf16(centre + radius);
        to[p.head_dim + d] = F32ToBf16(centre - radius);
      }
    }
  }
}

void HoldLists(Stream, const device::HoldListsParams& p) {
  for (int layer = 0; layer < p.num_layers; ++layer) {
    for (int item = 0; item < p.num_rows * p.num_kv_heads; ++item) {
      const int row = item / p.num_kv_heads;
      device::SelectionList& list = p.lists[static_cast<size_t>(layer) * p.max_rows * p.num_kv_heads + item];
      const bool keeps = p.reuse_interval > 1 && p.positions[row] != device::kNoPosition &&
                         KeepsSelection(p.positions[row], p.prompt_tokens[row], p.reuse_interval);
      if (keeps || list.budget == 0) list.num_keys = 0;
    }
  }
}

void TellCounts(Stream, const device::TellCountsParams& p) {
  for (int list = 0; list < p.num_lists * p.lists_per_group; ++list) {
    if (p.list_positions[list / p.lists_per_group] == device::kNoPosition) continue;
    p.to[static_cast<size_t>(list) * p.stride] = p.counts[list];
  }
}

}  // namespace

const uint16_t* BoundsOfPage(const device::SelectParams& p, const device::SelectionList& list, uint32_t page) {
  const uint32_t rows = PageRows(p);
  const int64_t block = p.blocks[list.first_block + page * rows / kBlockTokens];
  const int64_t stride = device::PageBlockStride(p.pages.block_stride, p.pages.page_tokens, p.head_dim);
  const auto* const of_block = static_cast<const std::byte*>(p.pages.bounds) + block * stride;
  return reinterpret_cast<const uint16_t*>(of_block) + page * rows % kBlockTokens / rows * size_t{2} * p.head_dim;
}

float BoundByQuery(const device::SelectParams& p, const device::SelectionList& list, int query,
                   const uint16_t* bounds) {
  const float* const of_query = p.queries + (static_cast<size_t>(list.query) * p.group + query) * p.head_dim;
  float bound = 0;
  for (int d = 0; d < p.head_dim; ++d) {
    bound += std::max(of_query[d], 0.0f) * Bf16ToF32(bounds[d]) +
             std::min(of_query[d], 0.0f) * Bf16ToF32(bounds[p.head_dim + d]);
  }
  return bound;
}

void AddHostPageKernels(device::SelectionKernels& kernels) {
  kernels.select_pages = SelectPages;
  kernels.score_pages = ScorePages;
}

device::PageUnitKernels HostPageUnitKernels() {
  return {.index_cuboids = IndexCuboids,
          .unit_scratch_bytes = [](const device::UnitSelectParams&) { return size_t{256}; },
          .select_units = SelectUnits,
          .hold_lists = HoldLists,
          .tell_counts = TellCounts};
}

}  // namespace winnow::test
