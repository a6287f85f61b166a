#pragma once
#include <functional>
#include <memory>

#include "common/base/status.h"
#include "inference_rank/sequence/grammar_cache.h"
#include "inference_rank/sequence/sequence.h"
#include "winnow/v1/rank.pb.h"

namespace winnow {

// What a rank can take; the rest of a Submit is refused with a status that names field and limit.
struct SubmitLimits {
  uint32_t vocab_size = 0;
  uint32_t max_context_tokens = 0;
  uint32_t max_budget_tokens = 0;  // kUnlimitedBudget = any
  uint32_t lookahead = 1;          // of the server: all rows of a batch share it
  KvLayout layout;
  std::vector<uint32_t> windows = {};  // of layers with a sliding window (common/selection/window_layers.h)
  uint32_t slot_pages = 0;             // of the rank, all of them: a sequence that needs more would wait for ever
  int slot_parts = 1;                  // memories that slots lie in, each with so many pages
  // Whether rows are selected where they are computed, for sequences with this specification; null: for none.
  std::function<bool(const SelectionSpec&)> selects_in_place = nullptr;
  GrammarCache* grammars = nullptr;  // null: no output can be constrained
};

// The Submit message as a sequence, checked.
absl::StatusOr<std::unique_ptr<Sequence>> MakeSequence(const v1::DispatchRequest::Submit& submit,
                                                       const SubmitLimits& limits);

}  // namespace winnow
