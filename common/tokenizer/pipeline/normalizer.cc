#include "common/tokenizer/pipeline/normalizer.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/pipeline/bert_normalizer.h"
#include "common/tokenizer/pipeline/chars_map.h"
#include "common/tokenizer/split.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

class UnicodeFormNormalizer : public Normalizer {
 public:
  explicit UnicodeFormNormalizer(NormalizationForm form) : form_(form) {}
  absl::Status Normalize(std::string* text) const override {
    *text = NormalizeUnicode(*text, form_);
    return absl::OkStatus();
  }

 private:
  const NormalizationForm form_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  absl::Status Normalize(std::string* text) const override {
    *text = LowercaseUnicode(*text);
    return absl::OkStatus();
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  absl::Status Normalize(std::string* text) const override {
    std::string out;
    AppendByteLevel(*text, &out);
    *text = std::move(out);
    return absl::OkStatus();
  }
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Normalize(std::string* text) const override {
    if (!text->empty()) text->insert(0, prefix_);
    return absl::OkStatus();
  }

 private:
  const std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Normalize(std::string* text) const override {
    WINNOW_ASSIGN_OR_RETURN(*text, pattern_.ReplaceAll(*text, content_, kMaxTransformedBytes));
    return absl::OkStatus();
  }

 private:
  const TextPattern pattern_;
  const std::string content_;
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Normalize(std::string* text) const override {
    size_t begin = text->size(), end = 0;  // around the characters that are not whitespace
    for (size_t pos = 0; pos < text->size();) {
      const size_t at = pos;
      if (IsUnicodeWhitespace(NextCodePoint(*text, &pos))) continue;
      begin = std::min(begin, at);
      end = pos;
    }
    if (end == 0) {
      if (left_ || right_) text->clear();
      return absl::OkStatus();
    }
    if (right_) text->resize(end);
    if (left_) text->erase(0, begin);
    return absl::OkStatus();
  }

 private:
  const bool left_, right_;
};

class StripAccentsNormalizer : public Normalizer {
 public:
  absl::Status Normalize(std::string* text) const override {
    *text = WithoutCharacters(*text, &IsCombiningMark);
    return absl::OkStatus();
  }
};

// The rules that machine translation puts before a Unigram model: control characters vanish, what else is blank becomes
// a space.
class NmtNormalizer : public Normalizer {
 public:
  absl::Status Normalize(std::string* text) const override {
    std::string out;
    for (size_t pos = 0; pos < text->size();) {
      const char32_t c = NextCodePoint(*text, &pos);
      if (Vanishes(c)) continue;
      AppendUtf8(IsBlank(c) ? U' ' : c, &out);
    }
    *text = std::move(out);
    return absl::OkStatus();
  }

 private:
  static bool Vanishes(char32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
  }
  static bool IsBlank(char32_t c) {
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  }
};

// SentencePiece's compiled rules as the `tokenizers` library applies them: to grapheme clusters of less than six bytes
// as a whole, else to each character, and of several rules that fit the one for the fewest characters.
class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(CharsMap rules) : rules_(std::move(rules)) {}
  absl::Status Normalize(std::string* text) const override {
    std::string out;
    out.reserve(text->size());
    const std::string_view in = *text;
    GraphemeCutter cutter(in);
    for (std::string_view cluster = cutter.Next(); !cluster.empty(); cluster = cutter.Next()) {
      if (cluster.size() < kWholeClusterBytes) {
        if (const auto match = rules_.ShortestPrefix(cluster)) {
          out.append(match->replacement);
          continue;
        }
      }
      for (size_t pos = 0; pos < cluster.size();) {
        const size_t begin = pos;
        NextCodePoint(cluster, &pos);
        const std::string_view character = cluster.substr(begin, pos - begin);
        const auto match = rules_.ShortestPrefix(character);
        out.append(match ? match->replacement : character);
      }
      if (out.size() > kMaxTransformedBytes) return absl::ResourceExhaustedError("normalized text is over 1 GiB");
    }
    *text = std::move(out);
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kWholeClusterBytes = 6;
  const CharsMap rules_;
};

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  absl::Status Normalize(std::string* text) const override {
    for (const auto& part : parts_) {
      WINNOW_RETURN_IF_ERROR(part->Normalize(text));
      if (text->size() > kMaxTransformedBytes) {
        return absl::ResourceExhaustedError(
            absl::StrCat("normalization makes a text of over ", kMaxTransformedBytes, " bytes"));
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> parts_;
};

absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizerSequence(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const JsonNode list, node.Member("normalizers"));
  WINNOW_RETURN_IF_ERROR(list.RequireArray());
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (size_t i = 0; i < list.value().size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(auto part, ParseNormalizer(list.Element(i)));
    parts.push_back(std::move(part));
  }
  return std::make_unique<SequenceNormalizer>(std::move(parts));
}

absl::StatusOr<std::unique_ptr<Normalizer>> ParsePrecompiled(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const std::string base64, node.StringOr("precompiled_charsmap", ""));
  if (base64.empty()) return std::make_unique<PrecompiledNormalizer>(CharsMap());
  std::string blob;
  if (!absl::Base64Unescape(base64, &blob)) return node.ErrorAt("precompiled_charsmap", "not base64");
  auto rules = CharsMap::Parse(blob);
  if (!rules.ok()) return node.ErrorAt("precompiled_charsmap", StdSv(rules.status().message()));
  return std::make_unique<PrecompiledNormalizer>(*std::move(rules));
}

absl::StatusOr<std::unique_ptr<Normalizer>> ParseBert(const JsonNode& node) {
  BertNormalizerOptions options;
  WINNOW_ASSIGN_OR_RETURN(options.clean_text, node.BoolOr("clean_text", true));
  WINNOW_ASSIGN_OR_RETURN(options.handle_chinese_chars, node.BoolOr("handle_chinese_chars", true));
  WINNOW_ASSIGN_OR_RETURN(options.lowercase, node.BoolOr("lowercase", true));
  WINNOW_ASSIGN_OR_RETURN(options.strip_accents, node.BoolOr("strip_accents", options.lowercase));
  return NewBertNormalizer(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "Sequence") return ParseNormalizerSequence(node);
  if (type == "NFC") return std::make_unique<UnicodeFormNormalizer>(NormalizationForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeFormNormalizer>(NormalizationForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeFormNormalizer>(NormalizationForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeFormNormalizer>(NormalizationForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "Nmt") return std::make_unique<NmtNormalizer>();
  if (type == "BertNormalizer") return ParseBert(node);
  if (type == "Precompiled") return ParsePrecompiled(node);
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Prepend") {
    WINNOW_ASSIGN_OR_RETURN(std::string prefix, node.String("prepend"));
    return std::make_unique<PrependNormalizer>(std::move(prefix));
  }
  if (type == "Replace") {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Member("pattern"));
    WINNOW_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Parse(pattern_node));
    WINNOW_ASSIGN_OR_RETURN(std::string content, node.String("content"));
    return std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content));
  }
  if (type == "Strip") {
    WINNOW_ASSIGN_OR_RETURN(const bool left, node.BoolOr("strip_left", true));
    WINNOW_ASSIGN_OR_RETURN(const bool right, node.BoolOr("strip_right", true));
    return std::make_unique<StripNormalizer>(left, right);
  }
  return absl::UnimplementedError(absl::StrCat(node.path(), ".type: unsupported normalizer \"", type, "\""));
}

}  // namespace winnow
