#pragma once
#include <string>
#include <vector>

#include "common/base/status.h"

namespace winnow::chaos {

// The path of a program of the system, such as "ip"; NOT_FOUND names it.
absl::StatusOr<std::string> FindTool(const std::string& name);

// Runs a program of the system and returns what it printed. FAILED_PRECONDITION has its last words.
absl::StatusOr<std::string> RunTool(const std::vector<std::string>& arguments);

}  // namespace winnow::chaos
