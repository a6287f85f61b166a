#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/fields.h"

namespace winnow {

struct CommandLine {
  bool help = false;                     // --help or -h was given; nothing else was checked
  std::vector<std::string> positionals;  // arguments that are no options; everything after "--"
};

// Whether options may stand in the environment, too.
enum class Environment { kIgnored, kRead };

// "WINNOW_CACHE_MEMORY" for "cache-memory" and for "cache.memory".
std::string EnvironmentName(std::string_view option);

// Reads options from the command line: "--key=value", "--key value", "--flag" for booleans, and "--config FILE" (or
// --config=FILE), a YAML file whose nested maps are dotted names. Files are read first, then the environment, so that
// flags win over both wherever they stand. Every error is INVALID_ARGUMENT, names the key (and, from a file, the line)
// and, for an unknown key, the nearest known one; a file that cannot be read is NOT_FOUND. Variables that name no
// option are not looked at.
absl::StatusOr<CommandLine> LoadOptions(const Fields& fields, std::span<const std::string> arguments,
                                        Environment environment = Environment::kIgnored);

// Takes these options out of the process's environment, so that its children do not read them again. Before other
// threads exist.
void ForgetEnvironment(const Fields& fields);

// The YAML part of it. `source` stands for the file in messages.
absl::Status LoadYaml(const Fields& fields, const std::string& yaml, std::string_view source);

// All options with their values, in YAML that LoadYaml reads back.
std::string DumpYaml(const Fields& fields);

// One paragraph per option with its type and its present value as default.
std::string HelpText(const Fields& fields);

}  // namespace winnow
