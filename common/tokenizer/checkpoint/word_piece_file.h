#pragma once
#include <string_view>

#include "common/base/status.h"
#include "common/tokenizer/checkpoint/tokenizer_config.h"
#include "common/tokenizer/tokenizer.h"

namespace winnow {

// BERT's `vocab.txt`: a token on each line, whose number from 0 is its id.
absl::StatusOr<TokenizerParts> ParseWordPieceVocabulary(std::string_view bytes, const TokenizerConfig& config);

}  // namespace winnow
