#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace winnow {

// How many times its budget one (layer, kv head) selects under the quality guard: 1, 2, 4 or 8.
//
// A head doubles when corrections cost more than doubling would. Each position adds the rows that were needed to bring
// its mass to the threshold to a balance and takes off factor * budget, what doubling costs a position; never below 0.
// Above kPatience times that cost the head doubles. So a head that predicts badly but is cheap to correct stays small,
// and one that needs more than its budget again and again grows within a few positions.
//
// It halves after a quiet time without a correction: kQuietPositions at first, twice as long after every growth that
// follows a halving, so that a head settles at the size that its masses need.
//
// A position's record has effect from two positions later on: Sel(p) depends on masses of positions <= p - 2 alone,
// also where Sel(p) is made before the query of p - 1 has verified its selection. Where positions share a selection, it
// has effect from the next multiple of the reuse interval on, an anchor, so that a position's factor is always that of
// its selection. The records are kept, so that the state at any earlier position can be had again.
class BudgetGrowth {
 public:
  static constexpr uint32_t kPatience = 4;
  static constexpr uint32_t kQuietPositions = 64;
  static constexpr uint32_t kMaxQuietPositions = 4096;

  // `ceiling`: 1, 2, 4 or 8.
  BudgetGrowth(uint32_t budget_tokens, uint32_t ceiling, uint32_t reuse_interval = 1)
      : budget_tokens_(budget_tokens), ceiling_(ceiling), reuse_interval_(reuse_interval) {}

  // Of Sel(position).
  uint32_t FactorAt(uint32_t position) const;
  // Rows that Sel(position) may have.
  uint32_t BudgetAt(uint32_t position) const {
    return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{FactorAt(position)} * budget_tokens_, UINT32_MAX));
  }
  // Rows that the mass of `position` needed to be large enough; 0: it was. Positions are consecutive from the
  // first one on. True when the head grew.
  bool Record(uint32_t position, uint32_t rows_needed);
  // As if positions >= `position` had not been recorded.
  void Truncate(uint32_t position);

 private:
  struct Change {
    uint32_t from_position;
    uint32_t factor;
  };
  struct Correction {
    uint32_t position;
    uint32_t rows_needed;
  };
  bool Advance(uint32_t position, uint32_t rows_needed);
  void Resize(uint32_t position, uint32_t factor);

  uint32_t budget_tokens_;
  uint32_t ceiling_;
  uint32_t reuse_interval_;
  // The log: positions [first_, end_) were recorded, these of them with rows read.
  uint32_t first_ = 0, end_ = 0;
  std::vector<Correction> corrections_;
  // What follows from it.
  std::vector<Change> changes_;
  uint64_t balance_rows_ = 0;
  uint32_t quiet_positions_ = 0;
  uint32_t quiet_limit_ = kQuietPositions;
  bool halved_ = false;  // since it last grew
};

}  // namespace winnow
