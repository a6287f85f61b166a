#pragma once
#include <string>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/quality/answer_record.h"
#include "tools/bench/quality/spec_choice.h"
#include "tools/bench/tasks/task_prompt.h"

namespace winnow {

// Asks a running cluster over HTTP, greedily, with the selection of each specification per request, and compares texts.
// What the response does not say (key bytes, the distribution of masses) stays 0. Thread-safe.
class ServedAnswers {
 public:
  // `address`: IP and port of a router.
  explicit ServedAnswers(std::string address) : address_(std::move(address)) {}

  // UNAVAILABLE and the like name the prompt and what the server says.
  absl::StatusOr<AnswerRecord> Ask(const TaskPrompt& prompt, const SpecChoice& choice) const;

 private:
  const std::string address_;
};

}  // namespace winnow
