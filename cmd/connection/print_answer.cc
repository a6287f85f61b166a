#include "cmd/connection/print_answer.h"

#include <optional>
#include <string_view>

#include "cmd/connection/prompt_line.h"

namespace winnow {

PrintedAnswer PrintAnswer(GenerationClient& client, const v1::GenerateRequest& request, ProgressLine& progress,
                          const std::string& hint, std::FILE* out) {
  std::string all;
  std::optional<PromptLine> waiting;
  waiting.emplace(progress, hint);
  const auto on_text = [&](std::string_view text) {
    all += text;
    if (out == nullptr) return;
    waiting.reset();
    std::fwrite(text.data(), 1, text.size(), out);
    std::fflush(out);
  };
  const auto on_prompt = [&](const v1::GenerateResponse::PromptProgress& told) {
    if (waiting) waiting->Tell(told);
  };
  absl::StatusOr<GenerationResult> result = client.Generate(request, on_text, on_prompt);
  waiting.reset();
  if (out != nullptr && (!all.empty() || result.ok())) {
    std::fputc('\n', out);
    std::fflush(out);
  }
  return {.text = std::move(all), .result = std::move(result)};
}

}  // namespace winnow
