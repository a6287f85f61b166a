#include "common/tokenizer/pipeline/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/split.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

// GPT-2's split, which ByteLevel applies unless use_regex is false.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Replaces every open piece by the spans that `cut` returns for its text (spans relative to the piece).
template <typename Cut>
absl::Status CutPieces(PieceList* list, const Cut& cut) {
  std::vector<PieceList::Piece> pieces;
  pieces.reserve(list->pieces.size());
  for (const PieceList::Piece& piece : list->pieces) {
    if (piece.token_id.has_value()) {
      pieces.push_back(piece);
      continue;
    }
    absl::StatusOr<std::vector<TextSpan>> spans = cut(list->Text(piece));
    if (!spans.ok()) return spans.status();
    for (const TextSpan& span : *spans) {
      pieces.push_back({{piece.span.begin + span.begin, piece.span.begin + span.end},
                        std::nullopt,
                        piece.at_input_start && span.begin == 0});
    }
  }
  list->pieces = std::move(pieces);
  return absl::OkStatus();
}

// Rewrites every open piece: `rewrite(piece, text, out)` appends its new text to out.
template <typename Rewrite>
absl::Status RewritePieces(PieceList* list, const Rewrite& rewrite) {
  std::string text;
  text.reserve(list->text.size());
  for (PieceList::Piece& piece : list->pieces) {
    const std::string_view old = list->Text(piece);
    const size_t begin = text.size();
    if (piece.token_id.has_value()) {
      text.append(old);
    } else {
      rewrite(piece, old, &text);
    }
    piece.span = {begin, text.size()};
    if (text.size() > (size_t{1} << 30)) return absl::ResourceExhaustedError("pre-tokenized text is over 1 GiB");
  }
  list->text = std::move(text);
  return absl::OkStatus();
}

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::optional<TextPattern> pattern)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)) {}

  absl::Status Apply(PieceList* list) const override {
    if (add_prefix_space_) {
      WINNOW_RETURN_IF_ERROR(RewritePieces(list, [](const auto&, std::string_view text, std::string* out) {
        if (text.front() != ' ') out->push_back(' ');
        out->append(text);
      }));
    }
    if (pattern_.has_value()) {
      WINNOW_RETURN_IF_ERROR(CutPieces(list, [&](std::string_view text) -> absl::StatusOr<std::vector<TextSpan>> {
        std::vector<TextSpan> matches;
        WINNOW_RETURN_IF_ERROR(pattern_->FindAll(text, &matches));
        return ApplySplitBehavior(SegmentsFromMatches(text.size(), matches), SplitBehavior::kIsolated);
      }));
    }
    return RewritePieces(list,
                         [](const auto&, std::string_view text, std::string* out) { AppendByteLevel(text, out); });
  }

  bool IsByteLevel() const override { return true; }

 private:
  const bool add_prefix_space_;
  const std::optional<TextPattern> pattern_;
};

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(TextPattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  absl::Status Apply(PieceList* list) const override {
    return CutPieces(list, [&](std::string_view text) -> absl::StatusOr<std::vector<TextSpan>> {
      std::vector<TextSpan> matches;
      WINNOW_RETURN_IF_ERROR(pattern_.FindAll(text, &matches));
      std::vector<SplitSegment> segments = SegmentsFromMatches(text.size(), matches);
      if (invert_) {
        for (SplitSegment& segment : segments) segment.is_match = !segment.is_match;
      }
      return ApplySplitBehavior(segments, behavior_);
    });
  }

  bool KeepsText() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  const TextPattern pattern_;
  const SplitBehavior behavior_;
  const bool invert_;
};

class PredicatePreTokenizer : public PreTokenizer {
 public:
  PredicatePreTokenizer(bool (*predicate)(char32_t), SplitBehavior behavior)
      : predicate_(predicate), behavior_(behavior) {}

  absl::Status Apply(PieceList* list) const override {
    return CutPieces(list, [&](std::string_view text) -> absl::StatusOr<std::vector<TextSpan>> {
      return ApplySplitBehavior(SegmentsFromPredicate(text, predicate_), behavior_);
    });
  }

  bool KeepsText() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  bool (*const predicate_)(char32_t);
  const SplitBehavior behavior_;
};

enum class PrependScheme { kAlways, kFirst, kNever };

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  absl::Status Apply(PieceList* list) const override {
    WINNOW_RETURN_IF_ERROR(RewritePieces(list, [&](const auto& piece, std::string_view text, std::string* out) {
      const bool marked = text.front() == ' ' || text.starts_with(replacement_);
      const bool wanted =
          scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && piece.at_input_start);
      if (wanted && !marked) out->append(replacement_);
      for (const char c : text) {
        if (c == ' ') {
          out->append(replacement_);
        } else {
          out->push_back(c);
        }
      }
    }));
    if (!split_) return absl::OkStatus();
    const TextPattern pattern = TextPattern::Literal(replacement_);
    return CutPieces(list, [&](std::string_view text) -> absl::StatusOr<std::vector<TextSpan>> {
      std::vector<TextSpan> matches;
      WINNOW_RETURN_IF_ERROR(pattern.FindAll(text, &matches));
      return ApplySplitBehavior(SegmentsFromMatches(text.size(), matches), SplitBehavior::kMergedWithNext);
    });
  }

 private:
  const std::string replacement_;  // one character
  const PrependScheme scheme_;
  const bool split_;
};

class FixedLengthPreTokenizer : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(size_t characters) : characters_(characters) {}

  absl::Status Apply(PieceList* list) const override {
    return CutPieces(list, [&](std::string_view text) -> absl::StatusOr<std::vector<TextSpan>> {
      std::vector<TextSpan> spans;
      for (size_t pos = 0; pos < text.size();) {
        const size_t begin = pos;
        for (size_t i = 0; i < characters_ && pos < text.size(); ++i) NextCodePoint(text, &pos);
        spans.push_back({begin, pos});
      }
      return spans;
    });
  }

 private:
  const size_t characters_;  // at least 1
};

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}

  absl::Status Apply(PieceList* list) const override {
    for (const auto& part : parts_) WINNOW_RETURN_IF_ERROR(part->Apply(list));
    return absl::OkStatus();
  }

  bool KeepsText() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->KeepsText(); });
  }

  bool IsByteLevel() const override { return !parts_.empty() && parts_.back()->IsByteLevel(); }

 private:
  const std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

using PreTokenizerOr = absl::StatusOr<std::unique_ptr<PreTokenizer>>;

PreTokenizerOr ParsePreTokenizerSequence(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const JsonNode list, node.Member("pretokenizers"));
  WINNOW_RETURN_IF_ERROR(list.RequireArray());
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (size_t i = 0; i < list.value().size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(auto part, ParsePreTokenizer(list.Element(i)));
    parts.push_back(std::move(part));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(parts));
}

PreTokenizerOr ParseByteLevel(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const bool add_prefix_space, node.BoolOr("add_prefix_space", true));
  WINNOW_ASSIGN_OR_RETURN(const bool use_regex, node.BoolOr("use_regex", true));
  std::optional<TextPattern> pattern;
  if (use_regex) {
    WINNOW_ASSIGN_OR_RETURN(pattern, TextPattern::FromRegex(kGpt2Pattern));
  }
  return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, std::move(pattern));
}

PreTokenizerOr ParseSplit(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Member("pattern"));
  WINNOW_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Parse(pattern_node));
  if (!node.Has("behavior")) return node.ErrorAt("behavior", "missing");
  WINNOW_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseSplitBehavior(node, "behavior", SplitBehavior::kIsolated));
  WINNOW_ASSIGN_OR_RETURN(const bool invert, node.BoolOr("invert", false));
  return std::make_unique<SplitPreTokenizer>(std::move(pattern), behavior, invert);
}

PreTokenizerOr ParseMetaspace(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(std::string replacement, node.String("replacement"));
  if (CountCodePoints(replacement) != 1) return node.ErrorAt("replacement", "expected one character");
  WINNOW_ASSIGN_OR_RETURN(const bool add_prefix_space, node.BoolOr("add_prefix_space", true));
  WINNOW_ASSIGN_OR_RETURN(const std::string name,
                          node.StringOr("prepend_scheme", add_prefix_space ? "always" : "never"));
  PrependScheme scheme;
  if (name == "always") {
    scheme = PrependScheme::kAlways;
  } else if (name == "first") {
    scheme = PrependScheme::kFirst;
  } else if (name == "never") {
    scheme = PrependScheme::kNever;
  } else {
    return node.ErrorAt("prepend_scheme", absl::StrCat("unknown scheme \"", name, "\""));
  }
  WINNOW_ASSIGN_OR_RETURN(const bool split, node.BoolOr("split", true));
  return std::make_unique<MetaspacePreTokenizer>(std::move(replacement), scheme, split);
}

}  // namespace

PreTokenizerOr ParsePreTokenizer(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "Sequence") return ParsePreTokenizerSequence(node);
  if (type == "ByteLevel") return ParseByteLevel(node);
  if (type == "Split") return ParseSplit(node);
  if (type == "Metaspace") return ParseMetaspace(node);
  if (type == "Digits") {
    WINNOW_ASSIGN_OR_RETURN(const bool individual, node.BoolOr("individual_digits", false));
    return std::make_unique<PredicatePreTokenizer>(&IsUnicodeNumeric,
                                                   individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    WINNOW_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                            ParseSplitBehavior(node, "behavior", SplitBehavior::kIsolated));
    return std::make_unique<PredicatePreTokenizer>(&IsUnicodePunctuation, behavior);
  }
  if (type == "Whitespace") {
    WINNOW_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::FromRegex(R"(\w+|[^\w\s]+)"));
    return std::make_unique<SplitPreTokenizer>(std::move(pattern), SplitBehavior::kRemoved, /*invert=*/true);
  }
  if (type == "WhitespaceSplit") {
    return std::make_unique<PredicatePreTokenizer>(&IsUnicodeWhitespace, SplitBehavior::kRemoved);
  }
  if (type == "BertPreTokenizer") {
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    parts.push_back(std::make_unique<PredicatePreTokenizer>(&IsUnicodeWhitespace, SplitBehavior::kRemoved));
    parts.push_back(std::make_unique<PredicatePreTokenizer>(&IsUnicodePunctuation, SplitBehavior::kIsolated));
    return std::make_unique<SequencePreTokenizer>(std::move(parts));
  }
  if (type == "FixedLength") {
    WINNOW_ASSIGN_OR_RETURN(const uint32_t length, node.Has("length") ? node.Uint32("length") : uint32_t{5});
    if (length == 0) return node.ErrorAt("length", "expected at least 1");
    return std::make_unique<FixedLengthPreTokenizer>(length);
  }
  if (type == "CharDelimiterSplit") {
    WINNOW_ASSIGN_OR_RETURN(std::string delimiter, node.String("delimiter"));
    if (CountCodePoints(delimiter) != 1) return node.ErrorAt("delimiter", "expected one character");
    return std::make_unique<SplitPreTokenizer>(TextPattern::Literal(std::move(delimiter)), SplitBehavior::kRemoved,
                                               /*invert=*/false);
  }
  return absl::UnimplementedError(absl::StrCat(node.path(), ".type: unsupported pre-tokenizer \"", type, "\""));
}

}  // namespace winnow
