#include "common/tokenizer/normalizer.h"

#include <vector>

#include "common/tokenizer/byte_level.h"
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
    std::string out;
    for (size_t pos = 0; pos < text->size();) {
      const char32_t c = NextCodePoint(*text, &pos);
      if (!IsNonspacingMark(c)) AppendUtf8(c, &out);
    }
    *text = std::move(out);
    return absl::OkStatus();
  }
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

absl::StatusOr<std::unique_ptr<Normalizer>> ParseSequence(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const JsonNode list, node.Member("normalizers"));
  WINNOW_RETURN_IF_ERROR(list.RequireArray());
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (size_t i = 0; i < list.value().size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(auto part, ParseNormalizer(list.Element(i)));
    parts.push_back(std::move(part));
  }
  return std::make_unique<SequenceNormalizer>(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "Sequence") return ParseSequence(node);
  if (type == "NFC") return std::make_unique<UnicodeFormNormalizer>(NormalizationForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeFormNormalizer>(NormalizationForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeFormNormalizer>(NormalizationForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeFormNormalizer>(NormalizationForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
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
