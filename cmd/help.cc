// winnow help and winnow version.
#include "cmd/help.h"

#include <cstdio>

#include "cmd/command/command_line.h"
#include "cmd/command/options_reference.h"
#include "cmd/commands.h"
#include "common/metrics/version.h"

namespace winnow {
namespace {

constexpr char kExitCodes[] =
    "Exit codes: 0 done, 1 failed, 2 the command line is wrong, 130 interrupted. Results go to stdout, all else to "
    "stderr.\n";

struct HelpOptions {
  bool markdown = false;

  void Declare(Fields& fields) {
    fields.Bool("markdown", &markdown, "Print all commands with their options as Markdown: docs/options.md.");
  }
};

int HelpMain(const Arguments& arguments) {
  HelpOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine(kHelpCommand, arguments, options, &words)) return *code;
  if (options.markdown) {
    std::fputs(OptionsReference(AllCommands()).c_str(), stdout);
    return kExitOk;
  }
  std::span<const Command* const> commands = AllCommands();
  const Command* found = nullptr;
  for (const std::string& word : words) {
    const Command* next = FindCommand(commands, word);
    if (next == nullptr) {
      std::fprintf(stderr, "%s\n", UnknownCommand(commands, word).c_str());
      return kExitUsage;
    }
    found = next;
    commands = next->subcommands;
  }
  std::fputs(found == nullptr ? ProgramHelp().c_str() : HelpOf(*found).c_str(), stdout);
  return kExitOk;
}

std::vector<std::string> CommandNames() {
  std::vector<std::string> names;
  for (const Command* command : AllCommands()) {
    if (*command->summary != '\0') names.emplace_back(command->name);
  }
  return names;
}

int VersionMain(const Arguments& arguments) {
  NoOptions options;
  if (const auto code = ParseCommandLine(kVersionCommand, arguments, options)) return *code;
  std::printf("winnow %s\n", Version().data());
  return kExitOk;
}

}  // namespace

std::string ProgramHelp() {
  return absl::StrCat(
      "winnow serves long-context language models with the KV cache in processes of its own.\n\n"
      "usage: winnow COMMAND [--option=value ...]\n\n",
      ListOf(AllCommands()), "\n`winnow COMMAND --help` lists a command's options.\n", kExitCodes);
}

std::string UnknownCommand(std::span<const Command* const> commands, std::string_view name) {
  return absl::StrCat("winnow: unknown command \"", AbslSv(name), "\"", CommandSuggestion(commands, name),
                      "; `winnow help` lists the commands");
}

const Command kHelpCommand = {.name = "help",
                              .summary = "say what a command does and which options it has",
                              .synopsis = "[COMMAND] [--markdown]",
                              .operands = {.first = CommandNames},
                              .options = Declared<HelpOptions>,
                              .run = HelpMain};
const Command kVersionCommand = {.name = "version", .summary = "print the version", .run = VersionMain};

}  // namespace winnow
