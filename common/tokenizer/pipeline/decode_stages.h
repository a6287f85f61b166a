#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "common/tokenizer/split.h"

namespace winnow {

// One step of the chain that turns tokens into text. A stage is fed tokens, or parts of the one token that everything
// has been joined to; it passes on what no later input can change and keeps the rest.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void Push(std::string_view token) = 0;
  // No more input: passes on what was kept. Called once.
  virtual void Finish() = 0;
};

// The stages, by their names in tokenizer.json. `next`, and what is passed by reference or view, must outlive them.
// `fused`: the input is one token in parts. Where a stage cannot take it so, it waits for the end.
std::unique_ptr<DecodeStage> NewByteLevelStage(bool fused, DecodeStage* next);
std::unique_ptr<DecodeStage> NewByteFallbackStage(bool fused, DecodeStage* next);
// Replaces matches by `content`. Null where that changes nothing.
std::unique_ptr<DecodeStage> NewReplaceStage(const TextPattern& pattern, std::string_view content, bool fused,
                                             DecodeStage* next);
// Removes at most `start` and `stop` of a character at a token's ends.
std::unique_ptr<DecodeStage> NewStripStage(std::string_view character, size_t start, size_t stop, bool fused,
                                           DecodeStage* next);
// Turns marks into spaces; those of the first token vanish with `drop_first`.
std::unique_ptr<DecodeStage> NewMetaspaceStage(std::string_view mark, bool drop_first, bool fused, DecodeStage* next);
// Joins words by spaces; a token that starts with `prefix` goes on with the word before it. `cleanup` takes back the
// spaces before English punctuation.
std::unique_ptr<DecodeStage> NewWordPieceStage(std::string_view prefix, bool cleanup, bool fused, DecodeStage* next);
// Turns marks at the ends of words into spaces; `mark` is not empty.
std::unique_ptr<DecodeStage> NewWordEndStage(std::string_view mark, bool fused, DecodeStage* next);
std::unique_ptr<DecodeStage> NewJoinWithSpacesStage(DecodeStage* next);

// The byte of a token "<0xHH>".
std::optional<char> ByteTokenValue(std::string_view token);

}  // namespace winnow
