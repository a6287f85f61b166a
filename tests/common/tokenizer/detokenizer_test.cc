#include "common/tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "common/tokenizer/utf8.h"
#include "tests/common/tokenizer/small_tokenizers.h"

namespace winnow {
namespace {

// Decoder chains in all orders that change what can be passed on early.
std::string WithDecoder(const std::string& decoder) {
  return R"({"added_tokens": [{"id": 0, "content": "<s>", "special": true}], "decoder": )" + decoder +
         R"(, "model": {"vocab": {"<0xC3>": 1, "<0xA9>": 2, "<0xEF>": 3, "<0xBF>": 4, "<0xBD>": 5, "▁": 6, "a": 7, "▁a": 8,
         "a▁": 9, "▁▁": 10, "Ã": 11, "©": 12, "Ġ": 13, "é": 14, "ab": 15, "b": 16, "<0x20>": 17}, "merges": []}})";
}

std::vector<std::string> Tokenizers() {
  std::vector<std::string> all = {std::string(kLlama3Style), std::string(kLlama2Style), MetaspaceStyle("always", true),
                                  MetaspaceStyle("never", true)};
  for (
      const char* decoder : {
          "null",
          R"({"type": "ByteLevel"})",
          R"({"type": "Fuse"})",
          R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
               {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}]})",
          R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁"}]})",
          R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "aba"}, "content": "X"},
               {"type": "Strip", "content": "a", "start": 2, "stop": 3}]})",
          R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"Regex": "a+b"}, "content": ""}]})",
          R"({"type": "Sequence", "decoders": [{"type": "Strip", "content": "a", "start": 1, "stop": 1}, {"type": "ByteLevel"},
               {"type": "Replace", "pattern": {"String": "é"}, "content": "e"}]})",
          R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}, {"type": "ByteLevel"}]})",
      }) {
    all.push_back(WithDecoder(decoder));
  }
  return all;
}

TEST(DetokenizerTest, PiecesAddUpToTheBatchDecodeAndAreValid) {
  std::mt19937 random(11);
  for (const std::string& json : Tokenizers()) {
    const auto tokenizer = MakeTokenizer(json);
    for (int round = 0; round < 400; ++round) {
      std::vector<uint32_t> ids(random() % 24);
      for (uint32_t& id : ids) id = random() % (tokenizer->VocabSize() + 1);
      const bool skip_special = round % 2 == 0;
      Detokenizer detokenizer(tokenizer.get(), skip_special);
      std::string text;
      for (const uint32_t id : ids) {
        const std::string piece = detokenizer.Push(id);
        EXPECT_EQ(FindInvalidUtf8(piece), std::string::npos);
        text += piece;
      }
      text += detokenizer.Flush();
      ASSERT_EQ(text, tokenizer->Decode(ids, skip_special)) << json << testing::PrintToString(ids);
    }
  }
}

// What has been passed on must be a prefix of the text, whatever follows.
TEST(DetokenizerTest, PiecesAreFinal) {
  std::mt19937 random(12);
  for (const std::string& json : Tokenizers()) {
    const auto tokenizer = MakeTokenizer(json);
    for (int round = 0; round < 100; ++round) {
      Detokenizer detokenizer(tokenizer.get(), false);
      std::string text;
      std::vector<uint32_t> ids;
      for (int i = 0; i < 8; ++i) {
        ids.push_back(random() % tokenizer->VocabSize());
        text += detokenizer.Push(ids.back());
        std::vector<uint32_t> longer = ids;
        for (int k = 0; k < 4; ++k) {
          longer.push_back(random() % tokenizer->VocabSize());
          ASSERT_TRUE(tokenizer->Decode(longer, false).starts_with(text)) << json << testing::PrintToString(longer);
        }
      }
    }
  }
}

TEST(DetokenizerTest, TextComesAsSoonAsItIsFinal) {
  const auto byte_level = MakeTokenizer(kLlama3Style);
  Detokenizer a(byte_level.get(), true);
  EXPECT_EQ(a.Push(11), "low");
  EXPECT_EQ(a.Push(15), "");  // half of é
  EXPECT_EQ(a.Push(16), "é");
  EXPECT_EQ(a.Push(20), "");  // special, skipped
  EXPECT_EQ(a.Push(15), "");
  EXPECT_EQ(a.Push(0), "\uFFFDl");  // the half was not finished
  EXPECT_EQ(a.Push(15), "");
  EXPECT_EQ(a.Flush(), "\uFFFD");

  const auto sentence_piece = MakeTokenizer(kLlama2Style);
  Detokenizer b(sentence_piece.get(), true);
  EXPECT_EQ(b.Push(14), "ab");  // the first space is stripped
  EXPECT_EQ(b.Push(13), " a");
  EXPECT_EQ(b.Push(3), "");
  EXPECT_EQ(b.Push(4), "");  // é, but a wrong byte may still follow
  EXPECT_EQ(b.Push(9), "éa");
  EXPECT_EQ(b.Push(3), "");
  EXPECT_EQ(b.Push(3), "\uFFFD\uFFFD");  // now the run can only be wrong
  EXPECT_EQ(b.Push(4), "\uFFFD");
  EXPECT_EQ(b.Flush(), "");
}

}  // namespace
}  // namespace winnow
