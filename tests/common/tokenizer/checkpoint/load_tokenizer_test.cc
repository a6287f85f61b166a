#include "common/tokenizer/checkpoint/load_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace winnow {
namespace {

using testing::HasSubstr;
using Ids = std::vector<uint32_t>;

constexpr char kData[] = "tests/testdata/tokenizers/";

// A model directory with the files that a test puts there.
class LoadTokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/load_tokenizer_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << bytes;
  }
  static std::string Golden(const std::string& file) {
    std::ifstream in(kData + file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  std::string Error() const {
    const auto tokenizer = LoadTokenizer(dir_);
    return tokenizer.ok() ? "no error" : std::string(tokenizer.status().message());
  }
  Ids Encode(const std::string& text, bool special = true) const {
    const auto tokenizer = LoadTokenizer(dir_);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode(text, special).value_or(Ids{}) : Ids{};
  }

  std::string dir_;
};

TEST_F(LoadTokenizerTest, ADirectoryMayHaveNone) {
  const auto tokenizer = LoadTokenizer(dir_);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(*tokenizer, nullptr);
}

TEST_F(LoadTokenizerTest, TokenizerJsonComesFirst) {
  Write("tokenizer.model", Golden("spm-bpe-llama/tokenizer.model"));
  EXPECT_EQ(FindTokenizerFile(dir_), dir_ + "/tokenizer.model");
  Write("tokenizer.json", R"({"model": {"vocab": {"a": 7}, "merges": []}})");
  EXPECT_EQ(Encode("a"), (Ids{7}));
}

TEST_F(LoadTokenizerTest, ConfigSaysWhatIsPutAround) {
  Write("tokenizer.model", Golden("spm-bpe-llama/tokenizer.model"));
  const Ids plain = Encode("a", false);
  Ids with_bos = plain;
  with_bos.insert(with_bos.begin(), 1);
  EXPECT_EQ(Encode("a"), with_bos);
  Write("tokenizer_config.json",
        R"({"add_bos_token": false, "add_eos_token": true, "eos_token": {"content": "</s>"}})");
  Ids with_eos = plain;
  with_eos.push_back(2);
  EXPECT_EQ(Encode("a"), with_eos);
  Write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<nothing>"})");
  EXPECT_EQ(Encode("a").front(), 1000u);  // a token that the vocabulary does not have comes behind it
}

TEST_F(LoadTokenizerTest, NotLegacyOnlyTheStartGetsASpace) {
  Write("tokenizer.model", Golden("spm-bpe-llama/tokenizer.model"));
  const Ids a = Encode("a", false);
  Write("tokenizer_config.json", R"({"add_prefix_space": false})");
  const Ids bare = Encode("a", false);
  EXPECT_NE(a, bare);
  const auto joined = [](Ids first, const Ids& second) {
    first.push_back(2);
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  Write("tokenizer_config.json", R"({"legacy": true})");
  EXPECT_EQ(Encode("a</s>a", false), joined(a, a));
  Write("tokenizer_config.json", R"({"legacy": false})");
  EXPECT_EQ(Encode("a</s>a", false), joined(a, bare));
}

TEST_F(LoadTokenizerTest, AddedTokensBringTheirIds) {
  Write("tokenizer.model", Golden("spm-bpe-llama/tokenizer.model"));
  Write("tokenizer_config.json", R"({"added_tokens_decoder": {"1003": {"content": "<|im_start|>", "special": true}}})");
  Write("added_tokens.json", R"({"<|tool|>": 1004})");
  EXPECT_EQ(Encode("<|im_start|><|tool|>", false), (Ids{1003, 1004}));
  Write("tokenizer_config.json", R"({"added_tokens_decoder": {"7x": "<a>"}})");
  EXPECT_EQ(Error(), dir_ + "/tokenizer_config.json: added_tokens_decoder.7x: expected an id");
  Write("tokenizer_config.json", R"({"added_tokens_decoder": {"5": "<a>"}})");
  EXPECT_THAT(Error(), HasSubstr("tokenizer.model: added_tokens[0]: id 5 of \"<a>\" is the id of"));
}

// Constrained outputs are made of these.
TEST_F(LoadTokenizerTest, TokensHaveTheirBytes) {
  const auto llama = LoadTokenizer(std::string(kData) + "spm-bpe-llama");
  ASSERT_TRUE(llama.ok());
  EXPECT_EQ((*llama)->TokenBytes(*(*llama)->TokenId("<0xE6>")), "\xE6");
  EXPECT_EQ((*llama)->TokenBytes(*(*llama)->TokenId("▁")), " ");
  EXPECT_EQ((*llama)->TokenBytes(2), "</s>");
  const auto tiktoken = LoadTokenizer(std::string(kData) + "tiktoken-kimi");
  ASSERT_TRUE(tiktoken.ok());
  EXPECT_EQ((*tiktoken)->TokenBytes(0xE6), "\xE6");
  EXPECT_EQ((*tiktoken)->TokenBytes(' '), " ");
  EXPECT_EQ((*tiktoken)->TokenBytes(702), "<|im_end|>");
  const auto bert = LoadTokenizer(std::string(kData) + "bert-vocab");
  ASSERT_TRUE(bert.ok());
  EXPECT_EQ((*bert)->TokenBytes(*(*bert)->TokenId("and")), " and");
  EXPECT_EQ((*bert)->TokenBytes(*(*bert)->TokenId("##s")), "s");
}

TEST_F(LoadTokenizerTest, DamagedSentencePieceModels) {
  const std::string model = Golden("spm-unigram-rules/tokenizer.model");
  Write("tokenizer.model", "");
  EXPECT_EQ(Error(), dir_ + "/tokenizer.model: pieces: none is the unknown piece");
  Write("tokenizer.model", model.substr(0, 40));
  EXPECT_THAT(Error(), HasSubstr("not a SentencePiece model: damaged in the field at byte "));
  Write("tokenizer.model", std::string("\x0A\x00\x0A\x05\x0A\x03<s>", 9));
  EXPECT_THAT(Error(), HasSubstr("pieces[0]: the piece is empty"));
  Write("tokenizer.model", model);
  Write("tokenizer_config.json", R"({"tokenizer_class": "XLMRobertaTokenizer"})");
  EXPECT_THAT(Error(), HasSubstr("XLMRobertaTokenizer, which numbers the pieces anew: it needs a tokenizer.json"));
}

TEST_F(LoadTokenizerTest, DamagedTiktokenFiles) {
  const std::string ranks = Golden("tiktoken-llama3/tokenizer.model");
  Write("x.tiktoken", "IQ== 0\n?? 1\n");
  EXPECT_EQ(Error(), dir_ + "/x.tiktoken: line 2 at byte 7: expected a token in base64, a space and its rank");
  Write("x.tiktoken", "IQ== 0\nIg== 0\n");
  EXPECT_THAT(Error(), HasSubstr("line 2 at byte 7: rank 0 is there twice"));
  Write("x.tiktoken", "IQ== 0\n");
  EXPECT_THAT(Error(), HasSubstr("not all 256 bytes are tokens"));
  Write("x.tiktoken", ranks);
  Write("tokenizer_config.json", R"({"tokenizer_class": "OwnTokenizer"})");
  EXPECT_THAT(Error(), HasSubstr("has no pat_str, and the pattern of tokenizer_class \"OwnTokenizer\" is not known"));
  Write("tokenizer_config.json", R"({"tokenizer_class": "OwnTokenizer", "pat_str": "("})");
  EXPECT_THAT(Error(), HasSubstr("regex does not compile"));
  Write("tokenizer_config.json", R"({"tokenizer_class": "OwnTokenizer", "pat_str": "\\S+|\\s+"})");
  EXPECT_EQ(Error(), "no error");
}

TEST_F(LoadTokenizerTest, DamagedVocabularies) {
  Write("vocab.txt", "a\nb\n");
  EXPECT_EQ(Error(), dir_ + "/vocab.txt: the unknown token \"[UNK]\" is not there");
  Write("vocab.txt", "a\nb\xFF\n");
  EXPECT_EQ(Error(), dir_ + "/vocab.txt: not UTF-8 at byte 3");
}

}  // namespace
}  // namespace winnow
