#pragma once
#include <mutex>
#include <optional>
#include <string>

#include "cmd/terminal/progress_line.h"
#include "winnow/v1/generation.pb.h"

namespace winnow {

// What a terminal shows until the first token of an answer: how far its prompt is, once the server has said so, and how
// long it has been. `hint` follows it. Any thread.
class PromptLine {
 public:
  PromptLine(ProgressLine& line, std::string hint);

  void Tell(const v1::GenerateResponse::PromptProgress& progress);

 private:
  std::string Text(std::chrono::duration<double> elapsed);

  const std::string hint_;
  std::mutex mutex_;
  std::optional<v1::GenerateResponse::PromptProgress> progress_;  // guarded by mutex_
  const TickingLine ticking_;                                     // last: its thread reads the others
};

}  // namespace winnow
