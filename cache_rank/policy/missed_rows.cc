#include "cache_rank/policy/missed_rows.h"

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
  // Below, rows are indices into `missed`.
  const auto num_missed = static_cast<uint32_t>(missed.size());
  for (uint32_t count = kFirstRows;; count *= 2) {
    SelectTopK(kernels, importance, 0, num_missed, count, scratch.top_k, rows);
    double sum = q.held;
    for (const uint32_t i : *rows) sum += mass_of(i);
    if (sum >= q.target || count >= num_missed) break;
  }
  KeepFewestRows(importance, q.held, q.target, mass_of, scratch.fewest, rows);
  for (uint32_t& row : *rows) row = missed[row];
}

}  // namespace winnow
