#include "tools/bench/gpu/checks/selection_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_format.h"
#include "common/base/kv_layout.h"
#include "kernels/params/keys.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Scores of units (rows, or pages) by all queries of the group.
struct UnitScores {
  std::vector<std::vector<double>> scores;  // [group][unit]
  double delta = 0;                         // the largest error
};

UnitScores ScoreRows(const SelectionReference& r) {
  UnitScores all{std::vector<std::vector<double>>(r.group, std::vector<double>(r.keys.size())), 0};
  for (int g = 0; g < r.group; ++g) {
    const float* q = r.queries + g * r.head_dim;
    for (size_t j = 0; j < r.keys.size(); ++j) {
      double sum = 0, magnitude = 0;
      for (int d = 0; d < r.head_dim; ++d) {
        const double product = double{q[d]} * r.keys[j][d];
        sum += product;
        magnitude += std::abs(product);
      }
      all.scores[g][j] = r.scale * sum;
      all.delta = std::max(all.delta, r.query_rounding * r.scale * magnitude);
    }
  }
  return all;
}

float RoundToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

const std::vector<std::vector<float>>& PageKeys(const SelectionReference& r) {
  return r.stored_keys.empty() ? r.keys : r.stored_keys;
}

// From the box of a page's keys to that of their mean distance from its centre, in f32 as it is defined.
void DrawIn(const SelectionReference& r, uint32_t first, std::vector<float>& hi, std::vector<float>& lo) {
  const std::vector<std::vector<float>>& keys = PageKeys(r);
  for (int d = 0; d < r.head_dim; ++d) {
    const float centre = hi[d] / 2 + lo[d] / 2;
    float distance = 0;
    for (uint32_t j = first; j < first + r.spec->page_tokens; ++j) distance += std::abs(keys[j][d] - centre);
    const float radius = distance / static_cast<float>(r.spec->page_tokens);
    hi[d] = RoundToBf16(centre + radius);
    lo[d] = RoundToBf16(centre - radius);
  }
}

UnitScores ScorePages(const SelectionReference& r) {
  const std::vector<std::vector<float>>& keys = PageKeys(r);
  const double rounding = r.page_query_rounding > 0 ? r.page_query_rounding : r.query_rounding;
  const uint32_t page = r.spec->page_tokens, pages = r.position / page;
  UnitScores all{std::vector<std::vector<double>>(r.group, std::vector<double>(pages)), 0};
  for (uint32_t p = 0; p < pages; ++p) {
    std::vector<float> hi = keys[p * page], lo = hi;
    for (uint32_t j = p * page; j < (p + 1) * page; ++j) {
      for (int d = 0; d < r.head_dim; ++d) {
        hi[d] = std::max(hi[d], keys[j][d]);
        lo[d] = std::min(lo[d], keys[j][d]);
      }
    }
    if (r.spec->scorer == Scorer::kPageCuboid) DrawIn(r, p * page, hi, lo);
    for (int g = 0; g < r.group; ++g) {
      const float* q = r.queries + g * r.head_dim;
      double sum = 0, magnitude = 0;
      for (int d = 0; d < r.head_dim; ++d) {
        const double product = double{q[d]} * (q[d] > 0 ? hi[d] : lo[d]);
        sum += product;
        magnitude += std::abs(product);
      }
      all.scores[g][p] = r.scale * sum;
      all.delta = std::max(all.delta, rounding * r.scale * magnitude);
    }
  }
  return all;
}

// Importance of each unit, the softmaxes taken over units that `counts` says are scored.
template <typename Counts>
std::vector<double> Importance(const SelectionReference& r, const UnitScores& units, Counts counts) {
  const size_t n = units.scores[0].size();
  std::vector<double> importance(n, r.spec->group_aggregation == GroupAggregation::kMax ? -kInfinity : 0);
  for (const std::vector<double>& scores : units.scores) {
    double most = -kInfinity, sum = 0;
    for (size_t j = 0; j < n; ++j) most = counts(j) ? std::max(most, scores[j]) : most;
    for (size_t j = 0; j < n; ++j) sum += counts(j) ? std::exp(scores[j] - most) : 0;
    for (size_t j = 0; j < n; ++j) {
      switch (r.spec->group_aggregation) {
        case GroupAggregation::kSoftmaxSum:
          importance[j] += std::exp(scores[j] - most) / sum;
          break;
        case GroupAggregation::kMax:
          importance[j] = std::max(importance[j], scores[j]);
          break;
        case GroupAggregation::kMean:
          importance[j] += scores[j] / r.group;
          break;
      }
    }
  }
  return importance;
}

// Whether a unit of this importance may be passed over for one of that.
bool MayPassOver(GroupAggregation aggregation, double outside, double inside, double delta) {
  if (aggregation == GroupAggregation::kSoftmaxSum) return outside <= inside * std::exp(4 * delta);
  return outside <= inside + 2 * delta;
}

// What is known of the first stage: rows that are candidates, and rows that roundings may have made ones.
struct Candidates {
  std::vector<bool> certain, possible;  // by row
  // Rows that are scored beside them end here. Where pages leave candidates, keys are scored in whole groups, and the
  // newest rows, which fill none yet, take no part in the softmaxes.
  uint32_t scored_end = 0;
};
Candidates FindCandidates(const SelectionReference& r, uint32_t first, uint32_t last) {
  const SelectionSpec& spec = *r.spec;
  const uint64_t rows = CandidateTokens(spec, r.budget);
  const bool all = spec.scorer != Scorer::kTwoStage || ScoresAllOf(spec, last - first, r.budget);
  Candidates found{std::vector<bool>(last, all), std::vector<bool>(last, all), r.position};
  if (all) return found;
  found.scored_end = r.position / kKeyGroup * kKeyGroup;
  const UnitScores pages = ScorePages(r);
  const uint32_t page = spec.page_tokens, end = last / page;
  std::vector<double> best(end, -kInfinity);
  for (const std::vector<double>& scores : pages.scores) {
    for (uint32_t p = 0; p < end; ++p) best[p] = std::max(best[p], scores[p]);
  }
  std::vector<uint32_t> order(end - first / page);
  std::iota(order.begin(), order.end(), first / page);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return best[a] > best[b]; });
  uint64_t held = 0;
  size_t count = 0;
  for (; count < order.size() && held < rows; ++count) {
    held += std::min((order[count] + 1) * page, last) - std::max(order[count] * page, first);
  }
  const double cut = best[order[count - 1]];
  for (uint32_t j = first; j < last; ++j) {
    // Keys are scored in groups, so that those beside the sinks are candidates whatever their page.
    const bool beside_sinks = first > 0 && j / kKeyGroup <= (first - 1) / kKeyGroup;
    found.certain[j] = beside_sinks || best[j / page] > cut + 2 * pages.delta;
    found.possible[j] = beside_sinks || best[j / page] >= cut - 2 * pages.delta;
  }
  return found;
}

// Round to nearest even to e4m3: 3 bits of mantissa, subnormals in steps of 2^-9, at most 448.
float RoundToE4m3(float x) {
  if (x == 0) return 0;
  int exponent = 0;
  std::frexp(x, &exponent);
  const float step = std::ldexp(1.0f, std::max(exponent - 4, -9));
  return std::clamp(std::nearbyint(x / step) * step, -448.0f, 448.0f);
}

}  // namespace

std::string SelectionReference::Check(const std::vector<uint32_t>& selected) const {
  const uint32_t first = spec->sink_tokens;
  const uint32_t last = RecentStart(position, spec->recent_tokens, spec->sink_tokens, kBlockTokens);
  const uint32_t most = last > first ? std::min(budget, last - first) : 0;
  const bool by_mass = spec->policy == Policy::kMass && last > first && last - first > budget;  // else all is attended
  if (!by_mass && selected.size() != most) {
    return absl::StrFormat("%d rows instead of %d", selected.size(), most);
  }
  if (selected.size() > most) return absl::StrFormat("%d rows of at most %d", selected.size(), most);
  for (size_t i = 0; i < selected.size(); ++i) {
    if (selected[i] < first || selected[i] >= last) return absl::StrFormat("row %d may not be selected", selected[i]);
    if (i > 0 && selected[i] <= selected[i - 1]) return absl::StrFormat("row %d is not in order", selected[i]);
  }
  if (most == 0) return {};

  const Candidates candidates = FindCandidates(*this, first, last);
  const bool by_pages = spec->scorer == Scorer::kPageMinmax || spec->scorer == Scorer::kPageCuboid;
  const UnitScores units = by_pages ? ScorePages(*this) : ScoreRows(*this);
  const auto scored = [&](size_t j) {
    return by_pages || j < first || (j < last ? candidates.possible[j] : j < candidates.scored_end);
  };
  const std::vector<double> importance = Importance(*this, units, scored);
  const auto of = [&](uint32_t row) { return importance[by_pages ? row / spec->page_tokens : row]; };
  std::vector<bool> is_selected(last);
  double least = kInfinity, held = 0;
  for (const uint32_t row : selected) {
    if (!candidates.possible[row]) return absl::StrFormat("row %d is of no candidate page", row);
    is_selected[row] = true;
    least = std::min(least, of(row));
    held += of(row);
  }
  double delta = units.delta;
  if (spec->scorer == Scorer::kTwoStage) {
    // Whether a page in doubt is scored changes the softmaxes by what its rows hold.
    double doubtful = 0;
    for (uint32_t j = first; j < last; ++j) doubtful += candidates.possible[j] && !candidates.certain[j] ? of(j) : 0;
    delta += 0.25 * std::log1p(doubtful / std::max(1e-9, 1 - std::min(doubtful, 0.5)));
  }
  if (by_mass) {
    double fixed = 0;
    for (uint32_t j = 0; j < candidates.scored_end; ++j) fixed += j < first || j >= last ? importance[j] : 0;
    const double target = (1 - double{spec->epsilon}) * group, error = std::exp(2 * delta);
    if (selected.size() < most && (fixed + held) * error < target) {
      return absl::StrFormat("%d rows hold %.5f instead of %.5f", selected.size(), (fixed + held) / group,
                             target / group);
    }
    if (!selected.empty() && (fixed + held - least) / error >= target) {
      return absl::StrFormat("fewer than %d rows would do: they hold %.5f", selected.size(), (fixed + held) / group);
    }
  }
  for (uint32_t row = first; row < last; ++row) {
    if (is_selected[row] || !candidates.certain[row] || selected.empty()) continue;
    if (!MayPassOver(spec->group_aggregation, of(row), least, delta)) {
      return absl::StrFormat("row %d of importance %.6g is left out for one of %.6g, delta %.3g", row, of(row), least,
                             delta);
    }
  }
  return {};
}

std::vector<float> ScoredKey(const uint16_t* stored, int head_dim, bool fp8) {
  std::vector<float> key(head_dim);
  float largest = 0;
  for (int d = 0; d < head_dim; ++d) {
    key[d] = std::bit_cast<float>(uint32_t{stored[d]} << 16);
    largest = std::max(largest, std::abs(key[d]));
  }
  if (!fp8) return key;
  const float scale = largest > 0 ? largest / 448 : 1;
  for (float& k : key) k = RoundToE4m3(k / scale) * scale;
  return key;
}

}  // namespace winnow
