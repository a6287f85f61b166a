#include "cmd/chat/chat_command.h"

#include <array>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "common/base/nearest_name.h"

namespace winnow {
namespace {

enum class Operand { kNone, kOptional, kRequired };

struct Known {
  std::string_view name;
  ChatVerb verb;
  Operand operand;
  const char* operand_name;
  const char* summary;
};

constexpr std::array kCommands = {
    Known{"/file", ChatVerb::kFile, Operand::kRequired, "PATH", "put a text before the next message"},
    Known{"/system", ChatVerb::kSystem, Operand::kOptional, "TEXT", "what the model is told to be; none: nothing"},
    Known{"/selection", ChatVerb::kSelection, Operand::kOptional, "SPEC",
          "selection of the next answers, such as winnow,budget=512; none: the server's"},
    Known{"/stats", ChatVerb::kStats, Operand::kOptional, "on|off",
          "a line of figures after every answer; none: all figures of the last"},
    Known{"/reset", ChatVerb::kReset, Operand::kNone, "", "begin anew; the system text stays"},
    Known{"/save", ChatVerb::kSave, Operand::kRequired, "PATH", "write the chat as Markdown, or as JSON to *.json"},
    Known{"/help", ChatVerb::kHelp, Operand::kNone, "", "list these commands"},
    Known{"/quit", ChatVerb::kQuit, Operand::kNone, "", "leave, as Ctrl-D does"},
};

absl::Status Unknown(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Known& known : kCommands) names.push_back(known.name);
  const std::string_view nearest = NearestName(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown command \"", AbslSv(name), "\"",
                   nearest.empty() ? "; /help lists them" : absl::StrCat("; did you mean \"", AbslSv(nearest), "\"?"),
                   " (a message that begins with a slash is written with two)"));
}

}  // namespace

absl::StatusOr<std::optional<ChatCommand>> ParseChatCommand(std::string_view line) {
  if (!line.starts_with('/') || line.starts_with("//")) return std::nullopt;
  const size_t end = std::min(line.find_first_of(" \t\n"), line.size());
  const std::string_view name = line.substr(0, end);
  std::string operand(absl::StripAsciiWhitespace(AbslSv(line.substr(end))));
  for (const Known& known : kCommands) {
    if (known.name != name) continue;
    if (known.operand == Operand::kRequired && operand.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(AbslSv(name), " needs ", known.operand_name));
    }
    if (known.operand == Operand::kNone && !operand.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(AbslSv(name), " takes nothing"));
    }
    return ChatCommand{known.verb, std::move(operand)};
  }
  return Unknown(name);
}

std::string MessageOf(std::string_view line) {
  return std::string(line.starts_with("//") ? line.substr(1) : line);
}

std::string ChatCommandHelp() {
  std::string text;
  for (const Known& known : kCommands) {
    absl::StrAppendFormat(&text, "  %-17s %s\n", absl::StrCat(AbslSv(known.name), " ", known.operand_name),
                          known.summary);
  }
  return text;
}

}  // namespace winnow
