#pragma once
#include <vector>

#include "router/openai/json/json_writer.h"
#include "winnow/v1/rank.pb.h"

namespace winnow {

// Writes "winnow": {"trace": [...]} of a choice, with the SelectionTrace of each of its tokens that has one; nothing
// where none has.
void WriteTraces(const std::vector<v1::Token>& tokens, JsonWriter* json);

}  // namespace winnow
