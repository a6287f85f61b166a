// A line for each option, with the command that it belongs to.
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cmd/command/completion.h"
#include "cmd/command/completion_words.h"

namespace winnow {
namespace {

constexpr char kFishBegin[] = R"(# Completion of winnow in fish: winnow completion fish | source
# The words behind "winnow" that are no options, up to the one being typed.
function __winnow_words
  for word in (commandline -opc)[2..]
    string match -q -- '-*' $word; or echo $word
  end
end
# Whether what is typed belongs to that command.
function __winnow_in
  set -l words (__winnow_words)
  test (count $words) -ge (count $argv); or return 1
  set -l beginning $words[1..(count $argv)]
  test "$beginning" = "$argv"
end
# Whether the next word is the first behind that command.
function __winnow_after
  set -l words (__winnow_words)
  test "$words" = "$argv"
end
complete -c winnow -f
)";

std::string FishQuoted(std::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(AbslSv(text), {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

std::string FishLine(std::string_view condition, std::string_view what) {
  return absl::StrCat("complete -c winnow -n ", FishQuoted(condition), " ", AbslSv(what), "\n");
}

void AddFishNames(std::string& text, std::string_view group, std::span<const Command* const> commands) {
  for (const Command* command : commands) {
    if (*command->summary == '\0') continue;
    absl::StrAppend(&text,
                    FishLine(absl::StrCat("__winnow_after ", AbslSv(group)),
                             absl::StrCat("-a ", AbslSv(command->last_name()), " -d ", FishQuoted(command->summary))));
  }
}

std::string FishOption(const Field& field) {
  std::string text = absl::StrCat("-l ", field.name);
  if (field.kind == FieldKind::kFile || field.kind == FieldKind::kFolder) {
    absl::StrAppend(&text, field.kind == FieldKind::kFile ? " -r -F" : " -x -a '(__fish_complete_directories)'");
  } else if (!field.is_bool) {
    absl::StrAppend(&text, " -x");
    if (!field.choices.empty()) absl::StrAppend(&text, " -a ", FishQuoted(absl::StrJoin(field.choices, " ")));
  }
  return absl::StrCat(text, " -d ", FishQuoted(FirstSentence(field.help)));
}

}  // namespace

std::string FishCompletion(std::span<const Command* const> commands) {
  std::string text = kFishBegin;
  AddFishNames(text, "", commands);
  ForEachCommand(commands, [&](const Command& command) {
    AddFishNames(text, command.name, command.subcommands);
    const std::string in = absl::StrCat("__winnow_in ", command.name);
    DeclaredOptions owner;
    for (const Field& field : OptionsOf(command, owner)) absl::StrAppend(&text, FishLine(in, FishOption(field)));
    if (command.operands.first != nullptr) {
      absl::StrAppend(&text, FishLine(absl::StrCat("__winnow_after ", command.name),
                                      absl::StrCat("-a ", FishQuoted(absl::StrJoin(command.operands.first(), " ")))));
    }
    if (command.operands.files) absl::StrAppend(&text, FishLine(in, "-F"));
  });
  return text;
}

}  // namespace winnow
