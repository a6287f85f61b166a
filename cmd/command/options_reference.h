#pragma once
#include <span>
#include <string>

#include "cmd/command/command.h"

namespace winnow {

// A Markdown document of all commands that are listed, with their options: docs/options.md.
std::string OptionsReference(std::span<const Command* const> commands);

}  // namespace winnow
