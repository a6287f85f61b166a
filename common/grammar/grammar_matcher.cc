#include "common/grammar/grammar_matcher.h"

#include <utility>

namespace winnow {

GrammarMatcher::GrammarMatcher(std::shared_ptr<TokenGrammar> grammar) : grammar_(std::move(grammar)) {
  Refresh();
}

void GrammarMatcher::Refresh() {
  grammar_->BoundMemory();
  if (generation_ == grammar_->generation()) return;
  generation_ = grammar_->generation();
  TokenGrammar::StateId state = grammar_->start();
  for (const uint32_t token : tokens_) state = grammar_->Next(state, token);
  Enter(state);
}

void GrammarMatcher::Enter(TokenGrammar::StateId state) {
  state_ = state;
  accepts_ = grammar_->accepts(state);
  is_complete_ = grammar_->is_complete(state);
}

void GrammarMatcher::Advance(uint32_t token) {
  Refresh();
  tokens_.push_back(token);
  Enter(grammar_->Next(state_, token));
}

absl::StatusOr<const TokenMask*> GrammarMatcher::Mask() {
  Refresh();
  return grammar_->Mask(state_);
}

}  // namespace winnow
