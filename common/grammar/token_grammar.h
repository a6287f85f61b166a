#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/grammar/automaton.h"
#include "common/grammar/grammar_states.h"
#include "common/grammar/token_mask.h"
#include "common/grammar/token_trie.h"

namespace winnow {

// A grammar over the tokens of a vocabulary: which tokens may follow a state, that is, leave something that can still
// be completed.
//
// A state's mask is kept. One that is new is put together from what is known of its places: where many bytes may follow
// (within a string), the tokens that stay inside the place's rule depend on the node alone and are worked out once,
// with the points of the trie where a token leaves the rule; of those, what follows depends on the stack and is walked
// for each. So a new string costs some thousand steps, not the vocabulary. Where few bytes may follow, the trie itself
// cuts the walk short. Not thread-safe.
class TokenGrammar {
 public:
  using StateId = GrammarStates::StateId;
  // Of places visited for one mask, and of memory for states and masks before they are forgotten.
  static constexpr uint64_t kMaxWork = 2'000'000;
  static constexpr size_t kMaxBytes = 16 << 20;

  // `shown_special`: special tokens that stand for their text all the same, such as markers of tool calls.
  TokenGrammar(Automaton automaton, std::shared_ptr<const TokenTrie> trie, std::vector<uint32_t> shown_special = {});

  StateId start() const { return start_; }
  // kDead where the token may not follow.
  StateId Next(StateId state, uint32_t token);
  bool accepts(StateId state) const { return states_->accepts(state); }
  // The text is complete: nothing may follow.
  bool is_complete(StateId state) const { return accepts(state) && states_->places(state).empty(); }
  // The tokens that may follow; valid until the next call. FAILED_PRECONDITION when that is too much work.
  absl::StatusOr<const TokenMask*> Mask(StateId state);

  const TokenTrie& trie() const { return *trie_; }
  // States are good for as long as this does not change.
  uint64_t generation() const { return generation_; }
  // Forgets states and masks when they take more than kMaxBytes.
  void BoundMemory();

 private:
  // What is known of the tokens that may follow a node, whatever its stack is.
  struct Local {
    TokenMask mask;                 // of tokens that end inside the rule or right behind it
    std::vector<uint32_t> escapes;  // nodes of the trie where the rule may have ended
  };

  void Forget();
  bool IsWide(uint32_t node) const;
  const Local& LocalOf(uint32_t node);
  // Adds the tokens of trie nodes [begin, end) that may follow `from`, where those nodes' parent has led.
  void Walk(StateId from, uint32_t begin, uint32_t end, TokenMask* mask, std::vector<uint32_t>* escapes);
  StateId NextBytes(StateId state, std::string_view bytes);
  bool worked_too_much() const { return states_->exhausted() || states_->work() - work_before_ > kMaxWork; }

  const Automaton automaton_;
  const std::shared_ptr<const TokenTrie> trie_;
  const std::vector<uint32_t> shown_special_;
  std::unique_ptr<GrammarStates> states_;
  StateId start_ = GrammarStates::kDead;
  absl::flat_hash_map<uint32_t, std::unique_ptr<Local>> locals_;
  absl::flat_hash_map<StateId, std::unique_ptr<TokenMask>> masks_;
  size_t mask_bytes_ = 0;
  uint64_t generation_ = 0;
  uint64_t work_before_ = 0;
  struct Step {
    uint32_t end;
    StateId state;
  };
  std::vector<Step> path_;
};

}  // namespace winnow
