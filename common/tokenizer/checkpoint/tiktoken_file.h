#pragma once
#include <string_view>

#include "common/base/status.h"
#include "common/tokenizer/checkpoint/tokenizer_config.h"
#include "common/tokenizer/tokenizer.h"

namespace winnow {

// Whether a file's first line is one of tiktoken's: a token in base64, a space, its rank.
bool LooksLikeTiktoken(std::string_view bytes);

// A tiktoken file with the results of tiktoken to the id. The pattern that cuts texts into words is not in the file:
// it is `pat_str` or `pattern` of tokenizer_config.json, else that of the family of tokenizer_class (Qwen's and Kimi's,
// ChatGLM's), else Llama 3's, which is taken without a tokenizer_config.json. The special tokens are those of
// tokenizer_config.json, else the family's.
//
// Errors name the line of the file.
absl::StatusOr<TokenizerParts> ParseTiktoken(std::string_view bytes, const TokenizerConfig& config);

}  // namespace winnow
