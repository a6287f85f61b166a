#include "common/grammar/token_grammar.h"

#include <algorithm>
#include <utility>

namespace winnow {
namespace {

constexpr int kWideBytes = 64;  // a node that so many different bytes may follow has a mask of its own

}  // namespace

TokenGrammar::TokenGrammar(Automaton automaton, std::shared_ptr<const TokenTrie> trie,
                           std::vector<uint32_t> shown_special)
    : automaton_(std::move(automaton)), trie_(std::move(trie)), shown_special_(std::move(shown_special)) {
  Forget();
}

void TokenGrammar::Forget() {
  masks_.clear();
  locals_.clear();
  mask_bytes_ = 0;
  states_ = std::make_unique<GrammarStates>(automaton_);
  start_ = states_->Start();
  ++generation_;
}

void TokenGrammar::BoundMemory() {
  if (states_->bytes() + mask_bytes_ > kMaxBytes || states_->exhausted()) Forget();
}

TokenGrammar::StateId TokenGrammar::NextBytes(StateId state, std::string_view bytes) {
  for (const char byte : bytes) {
    state = states_->Next(state, static_cast<uint8_t>(byte));
    if (state == GrammarStates::kDead) break;
  }
  return state;
}

TokenGrammar::StateId TokenGrammar::Next(StateId state, uint32_t token) {
  if (token >= trie_->vocab_size() || trie_->bytes(token).empty()) return GrammarStates::kDead;
  if (trie_->is_special(token) &&
      std::find(shown_special_.begin(), shown_special_.end(), token) == shown_special_.end()) {
    return GrammarStates::kDead;
  }
  return NextBytes(state, trie_->bytes(token));
}

bool TokenGrammar::IsWide(uint32_t node) const {
  int bytes = 0;
  for (const Automaton::Edge& edge : automaton_.edges(node)) bytes += edge.last - edge.first + 1;
  return bytes >= kWideBytes;
}

void TokenGrammar::Walk(StateId from, uint32_t begin, uint32_t end, TokenMask* mask, std::vector<uint32_t>* escapes) {
  if (from == GrammarStates::kDead) return;
  path_.assign(1, {end, from});
  for (uint32_t i = begin; i < end && !worked_too_much();) {
    while (path_.back().end <= i) path_.pop_back();
    const TokenTrie::Node& node = trie_->node(i);
    const StateId state = states_->Next(path_.back().state, node.byte);
    if (state == GrammarStates::kDead) {
      i = node.end;
      continue;
    }
    for (const uint32_t token : trie_->tokens(i)) mask->Add(token);
    if (escapes != nullptr && states_->escapes(state)) escapes->push_back(i);
    if (states_->places(state).empty()) {
      i = node.end;
    } else {
      path_.push_back({node.end, state});
      ++i;
    }
  }
}

const TokenGrammar::Local& TokenGrammar::LocalOf(uint32_t node) {
  std::unique_ptr<Local>& local = locals_[node];
  if (local == nullptr) {
    local = std::make_unique<Local>(Local{TokenMask(trie_->vocab_size()), {}});
    const StateId state = states_->StateOf({{node, GrammarStates::kUnknown}});
    Walk(state, 0, trie_->num_nodes(), &local->mask, &local->escapes);
    mask_bytes_ += local->mask.words().size_bytes() + local->escapes.size() * sizeof(uint32_t);
  }
  return *local;
}

absl::StatusOr<const TokenMask*> TokenGrammar::Mask(StateId state) {
  if (const auto known = masks_.find(state); known != masks_.end()) return known->second.get();
  work_before_ = states_->work();
  auto mask = std::make_unique<TokenMask>(trie_->vocab_size());
  std::vector<GrammarStates::Place> narrow;
  const std::span<const GrammarStates::Place> of_state = states_->places(state);
  // A copy: new states move the places.
  for (const GrammarStates::Place& place : std::vector(of_state.begin(), of_state.end())) {
    if (!IsWide(place.node)) {
      narrow.push_back(place);
      continue;
    }
    const Local& local = LocalOf(place.node);
    mask->AddAll(local.mask);
    const StateId behind = states_->Popped(place.stack);
    for (const uint32_t at : local.escapes) Walk(behind, at + 1, trie_->node(at).end, mask.get(), nullptr);
  }
  if (!narrow.empty()) Walk(states_->StateOf(std::move(narrow)), 0, trie_->num_nodes(), mask.get(), nullptr);
  for (const uint32_t id : shown_special_) {
    if (id < trie_->vocab_size() && Next(state, id) != GrammarStates::kDead) mask->Add(id);
  }
  if (worked_too_much()) {
    Forget();
    return absl::FailedPreconditionError(
        "the grammar is too ambiguous: which tokens may follow takes too much work to find out");
  }
  mask_bytes_ += mask->words().size_bytes();
  return (masks_[state] = std::move(mask)).get();
}

}  // namespace winnow
