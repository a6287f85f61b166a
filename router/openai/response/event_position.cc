#include "router/openai/response/event_position.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "router/generation/request_error.h"

namespace winnow {
namespace {

using Stage = ChoicePosition::Stage;

std::string Print(const ChoicePosition& position) {
  if (position.stage == Stage::kNothing) return "";
  const char* stage = position.stage == Stage::kEnded ? "e" : position.stage == Stage::kRest ? "r" : "";
  return absl::StrCat(position.tokens, stage);
}

bool Parse(absl::string_view text, ChoicePosition* position) {
  if (text.empty()) return true;
  position->stage = Stage::kTokens;
  if (absl::ConsumeSuffix(&text, "e")) {
    position->stage = Stage::kEnded;
  } else if (absl::ConsumeSuffix(&text, "r")) {
    position->stage = Stage::kRest;
  }
  return absl::SimpleAtoi(text, &position->tokens);
}

}  // namespace

std::string EventId(const std::vector<ChoicePosition>& positions) {
  return absl::StrJoin(positions, ".",
                       [](std::string* out, const ChoicePosition& position) { absl::StrAppend(out, Print(position)); });
}

absl::StatusOr<std::vector<ChoicePosition>> ParseEventId(std::string_view id, size_t choices) {
  const std::vector<absl::string_view> parts = absl::StrSplit(AbslSv(id), '.');
  std::vector<ChoicePosition> positions(choices);
  bool is_known = parts.size() == choices;
  for (size_t i = 0; is_known && i < choices; ++i) is_known = Parse(parts[i], &positions[i]);
  if (is_known) return positions;
  return InvalidField("last-event-id", "The header Last-Event-ID is no id of an event of this answer.");
}

}  // namespace winnow
