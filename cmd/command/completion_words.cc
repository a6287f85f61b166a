#include "cmd/command/completion_words.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cmd/command/completion.h"

namespace winnow {

void ForEachCommand(std::span<const Command* const> commands, const std::function<void(const Command&)>& visit) {
  for (const Command* command : commands) {
    visit(*command);
    ForEachCommand(command->subcommands, visit);
  }
}

std::vector<Field> OptionsOf(const Command& command, DeclaredOptions& owner) {
  if (command.options == nullptr) return {};
  owner = command.options();
  return owner.fields.all();
}

std::string NamesOf(std::span<const Command* const> commands) {
  std::vector<std::string> names;
  for (const Command* command : commands) {
    if (*command->summary != '\0') names.emplace_back(command->last_name());
  }
  return absl::StrJoin(names, " ");
}

std::vector<std::string> ValuesOf(const Field& field) {
  if (field.is_bool) return {"true", "false"};
  return field.choices;
}

std::string ShellQuoted(std::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(AbslSv(text), {{"'", "'\\''"}}), "'");
}

std::string FirstSentence(std::string_view help) {
  size_t end = help.find(". ");
  if (end == std::string_view::npos) end = help.ends_with('.') ? help.size() - 1 : help.size();
  return std::string(help.substr(0, end));
}

}  // namespace winnow
