#include "common/grammar/grammar_states.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace winnow {
namespace {

constexpr GrammarStates::StateId kNotKnown = UINT32_MAX;
constexpr size_t kScannedPlaces = 16;  // of a set: a short one is searched through, a longer one by hash

uint64_t Packed(uint32_t high, uint32_t low) {
  return uint64_t{high} << 32 | low;
}

}  // namespace

size_t GrammarStates::Hash::operator()(const Key& key) const {
  size_t hash = (key.accepts ? 1 : 0) + (key.escapes ? 2 : 0);
  for (const Place& place : key.places) hash = absl::HashOf(hash, place.node, place.stack);
  return hash;
}

bool GrammarStates::Equal::operator()(StateId a, const Key& b) const {
  const Key key = states->KeyOf(a);
  return key.accepts == b.accepts && key.escapes == b.escapes &&
         std::equal(key.places.begin(), key.places.end(), b.places.begin(), b.places.end());
}

GrammarStates::GrammarStates(const Automaton& automaton)
    : automaton_(automaton), ids_(16, Hash{this}, Equal{this}), stacks_(2) {
  states_.emplace_back();  // kDead
  ids_.insert(kDead);
}

GrammarStates::StackId GrammarStates::Push(uint32_t back, StackId below) {
  const auto [entry, is_new] = stack_ids_.try_emplace(Packed(back, below), static_cast<StackId>(stacks_.size()));
  if (is_new) stacks_.push_back({back, below});
  return entry->second;
}

void GrammarStates::Begin() {
  pending_.clear();
  found_.clear();
  seen_.clear();
  accepts_ = escapes_ = false;
}

void GrammarStates::Visit(Place place) {
  pending_.push_back(place);
}

GrammarStates::StateId GrammarStates::End() {
  std::vector<Place> visited;
  const auto is_new = [&](const Place& place) {
    if (visited.size() < kScannedPlaces) {
      if (std::find(visited.begin(), visited.end(), place) != visited.end()) return false;
      visited.push_back(place);
      if (visited.size() == kScannedPlaces) {
        for (const Place& each : visited) seen_.insert(Packed(each.node, each.stack));
      }
      return true;
    }
    return seen_.insert(Packed(place.node, place.stack)).second;
  };
  while (!pending_.empty()) {
    const Place place = pending_.back();
    pending_.pop_back();
    if (!is_new(place)) continue;
    ++work_;
    if (std::max(visited.size(), seen_.size()) > kMaxPlaces) {
      exhausted_ = true;
      return kDead;
    }
    if (!automaton_.edges(place.node).empty()) found_.push_back(place);
    for (const uint32_t target : automaton_.epsilons(place.node)) pending_.push_back({target, place.stack});
    for (const Automaton::Call& call : automaton_.calls(place.node)) {
      pending_.push_back({call.start, call.is_tail ? place.stack : Push(call.back, place.stack)});
    }
    if (!automaton_.is_end(place.node)) continue;
    if (place.stack == kBottom) {
      accepts_ = true;
    } else if (place.stack == kUnknown) {
      escapes_ = true;
    } else {
      pending_.push_back({stacks_[place.stack].back, stacks_[place.stack].below});
    }
  }
  std::sort(found_.begin(), found_.end());
  const Key key{found_, accepts_, escapes_};
  if (const auto known = ids_.find(key); known != ids_.end()) return *known;
  const StateId id = static_cast<StateId>(states_.size());
  states_.push_back({.first_place = static_cast<uint32_t>(places_.size()),
                     .num_places = static_cast<uint32_t>(found_.size()),
                     .accepts = accepts_,
                     .escapes = escapes_,
                     .next = nullptr});
  places_.insert(places_.end(), found_.begin(), found_.end());
  ids_.insert(id);
  return id;
}

GrammarStates::StateId GrammarStates::Start() {
  Begin();
  Visit({automaton_.start(), kBottom});
  return End();
}

GrammarStates::StateId GrammarStates::StateOf(std::vector<Place> places) {
  Begin();
  for (const Place& place : places) Visit(place);
  return End();
}

GrammarStates::StateId GrammarStates::Popped(StackId stack) {
  if (stack == kBottom || stack == kUnknown) return kDead;
  Begin();
  Visit({stacks_[stack].back, stacks_[stack].below});
  return End();
}

GrammarStates::StateId GrammarStates::Next(StateId state, uint8_t byte) {
  if (states_[state].num_places == 0) return kDead;
  if (states_[state].next == nullptr) {
    states_[state].next = std::make_unique<Row>();
    states_[state].next->fill(kNotKnown);
    ++num_rows_;
  }
  const StateId known = (*states_[state].next)[byte];
  if (known != kNotKnown) return known;
  Begin();
  for (const Place& place : places(state)) {
    for (const Automaton::Edge& edge : automaton_.edges(place.node)) {
      if (edge.first <= byte && byte <= edge.last) Visit({edge.target, place.stack});
    }
  }
  const StateId next = pending_.empty() ? kDead : End();
  (*states_[state].next)[byte] = next;
  return next;
}

}  // namespace winnow
