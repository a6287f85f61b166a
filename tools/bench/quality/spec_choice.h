#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// A specification under test and what reports call it.
struct SpecChoice {
  std::string name;  // as written, without its budget
  SelectionSpec spec;

  uint32_t budget() const { return IsDense(spec) ? 0 : spec.budget_tokens; }  // 0: unlimited
};

// "SPEC" or "SPEC:BUDGET", SPEC as ParseSpec reads it: "winnow,min_captured_mass=0.95:256". INVALID_ARGUMENT names the
// text and what is wrong with it, also when this build does not serve the specification.
absl::StatusOr<SpecChoice> ParseSpecChoice(std::string_view text);

// Dense, then each text, at every budget unless it names its own; specifications that come twice are left out.
absl::StatusOr<std::vector<SpecChoice>> SpecGrid(const std::vector<std::string>& texts,
                                                 const std::vector<uint32_t>& budgets);

// Gives the specifications that use a head profile the budgets by head of the one in `file`. Without a file it is an
// error to ask for one. INVALID_ARGUMENT and FAILED_PRECONDITION name the specification or the file.
absl::Status UseHeadProfile(const std::string& file, const KvLayout& layout, std::vector<SpecChoice>* specs);

// Splits specifications, by their indices, into batches of at most `most` that one decode step can run: all its
// predictions go the same number of layers ahead.
std::vector<std::vector<size_t>> SpecBatches(std::span<const SpecChoice> specs, size_t most);

}  // namespace winnow
