#pragma once
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "cmd/commands.h"
#include "common/config/load.h"

namespace winnow {

// LoadOptions reads it for every command.
inline constexpr char kConfigHelp[] =
    "  --config=FILE\n"
    "      YAML file of these options, without the dashes; a dotted name may be a nested map. Several are read in\n"
    "      order, and the command line wins.\n";
inline constexpr char kEnvironmentHelp[] =
    "\nEach option may stand in the environment: WINNOW_ and its name in capitals, '_' for '-' and '.'. The command "
    "line\n"
    "wins over the environment, that over files.\n";

// Reads a command's options. An exit code when the command is to end here: after --help (0), printed to stdout, or a
// wrong command line (2), one line on stderr. `positionals` null: there must be none.
template <class Options>
std::optional<int> ParseCommandLine(const char* command, std::string_view usage, const Arguments& arguments,
                                    Options& options, std::vector<std::string>* positionals = nullptr,
                                    Environment environment = Environment::kIgnored) {
  const Fields fields = Fields::Of(options);
  absl::StatusOr<CommandLine> line = LoadOptions(fields, arguments, environment);
  if (line.ok() && line->help) {
    const bool has_options = !fields.all().empty();
    std::printf("usage: winnow %s %.*s\n%s%s%s%s", command, static_cast<int>(usage.size()), usage.data(),
                has_options ? "\n" : "", HelpText(fields).c_str(), has_options ? kConfigHelp : "",
                environment == Environment::kRead ? kEnvironmentHelp : "");
    return 0;
  }
  if (line.ok() && positionals == nullptr && !line->positionals.empty()) {
    line = absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", line->positionals.front(), "\""));
  }
  if (!line.ok()) {
    std::fprintf(stderr, "winnow %s: %s (`winnow %s --help` says more)\n", command,
                 std::string(line.status().message()).c_str(), command);
    return 2;
  }
  if (positionals != nullptr) *positionals = std::move(line->positionals);
  return std::nullopt;
}

// Prints the one line that says why a command failed, behind what it has printed so far; returns `code`.
inline int Fail(const char* command, const absl::Status& status, int code = 1) {
  std::fflush(stdout);
  std::fprintf(stderr, "winnow %s: %s\n", command, std::string(status.message()).c_str());
  return code;
}

}  // namespace winnow
