#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/tasks/task_random.h"

namespace winnow {

// A task before it is hidden in other text: facts, in the order in which they must appear, and one question.
struct TaskText {
  std::vector<std::string> facts;
  std::string question;
  std::string answer;
};

// The six tasks that the reference models were trained on, in the same words and with the same ranges:
//   needle       one of 1 to 32 six-digit codes (RULER, single and multi key)
//   multi_value  all values of a key in order (RULER, multi value)
//   variables    a chain of assignments (RULER, variable tracking)
//   walk         3 to 40 links through a shuffled ring, each node written out: every step needs another fact
//   running_sum  5 to 32 items added up, each partial sum written out
//   copy         a passage of the context, verbatim
std::span<const std::string_view> TaskNames();

// `passage` gives running text of the wanted length for `copy`; `chars` is the length of the whole prompt.
// INVALID_ARGUMENT lists the names there are.
absl::StatusOr<TaskText> MakeTask(std::string_view name, TaskRandom& random, int chars,
                                  const std::function<std::string(TaskRandom&, size_t)>& passage);

}  // namespace winnow
