// Targets in one, chosen by the first byte: a tokenizer.json, a SentencePiece model, a tiktoken file or a vocab.txt
// from the input; text through small tokenizers of each family, where encoding must not fail on UTF-8; and ids, where
// the streamed text must equal the decoded one.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/checkpoint/sentencepiece_file.h"
#include "common/tokenizer/checkpoint/tiktoken_file.h"
#include "common/tokenizer/checkpoint/word_piece_file.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr std::string_view kByteLevel = R"({
  "added_tokens": [{"id": 8, "content": "<|end|>", "special": true, "normalized": false},
                   {"id": 9, "content": " x", "special": false, "lstrip": true, "rstrip": true, "normalized": true}],
  "normalizer": {"type": "NFC"},
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ã": 4, "©": 5, "Ĭ": 6, "Ċ": 7},
            "merges": ["a b"]}})";
constexpr std::string_view kSentencePiece = R"({
  "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                 {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
              {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": {"<unk>": 0, "<s>": 1, "<0xE2>": 2, "<0x96>": 3, "<0x81>": 4, "<0xFF>": 5, "▁": 6, "a": 7, "▁a": 8},
            "merges": [["▁", "a"]]}})";

constexpr std::string_view kUnigram = R"({
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "Precompiled", "precompiled_charsmap": ""}]},
  "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
  "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
  "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["▁", -1], ["a", -2], ["▁a", -2.5], ["ab", -3]]}})";
constexpr std::string_view kWordPiece = R"({
  "normalizer": {"type": "BertNormalizer"},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
            "vocab": {"[UNK]": 0, "a": 1, "##a": 2, "##b": 3, ".": 4, "do": 5, "not": 6, "'": 7}}})";

// Whatever a file makes, it is used.
void CheckFile(absl::StatusOr<TokenizerParts> parts) {
  if (!parts.ok()) return;
  const auto tokenizer = Tokenizer::Assemble(*std::move(parts));
  if (!tokenizer.ok()) return;
  const auto ids = (*tokenizer)->Encode("a ab <s>\n  \xC3\xA9 1!\xE2\x96\x81", true);
  if (ids.ok()) (*tokenizer)->Decode(*ids, false);
}

void CheckText(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.Encode(text, true);
  if (ids.ok() != (FindInvalidUtf8(text) == text.npos)) std::abort();
  if (!ids.ok()) return;
  for (const uint32_t id : *ids) {
    if (id >= tokenizer.VocabSize()) std::abort();
  }
}

void CheckIds(const Tokenizer& tokenizer, std::string_view bytes) {
  std::vector<uint32_t> ids;
  for (const char c : bytes) ids.push_back(static_cast<unsigned char>(c) % 12);
  for (const bool skip : {false, true}) {
    Detokenizer detokenizer(&tokenizer, skip);
    std::string text;
    for (const uint32_t id : ids) {
      const std::string piece = detokenizer.Push(id);
      if (FindInvalidUtf8(piece) != piece.npos) std::abort();
      text += piece;
    }
    text += detokenizer.Flush();
    if (text != tokenizer.Decode(ids, skip)) std::abort();
  }
}

}  // namespace
}  // namespace winnow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using winnow::Tokenizer;
  static const auto byte_level = *Tokenizer::Parse(winnow::kByteLevel, "byte level");
  static const auto sentence_piece = *Tokenizer::Parse(winnow::kSentencePiece, "sentence piece");
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  static const auto unigram = *Tokenizer::Parse(winnow::kUnigram, "unigram");
  static const auto word_piece = *Tokenizer::Parse(winnow::kWordPiece, "word piece");
  const Tokenizer* const tokenizers[] = {sentence_piece.get(), byte_level.get(), unigram.get(), word_piece.get()};
  const Tokenizer& tokenizer = *tokenizers[data[0] >> 2 & 3];
  switch (data[0] & 3) {
    case 0:
      switch (data[0] >> 2 & 3) {
        case 0:
          winnow::CheckFile(winnow::ParseSentencePiece(rest, {}));
          break;
        case 1:
          winnow::CheckFile(winnow::ParseTiktoken(rest, {}));
          break;
        default:
          winnow::CheckFile(winnow::ParseWordPieceVocabulary(rest, {}));
      }
      break;
    case 1:
      if (const auto parsed = Tokenizer::Parse(rest, "fuzz"); parsed.ok()) {
        const auto ids = (*parsed)->Encode("a ab <s>\n\xC3\xA9 1!", true);
        if (ids.ok()) (*parsed)->Decode(*ids, false);
      }
      break;
    case 2:
      winnow::CheckText(tokenizer, rest);
      break;
    default:
      winnow::CheckIds(tokenizer, rest);
  }
  return 0;
}
