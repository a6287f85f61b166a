#include "inference_rank/sequence/grammar_cache.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "common/grammar/grammar_text.h"

namespace winnow {

absl::StatusOr<std::shared_ptr<TokenGrammar>> GrammarCache::Get(const v1::TokenConstraint& constraint) {
  if (!trie_.ok()) return trie_.status();
  const std::string key = constraint.SerializeAsString();
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
      ++metrics_.grammars_reused;
      return found->grammar;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  WINNOW_ASSIGN_OR_RETURN(const Grammar grammar, ParseGrammarText(constraint.grammar()));
  WINNOW_ASSIGN_OR_RETURN(Automaton automaton, Automaton::Compile(grammar));
  const auto& shown = constraint.shown_special_token_ids();
  auto compiled =
      std::make_shared<TokenGrammar>(std::move(automaton), *trie_, std::vector<uint32_t>(shown.begin(), shown.end()));
  const auto taken = std::chrono::steady_clock::now() - start;
  ++metrics_.grammars_compiled;
  metrics_.grammar_compile_us += std::chrono::duration_cast<std::chrono::microseconds>(taken).count();
  std::lock_guard lock(mutex_);
  entries_.push_front({key, compiled});
  if (entries_.size() > kMaxEntries) entries_.pop_back();
  return compiled;
}

}  // namespace winnow
