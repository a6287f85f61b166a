#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// How much of the context each (layer, kv head) of one model attends to, measured on sample text (`winnow
// profile-heads`). A specification takes budgets by head from it (ProfileUse). The file is JSON:
//   {"format": "winnow-head-profile", "version": 2,
//    "model": {"digest": "...", "num_layers": 8, "num_kv_heads": 2},
//    "measured": {"texts": ["docs/api.md"], "tokens": 8192, "queries": 64, "sink_tokens": 4, "recent_tokens": 64},
//    "rows": [1, 2, 3, 4, 6, ..., 8192],
//    "heads": [{"layer": 0, "kv_head": 0, "window_mass": 0.41, "window_mass_p5": 0.2, "streaming": false,
//               "tokens_for_mass": {"0.90": 120.5, "0.95": 310, "0.98": 702},
//               "mass_with_rows": [0.43, 0.45, ..., 0.99]}, ...]}
struct HeadProfile {
  static constexpr std::array<double, 3> kMasses = {0.90, 0.95, 0.98};
  static constexpr std::array<uint32_t, 26> kRows = {1,   2,    3,    4,    6,    8,    12,   16,  24,
                                                     32,  48,   64,   96,   128,  192,  256,  384, 512,
                                                     768, 1024, 1536, 2048, 3072, 4096, 6144, 8192};

  // Means over queries, each of a head group's mean softmax.
  struct Head {
    double window_mass = 0;                              // under sinks and recent window
    double window_mass_p5 = 0;                           // its 5th percentile over queries
    bool streaming = false;                              // these are enough for it
    std::array<double, kMasses.size()> tokens_needed{};  // rows between them that hold kMasses, best ones first
    // Mass under sinks, recent window and the best kRows of the others: ascending and, as a mean of sums of ever
    // smaller parts, concave.
    std::array<double, kRows.size()> mass_with_rows{};

    friend bool operator==(const Head&, const Head&) = default;
  };

  std::string model_digest = {};  // of the checkpoint that was measured
  int num_layers = 0;
  int num_kv_heads = 0;
  // What was measured.
  std::vector<std::string> texts = {};
  uint64_t tokens = 0;
  uint64_t queries = 0;
  uint32_t sink_tokens = 0;
  uint32_t recent_tokens = 0;
  std::vector<Head> heads = {};  // by layer * num_kv_heads + kv_head

  // INVALID_ARGUMENT names `file`, the field and what was found.
  static absl::StatusOr<HeadProfile> Parse(std::string_view json, std::string_view file);
  static absl::StatusOr<HeadProfile> Load(const std::string& path);
  std::string ToJson() const;

  // FAILED_PRECONDITION when the profile is of a model of another shape; `file` is named.
  absl::Status CheckShape(int model_layers, int model_kv_heads, std::string_view file) const;

  // What speaks against using it for a checkpoint and a specification, as predicates of a sentence.
  std::vector<std::string> DoubtsAbout(std::string_view checkpoint_digest, const SelectionSpec& spec) const;

  friend bool operator==(const HeadProfile&, const HeadProfile&) = default;
};

// The specification with the budgets by head that its profile_use asks for; unchanged where it has some already,
// selects nothing or uses no profile. ProfileUse::kBudgets shares out the sum of budget_tokens over all heads such that
// the mean of mass_with_rows over heads is the largest: row by row to the head whose mass the next one raises most,
// ties to the lower list. No head but a streaming one gets less than an eighth of budget_tokens, or than one row, since
// other text may ask for more; rows that raise no mass are shared evenly.
SelectionSpec WithHeadProfile(SelectionSpec spec, const HeadProfile& profile);

// INVALID_ARGUMENT (SpecErrorField "profile_use") where the specification takes something from a head profile, be it by
// its preset, and there is none: what it names would not be what is served. Says what to give instead.
absl::Status CheckNeedsNoHeadProfile(const SelectionSpec& spec);

}  // namespace winnow
