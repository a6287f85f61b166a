#pragma once
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/tokenizer/tokenizer.h"

namespace winnow {

// The file that a model directory has its tokenizer in: tokenizer.json, else a SentencePiece model (tokenizer.model and
// other usual names), else a tiktoken file (*.tiktoken, tiktoken.model, tokenizer.model), else BERT's vocab.txt. Absent
// when there is none.
std::optional<std::string> FindTokenizerFile(const std::string& model_dir);

// The tokenizer of a model directory; null when it has none. Errors name the file and what is wrong there.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& model_dir);

}  // namespace winnow
