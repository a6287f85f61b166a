#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace winnow {

// What a line of a chat is when it begins with a slash.
enum class ChatVerb { kFile, kSystem, kSelection, kStats, kReset, kSave, kHelp, kQuit };

struct ChatCommand {
  ChatVerb verb;
  std::string operand;  // without blanks around it
};

// Absent for a line that is a message. INVALID_ARGUMENT for a command that there is not, with the nearest, or one
// whose operand is missing or too much.
absl::StatusOr<std::optional<ChatCommand>> ParseChatCommand(std::string_view line);

// The message that a line is: two slashes at its beginning stand for one.
std::string MessageOf(std::string_view line);

// Lines "  /file PATH   what it does".
std::string ChatCommandHelp();

}  // namespace winnow
