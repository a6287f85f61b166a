// winnow completion: scripts for shells.
#include "cmd/command/completion.h"

#include <cstdio>

#include "cmd/command/command_line.h"
#include "cmd/commands.h"

namespace winnow {
namespace {

constexpr char kCompletionAbout[] =
    "Prints a script that completes commands, options, their values and paths:\n\n"
    "  bash   source <(winnow completion bash), in ~/.bashrc\n"
    "  zsh    source <(winnow completion zsh), in ~/.zshrc behind compinit\n"
    "  fish   winnow completion fish >~/.config/fish/completions/winnow.fish\n";

struct Shell {
  const char* name;
  std::string (*script)(std::span<const Command* const>);
};
constexpr Shell kShells[] = {{"bash", BashCompletion}, {"zsh", ZshCompletion}, {"fish", FishCompletion}};

int CompletionMain(const Arguments& arguments) {
  NoOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine(kCompletionCommand, arguments, options, &words)) return *code;
  for (const Shell& shell : kShells) {
    if (words.size() != 1 || words.front() != shell.name) continue;
    std::fputs(shell.script(AllCommands()).c_str(), stdout);
    return kExitOk;
  }
  return Fail(kCompletionCommand, absl::InvalidArgumentError("name a shell: bash, zsh or fish"), kExitUsage);
}

std::vector<std::string> ShellNames() {
  std::vector<std::string> names;
  for (const Shell& shell : kShells) names.emplace_back(shell.name);
  return names;
}

}  // namespace

const Command kCompletionCommand = {.name = "completion",
                                    .summary = "print a script with which bash, zsh or fish completes command lines",
                                    .synopsis = "bash|zsh|fish",
                                    .about = kCompletionAbout,
                                    .operands = {.first = ShellNames},
                                    .run = CompletionMain};

}  // namespace winnow
