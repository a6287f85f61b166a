#pragma once
#include <random>

#include "common/grammar/grammar.h"

namespace winnow {

// A grammar of a few rules over a few characters of one, two and three bytes. It may be left-recursive, and match
// nothing.
inline Grammar RandomGrammar(std::mt19937& random) {
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>(random() % end); };
  Grammar grammar;
  const uint32_t num_rules = 1 + below(4);
  for (uint32_t i = 0; i < num_rules; ++i) grammar.AddRule("rule");
  const auto leaf = [&]() -> Grammar::ExprId {
    switch (below(6)) {
      case 0:
        return grammar.Bytes("a");
      case 1:
        return grammar.Bytes("ab");
      case 2:
        return grammar.Bytes("\xC3\xA9");
      case 3:
        return grammar.Character({{'a', 'c'}});
      case 4:
        return grammar.Character({{0xE8, 0xEA}, {0x7FE, 0x801}});
      default:
        return below(6) == 0 ? grammar.Empty() : grammar.Call(below(num_rules));
    }
  };
  const auto expression = [&](auto& self, int depth) -> Grammar::ExprId {
    if (depth == 0) return leaf();
    std::vector<Grammar::ExprId> parts;
    const uint32_t count = 1 + below(3);
    switch (below(4)) {
      case 0:
        for (uint32_t i = 0; i < count; ++i) parts.push_back(self(self, depth - 1));
        return grammar.Sequence(parts);
      case 1:
        for (uint32_t i = 0; i < count; ++i) parts.push_back(self(self, depth - 1));
        return grammar.Choice(parts);
      case 2: {
        const uint32_t min = below(3);
        return grammar.Repeat(self(self, depth - 1), min, below(2) == 0 ? std::nullopt : std::optional(min + below(3)));
      }
      default:
        return leaf();
    }
  };
  for (uint32_t i = 0; i < num_rules; ++i) grammar.Define(i, expression(expression, 3));
  grammar.set_root(0);
  return grammar;
}

}  // namespace winnow
