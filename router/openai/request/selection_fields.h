#pragma once
#include "common/base/status.h"
#include "router/generation/served_model.h"
#include "router/openai/json/json_document.h"

namespace winnow {

// The request's "winnow" object, by ResolveSelection's rules:
//
//   "selection"          a preset's name, a text specification or an object of fields
//   "budget"             wins over a budget in "selection"
//   "min_captured_mass"  likewise
//   "priority"           read by ParsePriority
//   "trace"              read by ParseTraceParts
//   "prompt_progress"    read by ParseWinnowFlag
//   "resumable"          read by ParseWinnowFlag
//
// The server's default where it is silent. Unknown keys are errors; errors name the key as "winnow.budget" or
// "winnow.selection.window".
absl::StatusOr<SelectionSpec> ParseSelectionFields(const Json& body, const ServedModel& model);

// "priority" of the same object, which ParseSelectionFields has accepted: -100 to 100, 0 where it is silent.
absl::StatusOr<int32_t> ParsePriority(const Json& body);

// "trace", likewise: how many parts of the context tokens tell of, 8 to 512; 0 where it is silent.
absl::StatusOr<uint32_t> ParseTraceParts(const Json& body);

// Likewise, where the key has true or false: "prompt_progress", whether the stream tells how far its prompts are, and
// "resumable", whether a client that loses its connection may go on with the answer. False where it is silent.
absl::StatusOr<bool> ParseWinnowFlag(const Json& body, const char* key);

}  // namespace winnow
