#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/selection/selection_spec.h"

namespace winnow {

// A selection by its definition, in f64.
struct SelectionReference {
  const SelectionSpec* spec = nullptr;  // scorer token, page-minmax, page-cuboid or two-stage
  uint32_t position = 0;
  uint32_t budget = 0;
  std::vector<std::vector<float>> keys = {};         // rows [0, position) as they are scored
  std::vector<std::vector<float>> stored_keys = {};  // as bounds of pages are made of them; empty: the same
  const float* queries = nullptr;                    // [group, head_dim], rotated
  int group = 0;
  int head_dim = 0;
  double scale = 0;
  // Half a unit in the last place of what queries are rounded to: a score errs by query_rounding * scale * sum |q k|.
  double query_rounding = 0;
  double page_query_rounding = 0;  // likewise of scores of pages; 0: the same

  // What is wrong with `selected`; empty when nothing is. It must be as large as the policy says, ascending, and no row
  // outside may be more important than one inside by more than the scores' errors can change: importances that are
  // sums of softmaxes err by a factor of exp(2 delta), delta the largest error of a score.
  std::string Check(const std::vector<uint32_t>& selected) const;
};

// A stored bf16 key as it is scored: as it is, or as its fp8 copy holds it (AppendParams).
std::vector<float> ScoredKey(const uint16_t* stored, int head_dim, bool fp8);

}  // namespace winnow
