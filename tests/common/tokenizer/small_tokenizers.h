#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace winnow {

// Tokenizers of the public families, small enough to work out every id by hand.

// Llama 3: split regex, byte-level alphabet, ignore_merges, a template that puts <bos> first.
//   "low" has no merge path (only l+o), yet is one token because of ignore_merges.
inline constexpr std::string_view kLlama3Style = R"({
  "added_tokens": [
    {"id": 20, "content": "<bos>", "special": true, "normalized": false},
    {"id": 21, "content": "<eot>", "special": true, "normalized": false}],
  "normalizer": null,
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
     "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
  "post_processor": {"type": "Sequence", "processors": [
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
     "pair": [], "special_tokens": {"<bos>": {"id": "<bos>", "ids": [20], "tokens": ["<bos>"]}}}]},
  "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
    "ignore_merges": true,
    "vocab": {"l": 0, "o": 1, "w": 2, "e": 3, "r": 4, "Ġ": 5, "1": 6, "2": 7, "3": 8, "4": 9, "lo": 10, "low": 11,
              "er": 12, "Ġl": 13, "12": 14, "Ã": 15, "©": 16, "Ċ": 17, "123": 18, "Ġlo": 19},
    "merges": ["l o", "e r", ["Ġ", "l"], "1 2", ["Ġl", "o"]]}})";

// Llama 2: the normalizer puts a mark before the text and in place of spaces; unknown characters become bytes.
inline constexpr std::string_view kLlama2Style = R"({
  "added_tokens": [
    {"id": 0, "content": "<unk>", "special": true, "normalized": false},
    {"id": 1, "content": "<s>", "special": true, "normalized": false},
    {"id": 2, "content": "</s>", "special": true, "normalized": false}],
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "pre_tokenizer": null,
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
    "ignore_merges": false,
    "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "<0xC3>": 3, "<0xA9>": 4, "<0xE6>": 5, "<0x97>": 6, "<0xA5>": 7,
              "▁": 8, "a": 9, "b": 10, "c": 11, "ab": 12, "▁a": 13, "▁ab": 14, "▁▁": 15},
    "merges": [["a", "b"], ["▁", "ab"], ["▁", "a"], ["▁", "▁"]]}})";

// Newer SentencePiece conversions: the marks are the pre-tokenizer's. `%s` stands for the prepend scheme.
inline std::string MetaspaceStyle(const std::string& scheme, bool split) {
  std::string json = R"({
    "added_tokens": [{"id": 1, "content": "<s>", "special": true, "normalized": false}],
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "SCHEME", "split": SPLIT},
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "SCHEME", "split": SPLIT},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": false, "byte_fallback": false,
      "vocab": {"<unk>": 0, "<s>": 1, "▁": 2, "a": 3, "b": 4, "▁a": 5, "a▁": 6},
      "merges": [["a", "▁"], ["▁", "a"]]}})";
  for (size_t at; (at = json.find("SCHEME")) != json.npos;) json.replace(at, 6, scheme);
  for (size_t at; (at = json.find("SPLIT")) != json.npos;) json.replace(at, 5, split ? "true" : "false");
  return json;
}

inline std::unique_ptr<Tokenizer> MakeTokenizer(std::string_view json) {
  auto tokenizer = Tokenizer::Parse(json, "small tokenizer");
  if (!tokenizer.ok()) throw std::runtime_error(std::string(tokenizer.status().message()));
  return *std::move(tokenizer);
}

}  // namespace winnow
