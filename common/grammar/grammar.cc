#include "common/grammar/grammar.h"

#include <algorithm>
#include <utility>

namespace winnow {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF, kLastCodePoint = 0x10FFFF;

// Of sorted ranges: those that overlap or touch become one.
std::vector<CodePointRange> Joined(const std::vector<CodePointRange>& sorted) {
  std::vector<CodePointRange> joined;
  for (const CodePointRange& range : sorted) {
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

std::vector<CodePointRange> Complement(const std::vector<CodePointRange>& joined) {
  std::vector<CodePointRange> others;
  char32_t next = 0;
  for (const CodePointRange& range : joined) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) others.push_back({next, kLastCodePoint});
  return others;
}

}  // namespace

std::vector<CodePointRange> NormalRanges(std::vector<CodePointRange> ranges, bool negated) {
  std::erase_if(ranges, [](const CodePointRange& range) { return range.first > range.last; });
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  ranges = Joined(ranges);
  if (negated) ranges = Complement(ranges);
  std::vector<CodePointRange> characters;
  for (const CodePointRange& range : ranges) {
    if (range.first < kFirstSurrogate) {
      characters.push_back({range.first, std::min<char32_t>(range.last, kFirstSurrogate - 1)});
    }
    if (range.last > kLastSurrogate) {
      characters.push_back({std::max<char32_t>(range.first, kLastSurrogate + 1), std::min(range.last, kLastCodePoint)});
    }
  }
  return characters;
}

Grammar::Grammar() {
  exprs_.emplace_back();  // the empty text
}

Grammar::ExprId Grammar::Add(Expr expr) {
  if (exprs_.size() >= kMaxExpressions) {
    is_too_large_ = true;
    return Empty();
  }
  exprs_.push_back(std::move(expr));
  return static_cast<ExprId>(exprs_.size() - 1);
}

Grammar::ExprId Grammar::Bytes(std::string_view bytes) {
  if (bytes.empty()) return Empty();
  return Add({.kind = Kind::kBytes, .bytes = std::string(bytes)});
}

Grammar::ExprId Grammar::Character(std::vector<CodePointRange> ranges, bool negated) {
  return Add({.kind = Kind::kCharacter, .ranges = NormalRanges(std::move(ranges), negated)});
}

Grammar::ExprId Grammar::Sequence(std::vector<ExprId> parts) {
  std::erase(parts, Empty());
  if (parts.empty()) return Empty();
  if (parts.size() == 1) return parts.front();
  return Add({.kind = Kind::kSequence, .parts = std::move(parts)});
}

Grammar::ExprId Grammar::Choice(std::vector<ExprId> parts) {
  if (parts.size() == 1) return parts.front();
  return Add({.kind = Kind::kChoice, .parts = std::move(parts)});
}

Grammar::ExprId Grammar::Repeat(ExprId part, uint32_t min, std::optional<uint32_t> max) {
  if (part == Empty() || max == 0u) return Empty();
  if (min == 1 && max == 1u) return part;
  return Add({.kind = Kind::kRepeat, .parts = {part}, .min = min, .max = max});
}

Grammar::ExprId Grammar::Call(RuleId rule) {
  return Add({.kind = Kind::kRule, .rule = rule});
}

Grammar::RuleId Grammar::AddRule(std::string name) {
  if (rules_.size() >= kMaxExpressions) {
    is_too_large_ = true;
    return 0;
  }
  rules_.push_back({.name = std::move(name), .body = std::nullopt});
  return static_cast<RuleId>(rules_.size() - 1);
}

void Grammar::Define(RuleId rule, ExprId body) {
  rules_[rule].body = body;
}

Grammar::RuleId Grammar::AddRule(std::string name, ExprId body) {
  const RuleId rule = AddRule(std::move(name));
  Define(rule, body);
  return rule;
}

}  // namespace winnow
