#include "cmd/command/command.h"

#include <cstdio>

#include "absl/strings/str_format.h"
#include "common/base/nearest_name.h"

namespace winnow {
namespace {

// LoadOptions reads it for every command that has options.
constexpr char kConfigHelp[] =
    "  --config=FILE\n"
    "      YAML file of these options, without the dashes; a dotted name may be a nested map. Several are read in\n"
    "      order, and the command line wins.\n";
constexpr char kEnvironmentHelp[] =
    "\nEach option may stand in the environment: WINNOW_ and its name in capitals, '_' for '-' and '.'. The command "
    "line\n"
    "wins over the environment, that over files.\n";

bool AsksForHelp(std::string_view argument) {
  return argument == "--help" || argument == "-h" || argument == "help";
}

int RunGroup(const Command& group, const Arguments& arguments) {
  if (arguments.empty()) {
    std::fputs(HelpOf(group).c_str(), stderr);
    return kExitUsage;
  }
  const std::string& name = arguments.front();
  if (AsksForHelp(name)) {
    std::fputs(HelpOf(group).c_str(), stdout);
    return kExitOk;
  }
  if (const Command* command = FindCommand(group.subcommands, name)) {
    return RunCommand(*command, Arguments(arguments.begin() + 1, arguments.end()));
  }
  std::string all;
  for (const Command* each : group.subcommands)
    absl::StrAppend(&all, all.empty() ? "" : ", ", each->last_name().data());
  std::fprintf(stderr, "winnow %s: unknown command \"%s\"%s; there are: %s\n", group.name, name.c_str(),
               CommandSuggestion(group.subcommands, name).c_str(), all.c_str());
  return kExitUsage;
}

}  // namespace

std::string_view Command::last_name() const {
  const std::string_view all = name;
  const size_t space = all.rfind(' ');
  return space == std::string_view::npos ? all : all.substr(space + 1);
}

const Command* FindCommand(std::span<const Command* const> commands, std::string_view last_name) {
  for (const Command* command : commands) {
    if (command->last_name() == last_name) return command;
  }
  return nullptr;
}

std::string CommandSuggestion(std::span<const Command* const> commands, std::string_view wanted) {
  std::vector<std::string_view> names;
  for (const Command* command : commands) names.push_back(command->last_name());
  const std::string_view nearest = NearestName(wanted, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean \"", AbslSv(nearest), "\"?");
}

std::string ListOf(std::span<const Command* const> commands) {
  std::string text;
  for (const Command* command : commands) {
    if (*command->summary == '\0') continue;
    absl::StrAppendFormat(&text, "  %-15s %s\n", AbslSv(command->last_name()), command->summary);
  }
  return text;
}

std::string HelpOf(const Command& command) {
  std::string text =
      absl::StrCat("usage: winnow ", command.name, *command.synopsis == '\0' ? "" : " ", command.synopsis, "\n");
  if (!command.subcommands.empty()) {
    absl::StrAppend(&text, "\n", ListOf(command.subcommands), "\n`winnow ", command.name,
                    " COMMAND --help` lists a command's options.\n");
  }
  if (*command.about != '\0') absl::StrAppend(&text, "\n", command.about);
  if (command.options != nullptr) absl::StrAppend(&text, "\n", HelpText(command.options().fields), kConfigHelp);
  if (command.environment == Environment::kRead) absl::StrAppend(&text, kEnvironmentHelp);
  return text;
}

int RunCommand(const Command& command, const Arguments& arguments) {
  return command.subcommands.empty() ? command.run(arguments) : RunGroup(command, arguments);
}

}  // namespace winnow
