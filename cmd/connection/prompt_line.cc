#include "cmd/connection/prompt_line.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace winnow {

PromptLine::PromptLine(ProgressLine& line, std::string hint)
    : hint_(std::move(hint)), ticking_(line, [this](std::chrono::duration<double> elapsed) { return Text(elapsed); }) {}

void PromptLine::Tell(const v1::GenerateResponse::PromptProgress& progress) {
  const std::lock_guard lock(mutex_);
  progress_ = progress;
}

std::string PromptLine::Text(std::chrono::duration<double> elapsed) {
  const std::lock_guard lock(mutex_);
  const std::string after = absl::StrCat(", ", ElapsedText(elapsed), hint_);
  if (!progress_) return absl::StrCat("waiting for the first token", after);
  return absl::StrCat(ProgressBar(progress_->computed_tokens(), progress_->prompt_tokens(), "prompt tokens"), after);
}

}  // namespace winnow
