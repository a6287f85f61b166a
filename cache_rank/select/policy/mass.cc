#include "cache_rank/select/policy/mass.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cache_rank/select/policy/fewest_rows.h"
#include "cache_rank/select/policy/top_pages.h"

namespace winnow {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Rows per kernel call: enough to amortise the call, few enough that little is read beyond the stop.
constexpr uint32_t kBatchRows = 256;

double LogAdd(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == -kInfinity ? a : a + std::log1p(std::exp(b - a));
}

// Sums of n leaves of which some become 0, without the cancellation that subtracting would bring.
class SumTree {
 public:
  SumTree(double* nodes, uint32_t leaves) : nodes_(nodes), leaves_(leaves) {}
  static uint32_t Leaves(uint32_t n) { return std::bit_ceil(std::max(n, 2u)); }
  double& leaf(uint32_t i) { return nodes_[leaves_ + i]; }
  void Build() {
    for (uint32_t i = leaves_ - 1; i > 0; --i) nodes_[i] = nodes_[2 * i] + nodes_[2 * i + 1];
  }
  void Remove(uint32_t i) {
    leaf(i) = 0;
    for (uint32_t n = (leaves_ + i) / 2; n > 0; n /= 2) nodes_[n] = nodes_[2 * n] + nodes_[2 * n + 1];
  }
  double sum() const { return nodes_[1]; }

 private:
  double* nodes_;  // [2 * leaves], the root at 1
  uint32_t leaves_;
};

// What is held and what may remain, while units are read.
class PageReader {
 public:
  PageReader(const KernelTable& kernels, const PageMassQuestion& question, PageMassScratch& scratch)
      : kernels_(kernels), q_(question), scratch_(scratch), leaves_(SumTree::Leaves(question.units.end())) {}

  void ReadFixedRows();
  void BoundUnits();
  void ReadUnits(const uint32_t* units, uint32_t count, uint32_t left, std::vector<uint32_t>* chosen);
  bool reached() const { return reached_; }

  // Whether the target is held with `left` units unread.
  bool Reaches(uint32_t left);

 private:
  SumTree tree(int query) { return {scratch_.remaining.data() + size_t{2} * leaves_ * query, leaves_}; }
  Softmaxes Score(std::span<const uint32_t> groups) {
    KeyTable keys = q_.keys;
    keys.groups = groups.data();
    keys.num_keys = static_cast<uint32_t>(groups.size()) * kKeyGroup;
    scratch_.scored_key_bytes += keys.key_bytes();
    return SoftmaxKeys(kernels_, keys, q_.queries, q_.num_queries, q_.form, scratch_.softmax);
  }

  const KernelTable& kernels_;
  const PageMassQuestion& q_;
  PageMassScratch& scratch_;
  const uint32_t leaves_;
  bool any_read_ = false;
  bool reached_ = false;
};

void PageReader::ReadFixedRows() {
  const FixedRows& fixed = q_.fixed;
  RowGroups& groups = scratch_.fixed_groups;
  groups.Clear();
  groups.AddRows(0, std::min(fixed.sink_tokens, fixed.ScoredEnd()));
  groups.AddRows(fixed.recent_start, fixed.ScoredEnd());
  scratch_.heads.assign(q_.num_queries, {.log = -kInfinity, .log_least = kInfinity});
  if (groups.columns() > 0) {
    const Softmaxes softmaxes = Score(groups.groups());
    for (int i = 0; i < q_.num_queries; ++i) {
      double share = 0;
      for (uint32_t c = 0; c < groups.columns(); ++c) {
        const uint32_t row = groups.Row(c);
        if (row < fixed.sink_tokens || row >= fixed.recent_start) share += softmaxes.Share(i, c);
      }
      scratch_.heads[i].log = softmaxes.lse[i] + std::log(share);
    }
  }
  const TailScores tail =
      ScoreTail(kernels_, q_.keys, fixed.ScoredEnd(), fixed.end, q_.queries, q_.num_queries, q_.form, scratch_.tail);
  for (int i = 0; i < q_.num_queries; ++i) {
    for (uint32_t c = tail.first; c < tail.last; ++c) {
      scratch_.heads[i].log = LogAdd(scratch_.heads[i].log, tail.scores.row(i)[c]);
    }
  }
}

void PageReader::BoundUnits() {
  if (q_.stop_rule != StopRule::kBound) return;
  const uint32_t page_tokens = q_.fixed.page_tokens;
  scratch_.remaining.assign(size_t{2} * leaves_ * q_.num_queries, 0);
  for (int i = 0; i < q_.num_queries; ++i) {
    SumTree remaining = tree(i);
    for (uint32_t unit = q_.units.begin(); unit < q_.units.end(); ++unit) {
      double& bound = remaining.leaf(unit);
      for (uint32_t row = q_.units.RowsBegin(unit); row < q_.units.RowsEnd(unit);) {
        const uint32_t page = row / page_tokens;
        const uint32_t end = std::min((page + 1) * page_tokens, q_.units.RowsEnd(unit));
        const double share =
            page < q_.fixed.PagesEnd() / page_tokens ? (end - row) * q_.bounds.Share(i, page) : kInfinity;
        bound += std::isnan(share) ? kInfinity : share;
        row = end;
      }
    }
    remaining.Build();
  }
}

bool PageReader::Reaches(uint32_t left) {
  double mass = 0;
  for (int i = 0; i < q_.num_queries; ++i) {
    const PageMassScratch::HeldMass& head = scratch_.heads[i];
    double log_left = -kInfinity;
    if (left > 0 && q_.stop_rule == StopRule::kBound) {
      log_left = q_.bounds.lse[i] + std::log(tree(i).sum());
    } else if (left > 0) {
      if (!any_read_) return false;
      log_left = head.log_least + std::log(left);
    }
    mass += log_left == -kInfinity ? 1 : 1 / (1 + std::exp(log_left - head.log));
  }
  return mass >= (1 - double{q_.epsilon}) * q_.num_queries;  // never with NaN
}

// Reads `count` units in their order, behind which `left` more would come, and adds them to `chosen` until the target
// is held.
void PageReader::ReadUnits(const uint32_t* units, uint32_t count, uint32_t left, std::vector<uint32_t>* chosen) {
  scratch_.groups.clear();
  for (uint32_t u = 0; u < count; ++u) {
    const uint32_t last = (q_.units.RowsEnd(units[u]) - 1) / kKeyGroup;
    for (uint32_t g = q_.units.RowsBegin(units[u]) / kKeyGroup; g <= last; ++g) scratch_.groups.push_back(g);
  }
  const Softmaxes softmaxes = Score(scratch_.groups);
  uint32_t column = 0;
  for (uint32_t u = 0; u < count && !reached_; ++u) {
    const uint32_t first = q_.units.RowsBegin(units[u]), rows = q_.units.Rows(units[u]);
    const uint32_t first_column = column + first % kKeyGroup;
    for (int i = 0; i < q_.num_queries; ++i) {
      double share = 0;
      for (uint32_t c = first_column; c < first_column + rows; ++c) share += softmaxes.Share(i, c);
      const double log_mass = softmaxes.lse[i] + std::log(share);
      PageMassScratch::HeldMass& head = scratch_.heads[i];
      head.log = LogAdd(head.log, log_mass);
      head.log_least = std::min(head.log_least, log_mass);
      if (q_.stop_rule == StopRule::kBound) tree(i).Remove(units[u]);
    }
    any_read_ = true;
    column += (first % kKeyGroup + rows + kKeyGroup - 1) / kKeyGroup * kKeyGroup;
    chosen->push_back(units[u]);
    reached_ = Reaches(count - 1 - u + left);
  }
}

}  // namespace

void SelectMassOfScored(const KernelTable& kernels, const ScoredMassQuestion& q, ScoredMassScratch& scratch,
                        std::vector<uint32_t>* selected) {
  const int n = q.softmaxes.num_queries;
  double held = 0;
  for (int i = 0; i < n; ++i) held += q.held[i] / (1 + q.unread[i]);
  const double target = (1 - double{q.epsilon}) * n;
  if (held >= target) return selected->clear();
  SelectTopK(kernels, q.importance, q.first, q.last, q.budget, scratch.top_k, selected);
  const float* mass = q.importance;
  if (!q.importance_is_mass) {
    // What a column holds of all that is known and unread: the softmaxes' sum with each one scaled. Where what is
    // unread is not finite, nothing holds anything.
    const size_t runs = SoftmaxRuns(q.softmaxes.num_keys);
    float* run_scales = scratch.run_scales.Reserve(n * runs);
    for (int i = 0; i < n; ++i) {
      const double known = std::isfinite(q.unread[i]) ? 1 / (1 + q.unread[i]) : 0;
      for (size_t run = 0; run < runs; ++run) {
        run_scales[i * runs + run] = static_cast<float>(q.softmaxes.run_scales[i * runs + run] * known);
      }
    }
    Softmaxes known = q.softmaxes;
    known.run_scales = run_scales;
    float* sums = scratch.mass.Reserve(q.last);
    SumSoftmaxes(kernels, known, q.first, q.last, sums);
    mass = sums;
  }
  const auto mass_of = [&](uint32_t column) -> double { return mass[column]; };
  KeepFewestRows(q.importance, held, target, mass_of, scratch.fewest, selected);
}

void SelectMassOfPages(const KernelTable& kernels, const PageMassQuestion& q, PageMassScratch& scratch,
                       std::vector<uint32_t>* selected) {
  selected->clear();
  if (q.units.begin() == q.units.end()) return;
  PageReader reader(kernels, q, scratch);
  reader.ReadFixedRows();
  reader.BoundUnits();

  std::vector<uint32_t>& order = scratch.order;  // a heap, the most important unit on top
  order.clear();
  for (uint32_t unit = q.units.begin(); unit < q.units.end(); ++unit) order.push_back(unit);
  const auto less_important = [&](uint32_t a, uint32_t b) {
    const float* importance = q.units.importance;
    return importance[a] != importance[b] ? importance[a] < importance[b] : a > b;
  };
  std::make_heap(order.begin(), order.end(), less_important);
  scratch.chosen.clear();
  uint32_t rows = 0;
  bool reached = q.budget == 0 || reader.Reaches(static_cast<uint32_t>(order.size()));
  auto heap_end = order.end();
  while (!reached && heap_end != order.begin() && rows < q.budget) {
    // Units taken out of the heap lie behind it, newest first; a batch is read oldest first.
    uint32_t batch[kBatchRows / kKeyGroup];
    uint32_t count = 0;
    for (uint32_t batch_rows = 0; heap_end != order.begin() && rows < q.budget && batch_rows < kBatchRows;) {
      std::pop_heap(order.begin(), heap_end, less_important);
      --heap_end;
      batch[count++] = *heap_end;
      // Clipped units count as whole ones, so that a batch never holds more units than there is room for.
      batch_rows += q.units.unit_tokens;
      rows += q.units.Rows(*heap_end);
    }
    reader.ReadUnits(batch, count, static_cast<uint32_t>(heap_end - order.begin()), &scratch.chosen);
    reached = reader.reached();
  }
  uint32_t chosen_rows = 0;
  for (const uint32_t unit : scratch.chosen) chosen_rows += q.units.Rows(unit);
  if (scratch.chosen.empty()) return;
  const uint32_t last_unit = scratch.chosen.back();
  const uint32_t excess = chosen_rows > q.budget ? chosen_rows - q.budget : 0;
  std::sort(scratch.chosen.begin(), scratch.chosen.end());
  for (const uint32_t unit : scratch.chosen) {
    AppendRows(q.units.RowsBegin(unit), q.units.RowsEnd(unit) - (unit == last_unit ? excess : 0), selected);
  }
}

}  // namespace winnow
