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

  // Whether the token of that index must be chosen by way of Apply.
  bool Restricts(uint32_t token_index) const;
  // Takes what may not follow out of the logits, which have an entry for each token. FAILED_PRECONDITION when nothing
  // is left, or when the grammar takes too much work.
  absl::Status Apply(std::span<float> logits, uint32_t token_index);
  // The grammar lets nothing follow: the output is over without a token that ends it.
  bool is_complete() const { return matcher_.has_value() && matcher_->is_complete(); }

 private:
  absl::Status ApplyGrammar(std::span<float> logits);
  void ApplyBadWords(std::span<float> logits) const;

  const uint32_t min_tokens_;
  const std::vector<uint32_t> ends_;
  std::vector<bool> is_allowed_;  // empty: all are
  std::vector<std::vector<uint32_t>> bad_words_;
  std::optional<GrammarMatcher> matcher_;
  std::vector<uint32_t> last_;  // of the output's tokens, as many as the longest of bad_words_ less one
  size_t num_last_ = 0;
};

}  // namespace winnow
