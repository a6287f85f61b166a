#pragma once
#include <span>
#include <string>
#include <string_view>

#include "cmd/command/command.h"

namespace winnow {

// What `winnow help` prints: all commands.
std::string ProgramHelp();

// The line for a name that is none of the commands.
std::string UnknownCommand(std::span<const Command* const> commands, std::string_view name);

}  // namespace winnow
