#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/command/command.h"

namespace winnow {

// What the completion of every shell says.

// Every command, groups before their members.
void ForEachCommand(std::span<const Command* const> commands, const std::function<void(const Command&)>& visit);

// The options of a command, which `owner` keeps.
std::vector<Field> OptionsOf(const Command& command, DeclaredOptions& owner);

// Last names of the commands that are listed, with blanks between.
std::string NamesOf(std::span<const Command* const> commands);

// What an option may be, where that is a list.
std::vector<std::string> ValuesOf(const Field& field);

// In single quotes of a POSIX shell.
std::string ShellQuoted(std::string_view text);

}  // namespace winnow
