#pragma once
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/tasks/task_prompt.h"

namespace winnow {

// Prompt files: one JSON object a line with `id`, `task`, `chars`, `prompt` and `answer`; other fields are ignored.
// INVALID_ARGUMENT and NOT_FOUND name file and line.
absl::StatusOr<std::vector<TaskPrompt>> ReadPrompts(const std::string& file);
absl::StatusOr<std::vector<TaskPrompt>> ParsePrompts(std::istream& in, std::string_view file);

absl::Status WritePrompts(const std::string& file, const std::vector<TaskPrompt>& prompts);
std::string PromptLine(const TaskPrompt& prompt);  // without line end

}  // namespace winnow
