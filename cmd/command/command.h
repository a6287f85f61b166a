#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/load.h"

namespace winnow {

using Arguments = std::vector<std::string>;

// How every command ends, for scripts.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,          // the command line is wrong: nothing was done
  kExitInterrupted = 130,  // by Ctrl-C, as shells report it
};

// The options of a command with their defaults, and the struct that they are members of.
struct DeclaredOptions {
  std::shared_ptr<void> owner;
  Fields fields;
};
template <class Options>
DeclaredOptions Declared() {
  auto options = std::make_shared<Options>();
  Fields fields = Fields::Of(*options);
  return {std::move(options), std::move(fields)};
}

// What stands behind the name of a command beside options, as far as a shell can complete it.
struct Operands {
  std::vector<std::string> (*first)() = nullptr;  // values of the first one
  bool files = false;                             // the others, or all
};

// A command of the program: all that --help, the shells' completion and docs/options.md say of it comes from here.
struct Command {
  const char* name;           // what is typed behind the program's name: "bench serve"
  const char* summary;        // a line for lists; empty: it is in none
  const char* synopsis = "";  // what follows the name
  const char* about = "";     // what else --help says, in whole lines
  Operands operands = {};
  Environment environment = Environment::kIgnored;
  DeclaredOptions (*options)() = nullptr;            // null: there are none
  int (*run)(const Arguments&) = nullptr;            // gets what follows the name; null for a group
  std::span<const Command* const> subcommands = {};  // of a group

  // "serve" of "bench serve".
  std::string_view last_name() const;
};

// The command of that last name, or null.
const Command* FindCommand(std::span<const Command* const> commands, std::string_view last_name);

// `; did you mean "up"?`, or nothing when no command is like `wanted`.
std::string CommandSuggestion(std::span<const Command* const> commands, std::string_view wanted);

// All that --help prints.
std::string HelpOf(const Command& command);

// Lines "name   summary" of the commands that are listed.
std::string ListOf(std::span<const Command* const> commands);

// Runs a command, or of a group the one that its first argument names.
int RunCommand(const Command& command, const Arguments& arguments);

}  // namespace winnow
