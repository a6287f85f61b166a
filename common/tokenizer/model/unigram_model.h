#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/model/byte_trie.h"
#include "common/tokenizer/model/token_model.h"
#include "common/tokenizer/model/vocabulary.h"

namespace winnow {

// A unigram language model: of all ways to cut a word into pieces, the one whose scores add up to the most (Viterbi
// over a trie, O(length × longest piece)). A character that no piece has costs more than any piece; a run of them
// becomes the bytes' tokens or one unknown token.
class UnigramModel final : public TokenModel {
 public:
  struct Piece {
    std::string_view text;
    double score = 0;
    bool in_text = true;        // found in texts; control tokens are not
    bool user_defined = false;  // taken wherever it occurs
    bool sets_range = true;     // its score counts for the lowest and highest
  };
  // Which program's results to give where sums of scores nearly tie.
  enum class Arithmetic {
    kTokenizers,     // the `tokenizers` library: sums in double
    kSentencePiece,  // SentencePiece: sums in float, differences in double
  };
  struct Options {
    std::optional<uint32_t> unk_id;  // below the number of pieces
    bool byte_fallback = false;
    Arithmetic arithmetic = Arithmetic::kTokenizers;
  };

  // The index of a piece is its id. There are at most Vocabulary::kMaxId pieces.
  UnigramModel(const std::vector<Piece>& pieces, const Options& options);
  // The `model` of tokenizer.json, type Unigram.
  static absl::StatusOr<std::unique_ptr<UnigramModel>> Parse(const JsonNode& node);

  absl::Status EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const override;
  std::optional<uint32_t> TokenId(std::string_view token) const override { return vocabulary_.TokenId(token); }
  std::optional<std::string_view> Token(uint32_t id) const override { return vocabulary_.Token(id); }
  uint32_t IdEnd() const override { return vocabulary_.IdEnd(); }
  size_t LongestTokenCharacters() const override { return vocabulary_.LongestTokenCharacters(); }
  bool KnowsEveryCharacter() const override { return options_.byte_fallback && vocabulary_.HasAllByteTokens(); }
  bool KnowsByteLevelAlphabet() const override { return false; }

 private:
  // A piece of the best way to cut a text: where it begins and its id, kUnknown where no piece fits.
  struct Step {
    uint32_t begin;
    uint32_t id;
  };
  static constexpr uint32_t kUnknown = Vocabulary::kNoId;

  // By end of a piece: the last piece of the best way to cut the text up to there.
  template <typename Score>
  std::vector<Step> BestSteps(std::string_view text) const;
  // What a run of characters without a piece becomes.
  absl::Status AppendUnknown(std::string_view run, std::vector<uint32_t>* ids) const;

  Options options_;
  Vocabulary vocabulary_;
  std::vector<double> scores_;  // by id; of user-defined pieces by their length
  ByteTrie trie_;
  double unknown_score_ = 0;
};

}  // namespace winnow
