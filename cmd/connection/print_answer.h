#pragma once
#include <cstdio>
#include <string>

#include "cmd/client/generation_client.h"
#include "cmd/terminal/progress_line.h"

namespace winnow {

// What came of an answer that was printed: its text as far as it came, also where it did not end well.
struct PrintedAnswer {
  std::string text;
  absl::StatusOr<GenerationResult> result;
};

// Asks `client` and writes the text of the answer to `out` as it comes, with a line feed behind it; until its first
// token the progress line says how far the prompt is, followed by `hint`. Where `out` is null nothing is written, and
// the progress line stays until the answer is whole.
PrintedAnswer PrintAnswer(GenerationClient& client, const v1::GenerateRequest& request, ProgressLine& progress,
                          const std::string& hint, std::FILE* out);

}  // namespace winnow
