// Tables as functions of bash, and one function that walks the words.
#include "absl/strings/str_join.h"
#include "cmd/command/completion.h"
#include "cmd/command/completion_words.h"

namespace winnow {
namespace {

constexpr std::string_view kHelpOption = "--help";

constexpr char kBashBegin[] =
    "# Completion of winnow in bash: source <(winnow completion bash)\n"
    "# What is behind a command and an option; @file and @dir stand for paths.\n";

constexpr char kBashEnd[] = R"(
_winnow_takes_value() {
  local option
  for option in $(_winnow_options "$1"); do
    [[ $option == "$2=" ]] && return 0
  done
  return 1
}

_winnow_reply() {
  local current=$1 word
  shift
  COMPREPLY=()
  for word in "$@"; do
    case $word in
      @file) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$current")) ;;
      @dir) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -d -- "$current")) ;;
      *) [[ $word == "$current"* ]] && COMPREPLY+=("$word") ;;
    esac
  done
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}

_winnow() {
  local current=${COMP_WORDS[COMP_CWORD]} command="" operands=0 i=1 word next
  # Words end at "=", too: "--option", "=", "value".
  while ((i < COMP_CWORD)); do
    word=${COMP_WORDS[i]} next=${COMP_WORDS[i + 1]}
    if [[ $word == --* ]]; then
      if [[ $next == "=" ]]; then
        if ((i + 1 == COMP_CWORD)); then
          _winnow_reply "" $(_winnow_values "$command" "$word")
          return
        elif ((i + 2 == COMP_CWORD)); then
          _winnow_reply "$current" $(_winnow_values "$command" "$word")
          return
        fi
        ((i += 2))
      elif _winnow_takes_value "$command" "$word"; then
        if ((i + 1 == COMP_CWORD)); then
          _winnow_reply "$current" $(_winnow_values "$command" "$word")
          return
        fi
        ((i += 1))
      fi
    elif [[ " $(_winnow_commands "$command") " == *" $word "* ]]; then
      command=${command:+$command }$word
    else
      ((operands += 1))
    fi
    ((i += 1))
  done
  if [[ $current == -* ]]; then
    _winnow_reply "$current" $(_winnow_options "$command")
  else
    _winnow_reply "$current" $(_winnow_commands "$command") $(_winnow_operands "$command" $operands)
  fi
}
complete -F _winnow winnow
)";

void AddCase(std::string& text, std::string_view pattern, const std::string& words) {
  if (!words.empty()) absl::StrAppend(&text, "    ", ShellQuoted(pattern), ") echo ", ShellQuoted(words), " ;;\n");
}

std::string CaseFunction(std::string_view name, std::string_view subject, const std::string& cases) {
  return absl::StrCat(AbslSv(name), "() {\n  case ", AbslSv(subject), " in\n", cases, "  esac\n}\n");
}

std::string PathWord(const Field& field) {
  if (field.kind == FieldKind::kFile) return "@file";
  if (field.kind == FieldKind::kFolder) return "@dir";
  return absl::StrJoin(ValuesOf(field), " ");
}

}  // namespace

std::string BashCompletion(std::span<const Command* const> commands) {
  std::string names, options, values, operands;
  AddCase(names, "", NamesOf(commands));
  AddCase(options, "", std::string(kHelpOption));
  ForEachCommand(commands, [&](const Command& command) {
    AddCase(names, command.name, NamesOf(command.subcommands));
    std::string of_command(kHelpOption);
    DeclaredOptions owner;
    for (const Field& field : OptionsOf(command, owner)) {
      absl::StrAppend(&of_command, " --", field.name, field.is_bool ? "" : "=");
      AddCase(values, absl::StrCat(command.name, " --", field.name), PathWord(field));
    }
    AddCase(options, command.name, of_command);
    if (command.operands.first != nullptr) {
      AddCase(operands, absl::StrCat(command.name, " 0"), absl::StrJoin(command.operands.first(), " "));
    }
    if (command.operands.files) {
      const bool others = command.operands.first != nullptr;
      // A pattern of the shell, outside of the quotes.
      absl::StrAppend(&operands, "    ", ShellQuoted(absl::StrCat(command.name, " ")), others ? "[1-9]*" : "*",
                      ") echo @file ;;\n");
    }
  });
  return absl::StrCat(kBashBegin, CaseFunction("_winnow_commands", "$1", names),
                      CaseFunction("_winnow_options", "$1", options),
                      CaseFunction("_winnow_values", "\"$1 $2\"", values),
                      CaseFunction("_winnow_operands", "\"$1 $2\"", operands), kBashEnd);
}

}  // namespace winnow
