#pragma once
#include <string>

namespace winnow {

// One long-context question with its exact answer, as a line of a prompt file.
struct TaskPrompt {
  std::string id;    // "needle-12000-3"
  std::string task;  // one of TaskNames(), or whatever a file says
  int chars = 0;     // length that the prompt was made for; groups results by context
  std::string prompt = {};
  std::string answer = {};

  friend bool operator==(const TaskPrompt&, const TaskPrompt&) = default;
};

}  // namespace winnow
