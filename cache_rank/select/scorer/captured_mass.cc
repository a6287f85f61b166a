#include "cache_rank/select/scorer/captured_mass.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/kv_layout.h"

namespace winnow {

double OwnShare(float lse, float own_score) {
  return 1 / (1 + std::exp(double{lse} - own_score));
}

double CapturedMassInDouble(const Softmaxes& softmaxes, const float* own_scores, const AttendedSet& attended) {
  double mass = 0;
  for (int i = 0; i < softmaxes.num_queries; ++i) {
    const auto softmax = [&](uint32_t j) { return softmaxes.Share(i, j); };
    double share = 0;
    for (uint32_t j = 0; j < std::min(attended.sink_tokens, softmaxes.num_keys); ++j) share += softmax(j);
    for (uint32_t j : attended.selected) share += softmax(j);
    for (uint32_t j = attended.recent_start; j < softmaxes.num_keys; ++j) share += softmax(j);
    if (own_scores != nullptr) {
      const double own = OwnShare(softmaxes.lse[i], own_scores[i]);
      share = share * (1 - own) + own;
    }
    mass += share;
  }
  return mass / softmaxes.num_queries;
}

float CapturedMass(const Softmaxes& softmaxes, const float* own_scores, const AttendedSet& attended) {
  const double mass = CapturedMassInDouble(softmaxes, own_scores, attended);
  return std::min(static_cast<float>(mass), 1.0f);  // NaN stays NaN: not measured
}

TailScores ScoreTail(const KernelTable& kernels, const KeyTable& keys, uint32_t first, uint32_t end,
                     const float* queries, int num_queries, ScoreForm form, ScratchBuffer<float>& buffer) {
  if (first == end) return {};
  KeyTable tile = keys;
  tile.groups = nullptr;
  tile.tiles = keys.tiles + first / kBlockTokens;
  tile.num_keys = end - first / kBlockTokens * kBlockTokens;
  const Scores scores = ScoreKeys(kernels, tile, queries, num_queries, form, buffer);
  return {scores, first % kBlockTokens, tile.num_keys};
}

double UnscoredBound(const Softmaxes& bounds, int i, uint32_t num_pages, uint32_t page_tokens,
                     std::span<const uint32_t> groups, float lse) {
  const uint32_t groups_per_page = page_tokens / kKeyGroup;
  double sum = 0;
  size_t g = 0;
  for (uint32_t page = 0; page < num_pages; ++page) {
    uint32_t unscored = page_tokens;
    for (; g < groups.size() && groups[g] < (page + 1) * groups_per_page; ++g) unscored -= kKeyGroup;
    if (unscored > 0) sum += unscored * bounds.Share(i, page);
  }
  if (sum == 0) return 0;
  const double bound = sum * std::exp(double{bounds.lse[i]} - lse);
  return std::isnan(bound) ? std::numeric_limits<double>::infinity() : bound;
}

CapturedMassFigure CapturedMassBound(const Softmaxes& scored, const RowGroups& groups, const TailScores& tail,
                                     const Softmaxes& bounds, const FixedRows& fixed,
                                     std::span<const uint32_t> selected) {
  CapturedMassFigure figure{.mass = 0, .is_lower_bound = groups.RowsIn(0, fixed.PagesEnd()) < fixed.PagesEnd()};
  double mass = 0;
  for (int i = 0; i < scored.num_queries; ++i) {
    const auto share = [&](uint32_t column) { return scored.Share(i, column); };
    double attended = 0;
    for (uint32_t c = 0; c < groups.ColumnOf(std::min(fixed.sink_tokens, fixed.ScoredEnd())); ++c) attended += share(c);
    size_t g = 0;
    for (const uint32_t row : selected) {
      while (groups.groups()[g] < row / kKeyGroup) ++g;
      attended += share(static_cast<uint32_t>(g) * kKeyGroup + row % kKeyGroup);
    }
    for (uint32_t c = groups.ColumnOf(fixed.recent_start); c < groups.columns(); ++c) attended += share(c);
    double tail_sum = 0;
    for (uint32_t c = tail.first; c < tail.last; ++c) {
      tail_sum += std::exp(double{tail.scores.row(i)[c]} - scored.lse[i]);
    }
    const double unscored = UnscoredBound(bounds, i, fixed.PagesEnd() / fixed.page_tokens, fixed.page_tokens,
                                          groups.groups(), scored.lse[i]);
    const double lower = (attended + tail_sum) / (1 + tail_sum + unscored);
    mass += std::isnan(lower) ? 0 : lower;
  }
  figure.mass = std::min(static_cast<float>(mass / scored.num_queries), 1.0f);
  return figure;
}

}  // namespace winnow
