#pragma once
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/grammar/grammar.h"

namespace winnow {

// Grammars as text, in the dialect of EBNF that llama.cpp and vLLM take:
//
//   root   ::= "yes" | "no" reason?          # rules; the text must be one of `root`
//   reason ::= " because " [a-z ]{1,40} [.!]
//
// Names are of letters, digits, "-" and "_". Expressions: "text" and [class], with the escapes \n \r \t \\ \" \] \[ \-
// \xHH \uHHHH \UHHHHHHHH, `.` for any character, ( ), |, and the repetitions * + ? {m} {m,} {m,n}. An alternative may
// be empty. Comments go from # to the end of the line.

inline constexpr size_t kMaxGrammarTextBytes = size_t{1} << 20;
inline constexpr int kMaxGrammarDepth = 100;  // of parentheses

// INVALID_ARGUMENT says what is wrong at which byte.
absl::StatusOr<Grammar> ParseGrammarText(std::string_view text);

// The grammar's rules that its root needs, the root under the name `root`; others as they are called, made different
// where two have one name. RESOURCE_EXHAUSTED when the text would be longer than kMaxGrammarTextBytes.
absl::StatusOr<std::string> GrammarText(const Grammar& grammar);

}  // namespace winnow
