#include "common/tokenizer/split.h"

#include <algorithm>

#include "common/tokenizer/utf8.h"

namespace winnow {

absl::StatusOr<SplitBehavior> ParseSplitBehavior(const JsonNode& owner, std::string_view key, SplitBehavior fallback) {
  if (!owner.Has(key)) return fallback;
  WINNOW_ASSIGN_OR_RETURN(const std::string name, owner.String(key));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return owner.ErrorAt(key, absl::StrCat("unknown split behavior \"", name, "\""));
}

absl::StatusOr<TextPattern> TextPattern::Parse(const JsonNode& node) {
  WINNOW_RETURN_IF_ERROR(node.RequireObject());
  if (node.Has("String")) {
    WINNOW_ASSIGN_OR_RETURN(std::string literal, node.String("String"));
    return Literal(std::move(literal));
  }
  if (node.Has("Regex")) {
    WINNOW_ASSIGN_OR_RETURN(const std::string pattern, node.String("Regex"));
    auto regex = FromRegex(pattern);
    if (!regex.ok()) return Annotate(regex.status(), node.path() + ".Regex");
    return regex;
  }
  return node.Error("expected {\"String\": ...} or {\"Regex\": ...}");
}

TextPattern TextPattern::Literal(std::string literal) {
  TextPattern result;
  result.pattern_ = std::move(literal);
  return result;
}

absl::StatusOr<TextPattern> TextPattern::FromRegex(std::string_view pattern) {
  WINNOW_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
  TextPattern result;
  result.pattern_ = std::move(regex);
  return result;
}

absl::Status TextPattern::FindAll(std::string_view text, std::vector<TextSpan>* matches) const {
  if (const Regex* regex = std::get_if<Regex>(&pattern_)) return regex->FindAll(text, matches);
  const std::string& needle = std::get<std::string>(pattern_);
  if (needle.empty()) return absl::OkStatus();
  for (size_t at = text.find(needle); at != text.npos; at = text.find(needle, at + needle.size())) {
    matches->push_back({at, at + needle.size()});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TextPattern::ReplaceAll(std::string_view text, std::string_view content,
                                                    size_t max_bytes) const {
  std::vector<TextSpan> matches;
  WINNOW_RETURN_IF_ERROR(FindAll(text, &matches));
  if (content.size() > 0 && matches.size() > max_bytes / content.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("replacing ", matches.size(), " matches makes a text of over ", max_bytes, " bytes"));
  }
  std::string out;
  size_t done = 0;
  for (const TextSpan& match : matches) {
    out.append(text.substr(done, match.begin - done)).append(content);
    done = match.end;
  }
  out.append(text.substr(done));
  return out;
}

std::vector<SplitSegment> SegmentsFromMatches(size_t text_bytes, const std::vector<TextSpan>& matches) {
  std::vector<SplitSegment> segments;
  segments.reserve(matches.size() + 1);
  size_t done = 0;
  for (const TextSpan& match : matches) {
    if (done != match.begin) segments.push_back({{done, match.begin}, false});
    segments.push_back({match, true});
    done = match.end;
  }
  if (done != text_bytes) segments.push_back({{done, text_bytes}, false});
  return segments;
}

std::vector<SplitSegment> SegmentsFromPredicate(std::string_view text, bool (*predicate)(char32_t)) {
  std::vector<TextSpan> matches;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    if (predicate(NextCodePoint(text, &pos))) matches.push_back({begin, pos});
  }
  return SegmentsFromMatches(text.size(), matches);
}

std::vector<TextSpan> ApplySplitBehavior(const std::vector<SplitSegment>& segments, SplitBehavior behavior) {
  std::vector<TextSpan> pieces;
  pieces.reserve(segments.size());
  bool previous_match = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const SplitSegment& s : segments) pieces.push_back(s.span);
      break;
    case SplitBehavior::kRemoved:
      for (const SplitSegment& s : segments) {
        if (!s.is_match) pieces.push_back(s.span);
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const SplitSegment& s : segments) {
        if (s.is_match && !previous_match && !pieces.empty()) {
          pieces.back().end = s.span.end;
        } else {
          pieces.push_back(s.span);
        }
        previous_match = s.is_match;
      }
      break;
    case SplitBehavior::kContiguous:
      for (const SplitSegment& s : segments) {
        if (s.is_match == previous_match && !pieces.empty()) {
          pieces.back().end = s.span.end;
        } else {
          pieces.push_back(s.span);
        }
        previous_match = s.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto s = segments.rbegin(); s != segments.rend(); ++s) {
        if (s->is_match && !previous_match && !pieces.empty()) {
          pieces.back().begin = s->span.begin;
        } else {
          pieces.push_back(s->span);
        }
        previous_match = s->is_match;
      }
      std::reverse(pieces.begin(), pieces.end());
      break;
  }
  std::erase_if(pieces, [](const TextSpan& p) { return p.begin == p.end; });
  return pieces;
}

}  // namespace winnow
