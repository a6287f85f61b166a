#include "common/tokenizer/pipeline/bert_normalizer.h"

#include <string>

#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

// The blocks of CJK ideographs that BERT knows; Hangul and Kana are not among them.
bool IsBertIdeograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const BertNormalizerOptions& options) : options_(options) {}

  absl::Status Normalize(std::string* text) const override {
    if (options_.clean_text || options_.handle_chinese_chars) *text = CleanAndSpace(*text);
    if (options_.strip_accents) {
      *text = WithoutCharacters(NormalizeUnicode(*text, NormalizationForm::kNfd), &IsNonspacingMark);
    }
    if (options_.lowercase) *text = LowercaseUnicode(*text);
    return absl::OkStatus();
  }

 private:
  std::string CleanAndSpace(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    for (size_t pos = 0; pos < text.size();) {
      const char32_t c = NextCodePoint(text, &pos);
      if (options_.clean_text && IsUnicodeWhitespace(c)) {
        // U+0085 and the vertical tabs are control characters first.
        if (c == '\t' || c == '\n' || c == '\r' || !IsUnicodeControl(c)) out.push_back(' ');
        continue;
      }
      if (options_.clean_text && (c == 0 || c == 0xFFFD || IsUnicodeControl(c))) continue;
      const bool spaced = options_.handle_chinese_chars && IsBertIdeograph(c);
      if (spaced) out.push_back(' ');
      AppendUtf8(c, &out);
      if (spaced) out.push_back(' ');
    }
    return out;
  }

  const BertNormalizerOptions options_;
};

}  // namespace

std::unique_ptr<Normalizer> NewBertNormalizer(const BertNormalizerOptions& options) {
  return std::make_unique<BertNormalizer>(options);
}

}  // namespace winnow
