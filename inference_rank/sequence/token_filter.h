#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/grammar/grammar_matcher.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow {

// Which tokens may follow in one output: those of its grammar, of `allowed_token_ids` and not of `bad_words`, and no
// end before `min_tokens`. What it allows is a function of the output's tokens alone, so that an output that goes on
// elsewhere, or later, goes on as it would have here.
class TokenFilter {
 public:
  // `end_token_ids` end the output when they are drawn. `grammar` may be null.
  TokenFilter(const v1::SamplingParams& params, std::vector<uint32_t> end_token_ids,
              std::shared_ptr<TokenGrammar> grammar);

  // Takes the next token of the output.
  void Observe(uint32_t token_id);

  // Whether the token of that index must be chosen by way of FillMask or Apply.
  bool Restricts(uint32_t token_index) const;
  // Says which of the tokens below vocab_size may follow: bit i % 64 of word i / 64 is token i's, of
  // (vocab_size + 63) / 64 words. FAILED_PRECONDITION when none may, or when the grammar takes too much work.
  absl::Status FillMask(std::span<uint64_t> mask, uint32_t vocab_size, uint32_t token_index);
  // The same to logits, which have an entry for each token: what may not follow gets -infinity.
  absl::Status Apply(std::span<float> logits, uint32_t token_index);
  // The grammar lets nothing follow: the output is over without a token that ends it.
  bool is_complete() const { return matcher_.has_value() && matcher_->is_complete(); }

 private:
  absl::Status FillFromGrammar(std::span<uint64_t> mask);

  const uint32_t min_tokens_;
  const std::vector<uint32_t> ends_;
  std::vector<uint64_t> allowed_;  // as a mask; empty: all are
  std::vector<std::vector<uint32_t>> bad_words_;
  std::optional<GrammarMatcher> matcher_;
  std::vector<uint32_t> last_;  // of the output's tokens, as many as the longest of bad_words_ less one
  size_t num_last_ = 0;
  std::vector<uint64_t> mask_;  // of Apply
};

}  // namespace winnow
