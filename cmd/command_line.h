#pragma once
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "cmd/commands.h"
#include "common/config/load.h"

namespace winnow {

// Reads a command's options. An exit code when the command is to end here: after --help (0), printed to stdout, or a
// wrong command line (2), one line on stderr. `positionals` null: there must be none.
template <class Options>
std::optional<int> ParseCommandLine(const char* command, std::string_view usage, const Arguments& arguments,
                                    Options& options, std::vector<std::string>* positionals = nullptr) {
  const Fields fields = Fields::Of(options);
  absl::StatusOr<CommandLine> line = LoadOptions(fields, arguments);
  if (line.ok() && line->help) {
    std::printf("usage: winnow %s %.*s\n\n%s", command, static_cast<int>(usage.size()), usage.data(),
                HelpText(fields).c_str());
    return 0;
  }
  if (line.ok() && positionals == nullptr && !line->positionals.empty()) {
    line = absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", line->positionals.front(), "\""));
  }
  if (!line.ok()) {
    std::fprintf(stderr, "winnow %s: %s\n", command, std::string(line.status().message()).c_str());
    return 2;
  }
  if (positionals != nullptr) *positionals = std::move(line->positionals);
  return std::nullopt;
}

// Prints the one line that says why a command failed; returns `code`.
inline int Fail(const char* command, const absl::Status& status, int code = 1) {
  std::fprintf(stderr, "winnow %s: %s\n", command, std::string(status.message()).c_str());
  return code;
}

}  // namespace winnow
