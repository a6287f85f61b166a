#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/grammar/grammar.h"

namespace winnow {

// A grammar as a pushdown automaton over bytes. Each rule is a graph of nodes: an edge takes one byte of a range, an
// epsilon takes none, a call goes through another rule and on at its `back`. Whoever walks it keeps a stack of the
// nodes where calls go on.
//
// From every node some text leads to the end of its rule: what could never be completed has been taken out, so a walk
// that is alive can always be finished. No rule can call itself before a byte has been taken.
class Automaton {
 public:
  static constexpr size_t kMaxNodes = 300'000;
  static constexpr size_t kMaxArcs = 1'500'000;

  struct Edge {
    uint8_t first = 0;
    uint8_t last = 0;
    uint32_t target = 0;
  };
  struct Call {
    uint32_t start = 0;
    uint32_t back = 0;
    bool is_tail = false;  // nothing is left behind `back`: a walk need not come back to it
  };

  // INVALID_ARGUMENT when a rule that is used is not defined, a rule is left-recursive, nothing matches, or the
  // automaton would have more than kMaxNodes nodes or kMaxArcs arcs.
  static absl::StatusOr<Automaton> Compile(const Grammar& grammar);

  uint32_t start() const { return start_; }
  size_t num_nodes() const { return is_end_.size(); }
  bool is_end(uint32_t node) const { return is_end_[node]; }
  std::span<const Edge> edges(uint32_t node) const { return Of(edges_, edge_begin_, node); }
  std::span<const Call> calls(uint32_t node) const { return Of(calls_, call_begin_, node); }
  std::span<const uint32_t> epsilons(uint32_t node) const { return Of(epsilons_, epsilon_begin_, node); }

 private:
  friend class AutomatonBuilder;

  template <typename T>
  static std::span<const T> Of(const std::vector<T>& all, const std::vector<uint32_t>& begin, uint32_t node) {
    return {all.data() + begin[node], begin[node + 1] - begin[node]};
  }

  uint32_t start_ = 0;
  std::vector<bool> is_end_;
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
  std::vector<uint32_t> epsilons_;
  std::vector<uint32_t> edge_begin_, call_begin_, epsilon_begin_;  // [num_nodes + 1]
};

}  // namespace winnow
