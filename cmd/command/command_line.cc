#include "cmd/command/command_line.h"

#include <cstdio>

namespace winnow {

Arguments WithLongNames(Arguments arguments) {
  for (std::string& argument : arguments) {
    if (argument == "-f") argument = "--file";
  }
  return arguments;
}

std::optional<int> ParseCommandLine(const Command& command, const Arguments& arguments, const Fields& fields,
                                    std::vector<std::string>* positionals) {
  absl::StatusOr<CommandLine> line = LoadOptions(fields, arguments, command.environment);
  if (line.ok() && line->help) {
    std::fputs(HelpOf(command).c_str(), stdout);
    return kExitOk;
  }
  if (line.ok() && positionals == nullptr && !line->positionals.empty()) {
    line = absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", line->positionals.front(), "\""));
  }
  if (!line.ok()) {
    std::fprintf(stderr, "winnow %s: %s (`winnow %s --help` says more)\n", command.name,
                 std::string(line.status().message()).c_str(), command.name);
    return kExitUsage;
  }
  if (positionals != nullptr) *positionals = std::move(line->positionals);
  return std::nullopt;
}

int Fail(const Command& command, const absl::Status& status, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "winnow %s: %s\n", command.name, std::string(status.message()).c_str());
  return code;
}

}  // namespace winnow
