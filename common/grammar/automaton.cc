#include "common/grammar/automaton.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "common/grammar/utf8_ranges.h"

namespace winnow {
namespace {

// Indices 0..n-1 of things with keys, grouped by key.
class Groups {
 public:
  template <typename Things, typename KeyOf>
  Groups(const Things& things, size_t num_keys, KeyOf key_of) : begin_(num_keys + 1), items_(things.size()) {
    for (const auto& thing : things) ++begin_[key_of(thing) + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    std::vector<uint32_t> next(begin_.begin(), begin_.end() - 1);
    for (size_t i = 0; i < things.size(); ++i) items_[next[key_of(things[i])]++] = static_cast<uint32_t>(i);
  }
  std::span<const uint32_t> operator[](uint32_t key) const {
    return {items_.data() + begin_[key], begin_[key + 1] - begin_[key]};
  }
  const std::vector<uint32_t>& begin() const { return begin_; }
  const std::vector<uint32_t>& items() const { return items_; }

 private:
  std::vector<uint32_t> begin_;
  std::vector<uint32_t> items_;
};

}  // namespace

class AutomatonBuilder {
 public:
  explicit AutomatonBuilder(const Grammar& grammar) : grammar_(grammar), starts_(grammar.rules().size()) {}

  absl::StatusOr<Automaton> Build() {
    StartOf(grammar_.root());
    for (size_t i = 0; i < used_.size(); ++i) {
      const Grammar::Rule& rule = grammar_.rules()[used_[i]];
      if (!rule.body.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat("rule \"", rule.name, "\" is used but not defined"));
      }
      is_end_[Add(*rule.body, *starts_[used_[i]])] = true;
      if (is_too_large_ || grammar_.is_too_large()) {
        return absl::InvalidArgumentError(absl::StrCat("the grammar is too large: its automaton may have ",
                                                       Automaton::kMaxNodes, " nodes and ", Automaton::kMaxArcs,
                                                       " arcs; bounds of repetitions count"));
      }
    }
    Prune();
    if (edges_.empty() && !nullable_root_) return absl::InvalidArgumentError("no text matches the grammar");
    WINNOW_RETURN_IF_ERROR(CheckLeftRecursion());
    return Finish();
  }

 private:
  struct EdgeFrom {
    uint32_t from;
    Automaton::Edge edge;
  };
  struct CallFrom {
    uint32_t from;
    Automaton::Call call;
  };
  struct Epsilon {
    uint32_t from;
    uint32_t target;
  };

  uint32_t NewNode() {
    if (is_end_.size() >= Automaton::kMaxNodes ||
        edges_.size() + calls_.size() + epsilons_.size() >= Automaton::kMaxArcs) {
      is_too_large_ = true;
      return 0;
    }
    is_end_.push_back(false);
    return static_cast<uint32_t>(is_end_.size() - 1);
  }

  uint32_t StartOf(Grammar::RuleId rule) {
    if (!starts_[rule].has_value()) {
      starts_[rule] = NewNode();
      used_.push_back(rule);
    }
    return *starts_[rule];
  }

  uint32_t AddBytes(uint32_t from, uint8_t first, uint8_t last) {
    const uint32_t target = NewNode();
    edges_.push_back({from, {.first = first, .last = last, .target = target}});
    return target;
  }

  // The nodes of an expression behind `from`; returns the one at its end.
  uint32_t Add(Grammar::ExprId id, uint32_t from) {
    const Grammar::Expr& expr = grammar_.expr(id);
    if (is_too_large_) return from;
    switch (expr.kind) {
      case Grammar::Kind::kEmpty:
        return from;
      case Grammar::Kind::kBytes:
        for (const char c : expr.bytes) from = AddBytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c));
        return from;
      case Grammar::Kind::kCharacter:
        return AddCharacter(expr, from);
      case Grammar::Kind::kSequence:
        for (const Grammar::ExprId part : expr.parts) from = Add(part, from);
        return from;
      case Grammar::Kind::kChoice: {
        const uint32_t end = NewNode();
        for (const Grammar::ExprId part : expr.parts) {
          // A node of its own, so that what loops inside a part stays there.
          const uint32_t start = NewNode();
          epsilons_.push_back({from, start});
          epsilons_.push_back({Add(part, start), end});
          if (is_too_large_) break;
        }
        return end;
      }
      case Grammar::Kind::kRepeat:
        return AddRepeat(expr, from);
      case Grammar::Kind::kRule: {
        const uint32_t back = NewNode();
        calls_.push_back({from, {.start = StartOf(expr.rule), .back = back}});
        return back;
      }
    }
    return from;
  }

  uint32_t AddCharacter(const Grammar::Expr& expr, uint32_t from) {
    const uint32_t end = NewNode();
    for (const CodePointRange& range : expr.ranges) {
      for (const ByteRanges& bytes : Utf8Ranges(range)) {
        uint32_t node = from;
        for (int i = 0; i + 1 < bytes.length; ++i) node = AddBytes(node, bytes.first[i], bytes.last[i]);
        const int tail = bytes.length - 1;
        edges_.push_back({node, {.first = bytes.first[tail], .last = bytes.last[tail], .target = end}});
      }
    }
    return end;
  }

  uint32_t AddRepeat(const Grammar::Expr& expr, uint32_t from) {
    for (uint32_t i = 0; i < expr.min && !is_too_large_; ++i) from = Add(expr.parts[0], from);
    if (!expr.max.has_value()) {
      const uint32_t loop = NewNode();
      epsilons_.push_back({from, loop});
      epsilons_.push_back({Add(expr.parts[0], loop), loop});
      const uint32_t end = NewNode();
      epsilons_.push_back({loop, end});
      return end;
    }
    const uint32_t end = NewNode();
    for (uint32_t i = expr.min; i < *expr.max && !is_too_large_; ++i) {
      epsilons_.push_back({from, end});
      const uint32_t start = NewNode();
      epsilons_.push_back({from, start});
      from = Add(expr.parts[0], start);
    }
    epsilons_.push_back({from, end});
    return end;
  }

  // Nodes from which the end of their rule can be reached; without `edges`: without a byte.
  std::vector<bool> ReachesEnd(bool edges) const {
    const size_t n = is_end_.size();
    const Groups edges_to(edges_, n, [](const EdgeFrom& e) { return e.edge.target; });
    const Groups epsilons_to(epsilons_, n, [](const Epsilon& e) { return e.target; });
    const Groups calls_back_to(calls_, n, [](const CallFrom& c) { return c.call.back; });
    const Groups calls_of(calls_, n, [](const CallFrom& c) { return c.call.start; });
    std::vector<bool> reaches(n);
    std::vector<uint32_t> pending;
    const auto mark = [&](uint32_t node) {
      if (reaches[node]) return;
      reaches[node] = true;
      pending.push_back(node);
    };
    for (uint32_t node = 0; node < n; ++node) {
      if (is_end_[node]) mark(node);
    }
    while (!pending.empty()) {
      const uint32_t node = pending.back();
      pending.pop_back();
      for (const uint32_t i : epsilons_to[node]) mark(epsilons_[i].from);
      if (edges) {
        for (const uint32_t i : edges_to[node]) mark(edges_[i].from);
      }
      for (const uint32_t i : calls_back_to[node]) {
        if (reaches[calls_[i].call.start]) mark(calls_[i].from);
      }
      for (const uint32_t i : calls_of[node]) {
        if (reaches[calls_[i].call.back]) mark(calls_[i].from);
      }
    }
    return reaches;
  }

  void Prune() {
    const std::vector<bool> alive = ReachesEnd(/*edges=*/true);
    std::erase_if(edges_, [&](const EdgeFrom& e) { return !alive[e.from] || !alive[e.edge.target]; });
    std::erase_if(epsilons_, [&](const Epsilon& e) { return !alive[e.from] || !alive[e.target]; });
    std::erase_if(calls_,
                  [&](const CallFrom& c) { return !alive[c.from] || !alive[c.call.start] || !alive[c.call.back]; });
    ends_without_bytes_ = ReachesEnd(/*edges=*/false);
    nullable_root_ = ends_without_bytes_[*starts_[grammar_.root()]];
    // A start that is dead keeps no arcs: then nothing matches.
    if (!alive[*starts_[grammar_.root()]]) edges_.clear();
  }

  // Rules that a rule may call before it has taken a byte must not lead back to it.
  absl::Status CheckLeftRecursion() const {
    const size_t n = is_end_.size();
    const Groups epsilons_from(epsilons_, n, [](const Epsilon& e) { return e.from; });
    const Groups calls_from(calls_, n, [](const CallFrom& c) { return c.from; });
    std::vector<uint32_t> rule_of(n);  // by start node
    for (size_t i = 0; i < used_.size(); ++i) rule_of[*starts_[used_[i]]] = static_cast<uint32_t>(i);

    std::vector<std::vector<uint32_t>> called(used_.size());
    std::vector<bool> seen(n);
    for (size_t i = 0; i < used_.size(); ++i) {
      std::vector<uint32_t> pending = {*starts_[used_[i]]};
      seen[pending.back()] = true;
      const auto visit = [&](uint32_t node) {
        if (seen[node]) return;
        seen[node] = true;
        pending.push_back(node);
      };
      while (!pending.empty()) {
        const uint32_t node = pending.back();
        pending.pop_back();
        for (const uint32_t e : epsilons_from[node]) visit(epsilons_[e].target);
        for (const uint32_t c : calls_from[node]) {
          called[i].push_back(rule_of[calls_[c].call.start]);
          if (ends_without_bytes_[calls_[c].call.start]) visit(calls_[c].call.back);
        }
      }
    }
    enum Colour : uint8_t { kNew, kOpen, kDone };
    std::vector<Colour> colours(used_.size(), kNew);
    std::vector<std::pair<uint32_t, size_t>> path;  // rule, and how many of its calls have been followed
    for (uint32_t root = 0; root < used_.size(); ++root) {
      if (colours[root] != kNew) continue;
      colours[root] = kOpen;
      path.push_back({root, 0});
      while (!path.empty()) {
        auto& [rule, next] = path.back();
        if (next == called[rule].size()) {
          colours[rule] = kDone;
          path.pop_back();
          continue;
        }
        const uint32_t to = called[rule][next++];
        if (colours[to] == kOpen) {
          return absl::InvalidArgumentError(absl::StrCat("rule \"", grammar_.rules()[used_[to]].name,
                                                         "\" is left-recursive: it leads to itself before any text"));
        }
        if (colours[to] == kNew) {
          colours[to] = kOpen;
          path.push_back({to, 0});
        }
      }
    }
    return absl::OkStatus();
  }

  Automaton Finish() {
    Automaton automaton;
    const size_t n = is_end_.size();
    automaton.start_ = *starts_[grammar_.root()];
    automaton.is_end_ = is_end_;
    const auto arrange = [n](const auto& arcs, auto payload_of, auto* out, std::vector<uint32_t>* begin) {
      const Groups from(arcs, n, [](const auto& arc) { return arc.from; });
      *begin = from.begin();
      for (const uint32_t i : from.items()) out->push_back(payload_of(arcs[i]));
    };
    arrange(
        edges_, [](const EdgeFrom& e) { return e.edge; }, &automaton.edges_, &automaton.edge_begin_);
    arrange(
        calls_, [](const CallFrom& c) { return c.call; }, &automaton.calls_, &automaton.call_begin_);
    arrange(
        epsilons_, [](const Epsilon& e) { return e.target; }, &automaton.epsilons_, &automaton.epsilon_begin_);
    for (Automaton::Call& call : automaton.calls_) call.is_tail = OnlyEnds(automaton, call.back);
    return automaton;
  }

  static bool OnlyEnds(const Automaton& automaton, uint32_t node) {
    while (automaton.edges(node).empty() && automaton.calls(node).empty()) {
      const std::span<const uint32_t> epsilons = automaton.epsilons(node);
      if (epsilons.empty()) return automaton.is_end(node);
      if (epsilons.size() > 1 || automaton.is_end(node)) return false;
      node = epsilons[0];
    }
    return false;
  }

  const Grammar& grammar_;
  std::vector<std::optional<uint32_t>> starts_;  // by rule; set where the rule is used
  std::vector<Grammar::RuleId> used_;
  std::vector<bool> is_end_;
  std::vector<EdgeFrom> edges_;
  std::vector<CallFrom> calls_;
  std::vector<Epsilon> epsilons_;
  std::vector<bool> ends_without_bytes_;
  bool nullable_root_ = false;
  bool is_too_large_ = false;
};

absl::StatusOr<Automaton> Automaton::Compile(const Grammar& grammar) {
  return AutomatonBuilder(grammar).Build();
}

}  // namespace winnow
