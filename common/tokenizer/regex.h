#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

// The types of PCRE2's 8-bit library, so that its header stays out of ours.
struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace winnow {

struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

// Rewrites a pattern of Oniguruma's Ruby syntax (what tokenizer.json holds) into PCRE2 syntax with the same meaning:
// \s and \w by their Unicode properties, \h as a hex digit, {n,m}+ as a repeat and not a possessive interval, {,n} as
// {0,n}, nested sets and intersections (&&) by alternatives and lookaheads.
absl::StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern);

// A compiled regular expression (PCRE2 with JIT, UTF and UCP). Const and thread-safe.
class Regex {
 public:
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // Appends all non-overlapping matches of a valid UTF-8 text, leftmost first, as Oniguruma's find_iter yields them: an
  // empty match directly after the last match is dropped. ResourceExhausted when the match limit is reached.
  absl::Status FindAll(std::string_view text, std::vector<TextSpan>* matches) const;

  const std::string& pattern() const { return pattern_; }

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };

  std::string pattern_;
  std::unique_ptr<pcre2_real_code_8, CodeDeleter> code_;
};

}  // namespace winnow
