#include "tests/common/grammar/grammar_oracle.h"

#include <algorithm>
#include <string>

#include "common/tokenizer/utf8.h"

namespace winnow {

GrammarOracle::GrammarOracle(const Grammar& grammar) : grammar_(grammar), rule_matches_(grammar.rules().size()) {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rule = 0; rule < rule_matches_.size(); ++rule) {
      if (rule_matches_[rule] || !MatchesSomething(*grammar.rules()[rule].body)) continue;
      rule_matches_[rule] = changed = true;
    }
  }
}

bool GrammarOracle::MatchesSomething(Grammar::ExprId id) const {
  const Grammar::Expr& expr = grammar_.expr(id);
  const auto part_matches = [&](Grammar::ExprId part) { return MatchesSomething(part); };
  switch (expr.kind) {
    case Grammar::Kind::kEmpty:
    case Grammar::Kind::kBytes:
      return true;
    case Grammar::Kind::kCharacter:
      return !expr.ranges.empty();
    case Grammar::Kind::kSequence:
      return std::all_of(expr.parts.begin(), expr.parts.end(), part_matches);
    case Grammar::Kind::kChoice:
      return std::any_of(expr.parts.begin(), expr.parts.end(), part_matches);
    case Grammar::Kind::kRepeat:
      return expr.min == 0 || MatchesSomething(expr.parts[0]);
    case Grammar::Kind::kRule:
      return rule_matches_[expr.rule];
  }
  return false;
}

GrammarOracle::Found GrammarOracle::Find(Grammar::ExprId id, std::string_view text, size_t at) const {
  const Grammar::Expr& expr = grammar_.expr(id);
  Found found;
  // What nothing matches is not looked into: a rule may lead to itself there.
  if (!MatchesSomething(id)) return found;
  const auto find_bytes = [&](std::string_view bytes) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with(bytes)) found.ends.insert(at + bytes.size());
    if (rest.size() < bytes.size() && bytes.starts_with(rest)) found.ran_out = true;
  };
  switch (expr.kind) {
    case Grammar::Kind::kEmpty:
      return {.ends = {at}};
    case Grammar::Kind::kBytes:
      find_bytes(expr.bytes);
      return found;
    case Grammar::Kind::kCharacter:
      for (const CodePointRange& range : expr.ranges) {
        for (char32_t c = range.first; c <= range.last; ++c) {
          std::string bytes;
          AppendUtf8(c, &bytes);
          find_bytes(bytes);
        }
      }
      return found;
    case Grammar::Kind::kSequence:
      return FindParts(expr.parts, text, at);
    case Grammar::Kind::kChoice:
      for (const Grammar::ExprId part : expr.parts) {
        const Found of_part = Find(part, text, at);
        found.ends.insert(of_part.ends.begin(), of_part.ends.end());
        found.ran_out |= of_part.ran_out;
      }
      return found;
    case Grammar::Kind::kRepeat:
      return FindRepeat(expr, text, at);
    case Grammar::Kind::kRule:
      return Find(*grammar_.rules()[expr.rule].body, text, at);
  }
  return found;
}

GrammarOracle::Found GrammarOracle::FindParts(const std::vector<Grammar::ExprId>& parts, std::string_view text,
                                              size_t at) const {
  Found found{.ends = {at}};
  for (size_t i = 0; i < parts.size(); ++i) {
    std::set<size_t> ends;
    const bool rest_matches = std::all_of(parts.begin() + static_cast<ptrdiff_t>(i) + 1, parts.end(),
                                          [&](Grammar::ExprId part) { return MatchesSomething(part); });
    for (const size_t from : found.ends) {
      if (from == text.size() && MatchesSomething(parts[i]) && rest_matches) found.ran_out = true;
      const Found of_part = Find(parts[i], text, from);
      ends.insert(of_part.ends.begin(), of_part.ends.end());
      found.ran_out |= of_part.ran_out && rest_matches;
    }
    found.ends = std::move(ends);
  }
  return found;
}

GrammarOracle::Found GrammarOracle::FindRepeat(const Grammar::Expr& expr, std::string_view text, size_t at) const {
  Found found;
  std::set<size_t> from = {at};
  const bool part_matches = MatchesSomething(expr.parts[0]);
  if (!part_matches) return {.ends = {at}};
  for (uint32_t count = 0;; ++count) {
    if (count >= expr.min) {
      const size_t before = found.ends.size();
      found.ends.insert(from.begin(), from.end());
      if (count > expr.min && found.ends.size() == before) break;
    }
    if (from.empty() || (expr.max.has_value() && count >= *expr.max)) break;
    std::set<size_t> next;
    for (const size_t each : from) {
      if (each == text.size()) found.ran_out = true;
      const Found of_part = Find(expr.parts[0], text, each);
      next.insert(of_part.ends.begin(), of_part.ends.end());
      found.ran_out |= of_part.ran_out;
    }
    from = std::move(next);
  }
  return found;
}

bool GrammarOracle::IsAlive(std::string_view prefix) const {
  const Found found = Find(*grammar_.rules()[grammar_.root()].body, prefix, 0);
  return found.ran_out || found.ends.contains(prefix.size());
}

bool GrammarOracle::Matches(std::string_view text) const {
  return Find(*grammar_.rules()[grammar_.root()].body, text, 0).ends.contains(text.size());
}

}  // namespace winnow
