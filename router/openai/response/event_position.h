#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// How far the events of a stream have told one choice: its tokens so far, and how much of its end.
struct ChoicePosition {
  enum class Stage : uint8_t {
    kNothing,  // not even that there is such a choice
    kTokens,
    kRest,  // also the text that its end has set free
    kEnded,
  };
  uint32_t tokens = 0;
  Stage stage = Stage::kNothing;

  friend auto operator<=>(const ChoicePosition&, const ChoicePosition&) = default;
};

// The id of an event: the position of every choice behind it, with dots between: "17" of one choice, "17.20r.12e." of
// four, of which one has not begun.
std::string EventId(const std::vector<ChoicePosition>& positions);
// The same of what a client sends as Last-Event-ID; INVALID_ARGUMENT when no event of `choices` choices has it.
absl::StatusOr<std::vector<ChoicePosition>> ParseEventId(std::string_view id, size_t choices);

}  // namespace winnow
