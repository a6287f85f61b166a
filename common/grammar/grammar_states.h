#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/grammar/automaton.h"

namespace winnow {

// Where a walk through an automaton can be: sets of places, a place being a node and the stack of nodes where the calls
// around it go on. Sets and stacks are made when they are needed and kept, with the steps between them, so that a step
// that was taken before is one look into a table.
//
// A grammar that is very ambiguous can have sets without bound. When one grows beyond kMaxPlaces the walk is given up:
// it is dead, and exhausted() says why. Not thread-safe.
class GrammarStates {
 public:
  using StateId = uint32_t;
  using StackId = uint32_t;
  static constexpr StateId kDead = 0;
  static constexpr StackId kBottom = 0;   // the end of the root rule is the end of the text
  static constexpr StackId kUnknown = 1;  // what is around the rule is not known; its end is an escape
  static constexpr size_t kMaxPlaces = 20'000;

  struct Place {
    uint32_t node;
    StackId stack;
    bool operator==(const Place&) const = default;
    auto operator<=>(const Place&) const = default;
  };

  // `automaton` must outlive this.
  explicit GrammarStates(const Automaton& automaton);

  StateId Start();
  StateId Next(StateId state, uint8_t byte);
  // The state of these places alone, which have no epsilons to follow.
  StateId StateOf(std::vector<Place> places);
  // Behind the rule that has this stack at its end: at the node on top, under the rest. kDead for kBottom and kUnknown,
  // where no byte follows.
  StateId Popped(StackId stack);

  std::span<const Place> places(StateId state) const {
    return {places_.data() + states_[state].first_place, states_[state].num_places};
  }
  // The text may end here.
  bool accepts(StateId state) const { return states_[state].accepts; }
  // A rule under an unknown stack may end here.
  bool escapes(StateId state) const { return states_[state].escapes; }

  bool exhausted() const { return exhausted_; }
  // Places visited so far: what all this has cost.
  uint64_t work() const { return work_; }
  size_t bytes() const { return places_.size() * sizeof(Place) + num_rows_ * sizeof(Row) + stacks_.size() * 24; }

 private:
  using Row = std::array<StateId, 256>;
  struct State {
    uint32_t first_place = 0;
    uint32_t num_places = 0;  // that take a byte
    bool accepts = false;
    bool escapes = false;
    std::unique_ptr<Row> next;  // null until the first step
  };
  struct Key {
    std::span<const Place> places;
    bool accepts;
    bool escapes;
  };
  struct Hash {
    using is_transparent = void;
    const GrammarStates* states;
    size_t operator()(const Key& key) const;
    size_t operator()(StateId state) const { return (*this)(states->KeyOf(state)); }
  };
  struct Equal {
    using is_transparent = void;
    const GrammarStates* states;
    bool operator()(StateId a, StateId b) const { return a == b; }
    bool operator()(StateId a, const Key& b) const;
    bool operator()(const Key& a, StateId b) const { return (*this)(b, a); }
  };
  struct Stack {
    uint32_t back;
    StackId below;
  };

  Key KeyOf(StateId state) const { return {places(state), accepts(state), escapes(state)}; }
  StackId Push(uint32_t back, StackId below);
  void Begin();
  void Visit(Place place);
  // The state of what has been visited since Begin.
  StateId End();

  const Automaton& automaton_;
  std::vector<State> states_;
  std::vector<Place> places_;
  absl::flat_hash_set<StateId, Hash, Equal> ids_;
  std::vector<Stack> stacks_;
  absl::flat_hash_map<uint64_t, StackId> stack_ids_;
  size_t num_rows_ = 0;
  uint64_t work_ = 0;
  bool exhausted_ = false;

  // Of the set at hand.
  std::vector<Place> pending_;
  std::vector<Place> found_;
  absl::flat_hash_set<uint64_t> seen_;
  bool accepts_ = false;
  bool escapes_ = false;
};

}  // namespace winnow
