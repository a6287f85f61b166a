// Golden data over texts chosen to separate the rules, and random ones of all scripts: of tokenizer.json and vocab.txt
// by the Hugging Face `tokenizers` library (0.23), of tokenizer.model by SentencePiece (0.1.97), of *.tiktoken by
// tiktoken.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "common/base/json.h"
#include "common/tokenizer/checkpoint/load_tokenizer.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

class GoldenTokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string folder = std::string("tests/testdata/tokenizers/") + GetParam();
    auto tokenizer = LoadTokenizer(folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ASSERT_NE(*tokenizer, nullptr);
    tokenizer_ = *std::move(tokenizer);
    std::ifstream file(folder + "/golden.json");
    cases_ = nlohmann::json::parse(file);
    ASSERT_GT(cases_.size(), 50u);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  nlohmann::json cases_;
};

TEST_P(GoldenTokenizerTest, EncodesToTheSameIds) {
  for (const auto& c : cases_) {
    const auto text = c["text"].get<std::string>();
    for (const auto& [key, special] : {std::pair("ids", false), std::pair("ids_with_special", true)}) {
      const auto ids = tokenizer_->Encode(text, special);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, c[key].get<std::vector<uint32_t>>()) << "text: " << c["text"].dump();
    }
  }
}

TEST_P(GoldenTokenizerTest, EncodesWithinExactlyAsManyTokensAsThereAre) {
  for (const auto& c : cases_) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<std::vector<uint32_t>>();
    const auto within = tokenizer_->Encode(text, false, ids.size());
    ASSERT_TRUE(within.ok()) << within.status() << " text: " << c["text"].dump();
    EXPECT_EQ(*within, ids);
    if (ids.empty()) continue;
    EXPECT_TRUE(absl::IsOutOfRange(tokenizer_->Encode(text, false, ids.size() - 1).status())) << c["text"].dump();
  }
}

TEST_P(GoldenTokenizerTest, DecodesToTheSameText) {
  for (const auto& c : cases_) {
    const auto ids = c["ids"].get<std::vector<uint32_t>>();
    EXPECT_EQ(tokenizer_->Decode(ids, false), c["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer_->Decode(ids, true), c["decoded_skip_special"].get<std::string>());
  }
}

TEST_P(GoldenTokenizerTest, StreamedPiecesAddUpToTheText) {
  for (const auto& c : cases_) {
    Detokenizer detokenizer(tokenizer_.get(), true);
    std::string text;
    for (const auto id : c["ids"].get<std::vector<uint32_t>>()) {
      const std::string piece = detokenizer.Push(id);
      EXPECT_EQ(FindInvalidUtf8(piece), std::string::npos);  // never half a character
      text += piece;
    }
    text += detokenizer.Flush();
    EXPECT_EQ(text, c["decoded_skip_special"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTokenizerTest,
                         testing::Values("demo", "gpt2-bytelevel", "qwen-nfc", "unigram-xlmr", "unigram-albert",
                                         "unigram-t5", "unigram-bytes", "wordpiece-bert", "wordpiece-cased",
                                         "bpe-wordend", "bpe-prefix", "spm-unigram-rules", "spm-unigram-bytes",
                                         "spm-bpe-llama", "spm-bpe-rules", "spm-bpe-noprefix", "tiktoken-llama3",
                                         "tiktoken-qwen", "tiktoken-kimi", "bert-vocab"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace winnow
