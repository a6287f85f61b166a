#include "common/tokenizer/checkpoint/sentencepiece_normalizer.h"

#include <utility>

#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

ByteTrie TrieOf(const std::vector<std::string_view>& keys) {
  std::vector<ByteTrie::Entry> entries;
  for (const std::string_view key : keys) entries.push_back({key, 0});
  return ByteTrie(std::move(entries));
}

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(CharsMap rules, const std::vector<std::string_view>& user_defined,
                                                 const Options& options)
    : rules_(std::move(rules)), user_defined_(TrieOf(user_defined)), options_(options) {}

CharsMap::Match SentencePieceNormalizer::Next(std::string_view rest) const {
  if (const size_t bytes = user_defined_.LongestPrefix(rest).bytes; bytes > 0) return {bytes, rest.substr(0, bytes)};
  if (const auto match = rules_.LongestPrefix(rest)) return *match;
  const size_t bytes = Utf8SequenceBytes(static_cast<unsigned char>(rest[0]));
  return {bytes, rest.substr(0, bytes)};
}

absl::Status SentencePieceNormalizer::NormalizePart(std::string* text, bool at_input_start) const {
  const std::string_view space = options_.escape_whitespaces ? kSpaceMark : " ";
  std::string out;
  out.reserve(text->size() + text->size() / 4 + space.size());
  bool after_space = options_.remove_extra_whitespaces;
  size_t skipped = 0;  // bytes of the spaces that the text starts with, where those are removed
  for (size_t pos = 0; pos < text->size();) {
    auto [bytes, replacement] = Next(std::string_view(*text).substr(pos));
    if (options_.remove_extra_whitespaces && skipped == pos && replacement == " ") skipped += bytes;
    pos += bytes;
    while (after_space && replacement.starts_with(' ')) replacement.remove_prefix(1);
    if (replacement.empty()) continue;
    after_space = options_.remove_extra_whitespaces && replacement.ends_with(' ');
    for (const char c : replacement) {
      if (c == ' ') {
        out.append(space);
      } else {
        out.push_back(c);
      }
    }
    if (out.size() > kMaxTransformedBytes) return absl::ResourceExhaustedError("normalized text is over 1 GiB");
  }
  // Nothing but spaces is no text, and gets no prefix either.
  const bool empty = skipped == text->size();
  const bool prefix = !empty && (options_.dummy_prefix == DummyPrefix::kEveryPart ||
                                 (options_.dummy_prefix == DummyPrefix::kInputStart && at_input_start));
  if (prefix && !options_.prefix_is_suffix) out.insert(0, space);
  if (options_.remove_extra_whitespaces) {
    std::string_view kept = out;
    while (kept.ends_with(space)) kept.remove_suffix(space.size());
    out.erase(kept.size());
  }
  if (prefix && options_.prefix_is_suffix) out.append(space);
  *text = std::move(out);
  return absl::OkStatus();
}

}  // namespace winnow
