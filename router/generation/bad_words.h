#pragma once
#include <span>
#include <string>

#include "common/base/status.h"
#include "router/generation/text_codec.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow {

// Adds the tokens of texts that no output may hold: as the tokenizer writes them at the start of a text and behind a
// space. The same letters in other tokens are not found. INVALID_ARGUMENT when there are too many or one is empty.
absl::Status AddBadWords(std::span<const std::string> words, const TextCodec& codec, v1::SamplingParams* sampling);

}  // namespace winnow
