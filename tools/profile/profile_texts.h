#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "router/generation/model_text.h"

namespace winnow {

// What heads are measured on.
struct ProfileText {
  std::string name;              // "docs/api.md", "prompts.jsonl:3"
  std::vector<uint32_t> tokens;  // without the token that ends an answer, from which nothing is decoded
  uint32_t answer_begins = 0;    // first position of the answer; 0: a plain text, which may be cut
};

// A plain text file. INVALID_ARGUMENT and NOT_FOUND name it.
absl::StatusOr<ProfileText> ReadTextFile(const std::string& path, const ModelText& text);

// A JSONL file of objects with "prompt" and, if there is one, "answer": each is a user's message under the model's chat
// template and, after it, what the model would say. INVALID_ARGUMENT names file and line.
absl::StatusOr<std::vector<ProfileText>> ReadPromptFile(const std::string& path, const ModelText& text);

}  // namespace winnow
