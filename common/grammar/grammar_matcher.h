#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/grammar/token_grammar.h"

namespace winnow {

// Where one output is in its grammar. What it does is a function of the tokens that it has been given alone, so that a
// matcher that is given an output's tokens again, on another rank, goes on as the first one would have.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<TokenGrammar> grammar);

  // Takes the next token of the output. One that the grammar does not let follow makes the matcher dead.
  void Advance(uint32_t token);
  // The tokens that may follow; of a dead matcher none. Valid until the next call to any matcher of the grammar.
  absl::StatusOr<const TokenMask*> Mask();

  bool is_dead() const { return state_ == GrammarStates::kDead; }
  // The output may end here.
  bool accepts() const { return accepts_; }
  // It must: nothing may follow.
  bool is_complete() const { return is_complete_; }

 private:
  // Goes through the tokens again where the grammar has forgotten its states.
  void Refresh();
  void Enter(TokenGrammar::StateId state);

  std::shared_ptr<TokenGrammar> grammar_;
  std::vector<uint32_t> tokens_;
  uint64_t generation_ = 0;
  TokenGrammar::StateId state_ = GrammarStates::kDead;
  bool accepts_ = false;
  bool is_complete_ = false;
};

}  // namespace winnow
