#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/regex.h"

namespace winnow {

// What happens to the delimiter when a text is split (SplitDelimiterBehavior of the `tokenizers` library).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

absl::StatusOr<SplitBehavior> ParseSplitBehavior(const JsonNode& owner, std::string_view key, SplitBehavior fallback);

// A part of a text: a match of the delimiter or what lies between two matches.
struct SplitSegment {
  TextSpan span;
  bool is_match = false;
};

// The {"String": ...} or {"Regex": ...} of Split and Replace.
class TextPattern {
 public:
  static absl::StatusOr<TextPattern> Parse(const JsonNode& node);
  static TextPattern Literal(std::string literal);
  static absl::StatusOr<TextPattern> FromRegex(std::string_view pattern);

  absl::Status FindAll(std::string_view text, std::vector<TextSpan>* matches) const;
  // The literal to look for, or null for a regex.
  const std::string* literal() const { return std::get_if<std::string>(&pattern_); }

  // `text` with every match replaced. ResourceExhausted beyond `max_bytes`.
  absl::StatusOr<std::string> ReplaceAll(std::string_view text, std::string_view content, size_t max_bytes) const;

 private:
  std::variant<std::string, Regex> pattern_;
};

// Segments that cover `text` without gaps, from matches in order.
std::vector<SplitSegment> SegmentsFromMatches(size_t text_bytes, const std::vector<TextSpan>& matches);
// Each character for which the predicate holds is a match of its own.
std::vector<SplitSegment> SegmentsFromPredicate(std::string_view text, bool (*predicate)(char32_t));

// The pieces that remain of the segments, empty ones left out.
std::vector<TextSpan> ApplySplitBehavior(const std::vector<SplitSegment>& segments, SplitBehavior behavior);

}  // namespace winnow
