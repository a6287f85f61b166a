#pragma once
#include <span>
#include <string>

#include "cmd/command/command.h"

namespace winnow {

// Scripts with which a shell completes commands, options, their values and paths. They hold all they say: a script
// belongs to the program that printed it.
std::string BashCompletion(std::span<const Command* const> commands);
std::string ZshCompletion(std::span<const Command* const> commands);
std::string FishCompletion(std::span<const Command* const> commands);

// The first sentence of an option's help, without its full stop.
std::string FirstSentence(std::string_view help);

}  // namespace winnow
