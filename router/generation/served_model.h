#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/selection/selection_spec.h"
#include "router/chat_output/chat_formats.h"

namespace winnow {

// What the front ends must know of the model that the cluster serves.
struct ServedModel {
  std::string id;  // name of the model directory unless --model-id says otherwise
  uint32_t max_context_tokens = 0;
  // Positions that a sequence may have on the cache ranks where nothing else is there, but for indexes of pages; 0: not
  // known.
  uint32_t max_stored_positions = 0;
  uint32_t vocab_size = 0;
  uint32_t max_budget_tokens = 0;  // largest budget per request
  // Most tokens of an answer whose request does not say how many.
  uint32_t max_default_answer_tokens = std::numeric_limits<uint32_t>::max();
  // Samples under way at once, of all requests: more in one request could never run.
  uint32_t max_queue = std::numeric_limits<uint32_t>::max();
  SelectionSpec default_selection;
  bool has_head_profile = false;          // that profile_use may refer to
  ChatFormats chat_formats = {};          // of its answers
  std::vector<std::string> aliases = {};  // further names of the same model

  bool HasName(std::string_view name) const {
    return name == id || std::find(aliases.begin(), aliases.end(), name) != aliases.end();
  }
  // `"a", "b"`, for errors.
  std::string QuotedNames() const {
    std::string names = absl::StrCat("\"", id, "\"");
    for (const std::string& alias : aliases) absl::StrAppend(&names, ", \"", alias, "\"");
    return names;
  }
};

}  // namespace winnow
