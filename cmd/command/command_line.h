#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cmd/command/command.h"
#include "common/base/status.h"

namespace winnow {

// Of commands that take a manifest: "-f FILE" is "--file FILE".
Arguments WithLongNames(Arguments arguments);

// Reads a command's options into `fields`, which are those of command.options. An exit code when the command is to end
// here: after --help, printed to stdout, or a wrong command line, one line on stderr. `positionals` null: there must be
// none.
std::optional<int> ParseCommandLine(const Command& command, const Arguments& arguments, const Fields& fields,
                                    std::vector<std::string>* positionals);

template <class Options>
std::optional<int> ParseCommandLine(const Command& command, const Arguments& arguments, Options& options,
                                    std::vector<std::string>* positionals = nullptr) {
  return ParseCommandLine(command, arguments, Fields::Of(options), positionals);
}

// Of a command without options.
struct NoOptions {
  void Declare(Fields&) {}
};

// Prints the one line that says why a command failed, behind what it has printed so far; returns `code`.
int Fail(const Command& command, const absl::Status& status, int code = kExitFailure);

}  // namespace winnow
