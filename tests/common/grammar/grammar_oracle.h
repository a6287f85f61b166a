#pragma once
#include <set>
#include <string_view>
#include <vector>

#include "common/grammar/grammar.h"

namespace winnow {

// What a grammar matches, by trying everything: for short texts and grammars that are not left-recursive.
class GrammarOracle {
 public:
  explicit GrammarOracle(const Grammar& grammar);

  // Some text of the grammar begins with `prefix`.
  bool IsAlive(std::string_view prefix) const;
  bool Matches(std::string_view text) const;
  // Some text is of the grammar.
  bool MatchesAnything() const { return rule_matches_[grammar_.root()]; }

 private:
  struct Found {
    std::set<size_t> ends;
    bool ran_out = false;  // the text ended inside of what can be completed
  };
  bool MatchesSomething(Grammar::ExprId id) const;
  Found Find(Grammar::ExprId id, std::string_view text, size_t at) const;
  Found FindParts(const std::vector<Grammar::ExprId>& parts, std::string_view text, size_t at) const;
  Found FindRepeat(const Grammar::Expr& expr, std::string_view text, size_t at) const;

  const Grammar& grammar_;
  std::vector<bool> rule_matches_;
};

}  // namespace winnow
