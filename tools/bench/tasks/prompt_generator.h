#pragma once
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/tasks/filler_text.h"
#include "tools/bench/tasks/task_prompt.h"
#include "tools/bench/tasks/task_text.h"

namespace winnow {

// Hides a task in filler text: facts between random lines, in their order, then the question. About `chars` long,
// question and answer included; facts that are longer by themselves stay without filler.
std::string ComposePrompt(TaskRandom& random, const FillerText& filler, const TaskText& task, int chars);

struct PromptPlan {
  std::vector<std::string> tasks;
  std::vector<int> chars;
  int count = 1;  // of each task and length
  uint64_t seed = 1;
};

// Every prompt of the plan, by task, length and number. A prompt depends on seed, task, length, number and filler
// alone, so that a longer plan begins with a shorter one's prompts.
absl::StatusOr<std::vector<TaskPrompt>> GeneratePrompts(const PromptPlan& plan, const FillerText& filler);

}  // namespace winnow
