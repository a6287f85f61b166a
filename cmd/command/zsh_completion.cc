// A function of zsh for each command.
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cmd/command/completion.h"
#include "cmd/command/completion_words.h"

namespace winnow {
namespace {

// "_winnow_bench_serve".
std::string FunctionOf(std::string_view name) {
  return absl::StrCat("_winnow_", absl::StrReplaceAll(AbslSv(name), {{" ", "_"}, {"-", "_"}}));
}

// In the words of _arguments, where brackets and colons mean something.
std::string ZshText(std::string_view text) {
  return absl::StrReplaceAll(AbslSv(text), {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshAction(const Field& field) {
  if (field.kind == FieldKind::kFile) return "_files";
  if (field.kind == FieldKind::kFolder) return "_files -/";
  const std::vector<std::string> values = ValuesOf(field);
  return values.empty() ? " " : absl::StrCat("(", absl::StrJoin(values, " "), ")");
}

std::string ZshOption(const Field& field) {
  const std::string about = ZshText(FirstSentence(field.help));
  if (field.is_bool) return absl::StrCat("--", field.name, "[", about, "]");
  return absl::StrCat("--", field.name, "=[", about, "]:", ZshText(field.type), ":", ZshAction(field));
}

void AddZshGroup(std::string& text, const std::string& function, std::span<const Command* const> commands) {
  absl::StrAppend(&text, function, "() {\n  local -a commands=(\n");
  for (const Command* command : commands) {
    if (*command->summary == '\0') continue;
    absl::StrAppend(&text, "    ",
                    ShellQuoted(absl::StrCat(AbslSv(command->last_name()), ":",
                                             absl::StrReplaceAll(command->summary, {{":", "\\:"}}))),
                    "\n");
  }
  absl::StrAppend(&text,
                  "  )\n"
                  "  local context state state_descr line\n"
                  "  typeset -A opt_args\n"
                  "  _arguments -C '1: :->command' '*:: :->rest'\n"
                  "  case $state in\n"
                  "    command) _describe command commands ;;\n"
                  "    rest)\n"
                  "      case $line[1] in\n");
  for (const Command* command : commands) {
    absl::StrAppend(&text, "        ", AbslSv(command->last_name()), ") ", FunctionOf(command->name), " ;;\n");
  }
  absl::StrAppend(&text, "      esac ;;\n  esac\n}\n");
}

void AddZshCommand(std::string& text, const Command& command) {
  DeclaredOptions owner;
  absl::StrAppend(&text, FunctionOf(command.name), "() {\n  _arguments -S '--help[list the options]'");
  for (const Field& field : OptionsOf(command, owner))
    absl::StrAppend(&text, " \\\n    ", ShellQuoted(ZshOption(field)));
  if (command.operands.first != nullptr) {
    absl::StrAppend(&text, " \\\n    ",
                    ShellQuoted(absl::StrCat("1: :(", absl::StrJoin(command.operands.first(), " "), ")")));
  }
  if (command.operands.files) absl::StrAppend(&text, " \\\n    '*: :_files'");
  absl::StrAppend(&text, "\n}\n");
}

}  // namespace

std::string ZshCompletion(std::span<const Command* const> commands) {
  std::string text =
      "#compdef winnow\n"
      "# Completion of winnow in zsh: winnow completion zsh >\"${fpath[1]}/_winnow\", or source <(winnow completion "
      "zsh)\n";
  ForEachCommand(commands, [&](const Command& command) {
    if (command.subcommands.empty()) {
      AddZshCommand(text, command);
    } else {
      AddZshGroup(text, FunctionOf(command.name), command.subcommands);
    }
  });
  AddZshGroup(text, "_winnow", commands);
  return absl::StrCat(text,
                      "if [ \"$funcstack[1]\" = \"_winnow\" ]; then\n  _winnow \"$@\"\nelse\n  compdef _winnow "
                      "winnow\nfi\n");
}

}  // namespace winnow
