#pragma once
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/tokenizer/checkpoint/tokenizer_config.h"
#include "common/tokenizer/tokenizer.h"

namespace winnow {

// A SentencePiece `tokenizer.model`, BPE or unigram, with the results of SentencePiece to the id. Control pieces are
// special tokens whose text in an input stands for them, as in transformers, and tokenizer_config.json says what is
// put around a text; `legacy` false: only the start of an input gets SentencePiece's leading space, not every part
// behind a special token.
//
// The file is read here and not by libsentencepiece, which knows nothing of added tokens and tokenizer.json, of whose
// Unigram models it has the other half, and which trusts the tables in the file.
absl::StatusOr<TokenizerParts> ParseSentencePiece(std::string_view bytes, const TokenizerConfig& config);

}  // namespace winnow
