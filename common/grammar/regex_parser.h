#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/grammar/grammar.h"

namespace winnow {

struct RegexOptions {
  // A text matches when the expression matches somewhere in it, as `pattern` of JSON schemas has it; else all of it
  // must.
  bool search = false;
  // How one character of these ranges is written, which are normal (NormalRanges); null: as itself.
  std::function<Grammar::ExprId(Grammar& grammar, const std::vector<CodePointRange>& ranges)> character = nullptr;
};

// Adds the texts of a regular expression to a grammar. It has what ECMAScript, Python and RE2 have in common: literals,
// `.`, classes with \d \w \s and their negations, the escapes \n \r \t \f \v \0 \xHH \uHHHH \u{H...}, groups, |, and
// repetitions, lazy ones as well. `^` and `$` may stand at the ends of the expression or of its outermost alternatives.
// INVALID_ARGUMENT says what is wrong at which byte, and what has no regular meaning or is not done: look-around,
// back-references, \b, possessive repetitions, \p, flags.
absl::StatusOr<Grammar::ExprId> AddRegex(std::string_view regex, const RegexOptions& options, Grammar& grammar);

}  // namespace winnow
