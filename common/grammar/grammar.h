#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
};

// A context-free grammar of texts: what JSON schemas, regular expressions, choices and grammar texts become before an
// automaton is made of them. Expressions lie in one arena and are named by their index, so that one may stand in
// several places; rules are expressions with a name, and may be used before they are defined.
//
// A grammar takes at most kMaxExpressions. What is added beyond is dropped and is_too_large() says so: whoever builds a
// grammar of what a client sent asks once, at the end, or earlier where a loop could go on for long.
class Grammar {
 public:
  using ExprId = uint32_t;
  using RuleId = uint32_t;
  static constexpr size_t kMaxExpressions = 200'000;

  enum class Kind { kEmpty, kBytes, kCharacter, kSequence, kChoice, kRepeat, kRule };

  struct Expr {
    Kind kind = Kind::kEmpty;
    std::string bytes = {};                   // kBytes
    std::vector<CodePointRange> ranges = {};  // kCharacter: one character of these, in order and apart from each other
    std::vector<ExprId> parts = {};           // kSequence, kChoice; kRepeat: one
    uint32_t min = 0;                         // kRepeat
    std::optional<uint32_t> max = {};         // kRepeat; absent: without end
    RuleId rule = 0;                          // kRule
  };
  struct Rule {
    std::string name;
    std::optional<ExprId> body;  // absent: not defined yet
  };

  Grammar();

  ExprId Empty() const { return 0; }
  ExprId Bytes(std::string_view bytes);
  // One character of the ranges, in any order; with `negated` one that is in none of them. Surrogates are no
  // characters.
  ExprId Character(std::vector<CodePointRange> ranges, bool negated = false);
  ExprId Sequence(std::vector<ExprId> parts);
  // Of no parts: nothing at all matches, not even the empty text.
  ExprId Choice(std::vector<ExprId> parts);
  ExprId Repeat(ExprId part, uint32_t min, std::optional<uint32_t> max);
  ExprId Optional(ExprId part) { return Repeat(part, 0, 1); }
  ExprId Call(RuleId rule);

  RuleId AddRule(std::string name);
  void Define(RuleId rule, ExprId body);
  RuleId AddRule(std::string name, ExprId body);

  const Expr& expr(ExprId id) const { return exprs_[id]; }
  const std::vector<Rule>& rules() const { return rules_; }
  size_t num_expressions() const { return exprs_.size(); }
  bool is_too_large() const { return is_too_large_; }

  // Texts of the grammar are those of this rule.
  RuleId root() const { return root_; }
  void set_root(RuleId root) { root_ = root; }

 private:
  ExprId Add(Expr expr);

  std::vector<Expr> exprs_;
  std::vector<Rule> rules_;
  RuleId root_ = 0;
  bool is_too_large_ = false;
};

// Sorted, apart from each other and without surrogates; with `negated` all other characters.
std::vector<CodePointRange> NormalRanges(std::vector<CodePointRange> ranges, bool negated);

}  // namespace winnow
