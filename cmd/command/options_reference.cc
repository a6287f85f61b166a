#include "cmd/command/options_reference.h"

#include "absl/strings/str_replace.h"

namespace winnow {
namespace {

constexpr char kBegin[] =
    "# Options\n\n"
    "Every command with its options, as `winnow help --markdown` prints them; `winnow COMMAND --help` says the same of "
    "one.\n"
    "Of each command also `--config=FILE`: a YAML file of its options, without the dashes. Commands that read the "
    "environment\n"
    "take each option from `WINNOW_` and its name in capitals, with `_` for `-` and `.`: `WINNOW_SERVER` is "
    "`--server`. The\n"
    "command line wins over the environment, that over files.\n";

// In a cell of a table, where bars end the cell.
std::string Cell(std::string_view text) {
  return absl::StrReplaceAll(AbslSv(text), {{"|", "\\|"}, {"\n", " "}});
}

void Add(std::string& text, const Command& command, std::string_view heading) {
  absl::StrAppend(&text, "\n", AbslSv(heading), " winnow ", command.name, "\n\n");
  absl::StrAppend(&text, "    winnow ", command.name, *command.synopsis == '\0' ? "" : " ", command.synopsis, "\n\n");
  absl::StrAppend(&text, "To ", command.summary, ".",
                  command.environment == Environment::kRead ? " It reads the environment.\n" : "\n");
  if (*command.about != '\0') absl::StrAppend(&text, "\n", command.about);
  if (command.options != nullptr) {
    absl::StrAppend(&text, "\n| option | value | default | |\n|---|---|---|---|\n");
    const DeclaredOptions options = command.options();
    for (const Field& field : options.fields.all()) {
      const std::string value = field.format();
      absl::StrAppend(&text, "| `--", field.name, "` | ", Cell(field.type), " | ",
                      value.empty() ? "" : absl::StrCat("`", Cell(value), "`"), " | ", Cell(field.help), " |\n");
    }
  }
  for (const Command* subcommand : command.subcommands) Add(text, *subcommand, "###");
}

}  // namespace

std::string OptionsReference(std::span<const Command* const> commands) {
  std::string text = kBegin;
  for (const Command* command : commands) {
    if (*command->summary != '\0') Add(text, *command, "##");
  }
  return text;
}

}  // namespace winnow
