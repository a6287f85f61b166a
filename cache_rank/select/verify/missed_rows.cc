#include "cache_rank/select/verify/missed_rows.h"

#include <algorithm>
#include <iterator>

namespace winnow {
namespace {

constexpr uint32_t kFirstRows = 64;

}  // namespace

void FewestMissedRows(const KernelTable& kernels, const MissedRowsQuestion& q, MissedRowsScratch& scratch,
                      std::vector<uint32_t>* rows) {
  std::vector<uint32_t>& missed = scratch.missed;
  missed.clear();
  float* importance = scratch.importance.Reserve(q.last > q.first ? q.last - q.first : 0);
  auto next = q.selected.begin();
  for (uint32_t row = q.first; row < q.last; ++row) {
    if (next != q.selected.end() && *next == row) {
      ++next;
      continue;
    }
    importance[missed.size()] = q.importance[row];
    missed.push_back(row);
  }
  const auto mass_of = [&](uint32_t i) {
    double mass = 0;
    for (int query = 0; query < q.softmaxes.num_queries; ++query) {
      mass += q.softmaxes.Share(query, missed[i]) * q.weights[query];
    }
    return mass;
  };
  // Below, rows are indices into `missed`: `taken` are the most important ones, not enough, with what they hold counted
  // in `held`; `added` are those of the round.
  std::vector<uint32_t>& taken = scratch.taken;
  std::vector<uint32_t>& added = scratch.added;
  taken.clear();
  const auto num_missed = static_cast<uint32_t>(missed.size());
  double held = q.held;
  for (uint32_t count = kFirstRows;; count *= 2) {
    SelectTopK(kernels, importance, 0, num_missed, count, scratch.top_k, rows);
    added.clear();
    std::set_difference(rows->begin(), rows->end(), taken.begin(), taken.end(), std::back_inserter(added));
    double sum = 0;
    for (const uint32_t i : added) sum += mass_of(i);
    if (held + sum >= q.target) {
      KeepFewestRows(importance, held, q.target, mass_of, scratch.fewest, &added);
      rows->clear();
      std::merge(taken.begin(), taken.end(), added.begin(), added.end(), std::back_inserter(*rows));
      break;
    }
    if (count >= num_missed) break;
    held += sum;
    taken.swap(*rows);
  }
  for (uint32_t& row : *rows) row = missed[row];
}

}  // namespace winnow
