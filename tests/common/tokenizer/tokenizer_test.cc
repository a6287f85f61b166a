#include "common/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/common/tokenizer/small_tokenizers.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<uint32_t>;

Ids Encode(const Tokenizer& tokenizer, std::string_view text, bool special = false) {
  return tokenizer.Encode(text, special).value();
}

TEST(Llama3StyleTest, EncodesByRule) {
  const auto t = MakeTokenizer(kLlama3Style);
  EXPECT_THAT(Encode(*t, "low"), ElementsAre(11));           // a whole word of the vocabulary skips the merges
  EXPECT_THAT(Encode(*t, "lower"), ElementsAre(10, 2, 12));  // lo w er: no merge makes low
  EXPECT_THAT(Encode(*t, " low"), ElementsAre(5, 10, 2));    // l+o has rank 0, and no merge joins Ġ and lo
  EXPECT_THAT(Encode(*t, "1234"), ElementsAre(18, 9));       // digits in groups of three
  EXPECT_THAT(Encode(*t, "é"), ElementsAre(15, 16));         // its two bytes
  EXPECT_THAT(Encode(*t, "l\n\nl"), ElementsAre(0, 17, 17, 0));
  EXPECT_THAT(Encode(*t, "low", true), ElementsAre(20, 11));
  EXPECT_THAT(Encode(*t, "", true), ElementsAre(20));
  EXPECT_THAT(Encode(*t, "l<eot>o", true), ElementsAre(20, 0, 21, 1));  // text of a special token is that token
  EXPECT_THAT(Encode(*t, "x"), IsEmpty());                              // no token, no unk_token: dropped
}

TEST(Llama3StyleTest, DecodesBytes) {
  const auto t = MakeTokenizer(kLlama3Style);
  EXPECT_EQ(t->Decode({20, 11, 5, 15, 16}, false), "<bos>low é");
  EXPECT_EQ(t->Decode({20, 11, 5, 15, 16}, true), "low é");
  EXPECT_EQ(t->Decode({15, 0, 15, 15, 16, 15}, false), "\uFFFDl\uFFFDé\uFFFD");  // unfinished sequences
  EXPECT_EQ(t->Decode({0, 4000000000, 1}, false), "lo");                         // ids without a token add nothing
}

TEST(Llama2StyleTest, EncodesByRule) {
  const auto t = MakeTokenizer(kLlama2Style);
  EXPECT_THAT(Encode(*t, "ab"), ElementsAre(14));  // ▁ab
  EXPECT_THAT(Encode(*t, "ab", true), ElementsAre(1, 14));
  EXPECT_THAT(Encode(*t, " ab"), ElementsAre(8, 14));  // ▁▁ab: a+b first, then ▁+ab, then nothing with ▁
  EXPECT_THAT(Encode(*t, "  "), ElementsAre(15, 8));   // ▁▁▁: the leftmost pair
  EXPECT_THAT(Encode(*t, "é日"), ElementsAre(8, 3, 4, 5, 6, 7));
  EXPECT_THAT(Encode(*t, "a<s>b"), ElementsAre(13, 1, 8, 10));  // the text after a special token is marked as well
  EXPECT_THAT(Encode(*t, ""), IsEmpty());
  EXPECT_THAT(Encode(*t, "axyb"), ElementsAre(13, 0, 10));  // neighbouring unknown characters are one <unk>
}

TEST(Llama2StyleTest, DecodesByRule) {
  const auto t = MakeTokenizer(kLlama2Style);
  EXPECT_EQ(t->Decode({1, 14, 13}, true), "ab a");  // one leading space goes
  EXPECT_EQ(t->Decode({1, 14}, false), "<s> ab");
  EXPECT_EQ(t->Decode({8, 3, 4, 5, 6, 7}, false), "é日");
  EXPECT_EQ(t->Decode({3, 4, 5, 6}, false), "\uFFFD\uFFFD\uFFFD\uFFFD");  // one wrong byte spoils its run
  EXPECT_EQ(t->Decode({3, 4, 9, 5}, false), "éa\uFFFD");
}

TEST(MetaspaceStyleTest, PrependScheme) {
  const auto always = MakeTokenizer(MetaspaceStyle("always", true));
  const auto first = MakeTokenizer(MetaspaceStyle("first", true));
  const auto never = MakeTokenizer(MetaspaceStyle("never", true));
  EXPECT_THAT(Encode(*always, "a<s>a"), ElementsAre(5, 1, 5));
  EXPECT_THAT(Encode(*first, "a<s>a"), ElementsAre(5, 1, 3));
  EXPECT_THAT(Encode(*first, "<s>a"), ElementsAre(1, 3));
  EXPECT_THAT(Encode(*never, "a<s>a"), ElementsAre(3, 1, 3));
  EXPECT_THAT(Encode(*always, " a"), ElementsAre(5));  // already marked
  EXPECT_THAT(Encode(*never, "xyb"), ElementsAre(0, 0, 4));
  EXPECT_EQ(always->Decode({5, 5}, false), "a a");
  EXPECT_EQ(never->Decode({5, 5}, false), " a a");
}

TEST(MetaspaceStyleTest, SplitKeepsMergesInsideWords) {
  EXPECT_THAT(Encode(*MakeTokenizer(MetaspaceStyle("never", true)), "a a"), ElementsAre(3, 5));
  EXPECT_THAT(Encode(*MakeTokenizer(MetaspaceStyle("never", false)), "a a"), ElementsAre(6, 3));
}

std::string WithAddedToken(const std::string& flags) {
  return R"({"added_tokens": [{"id": 9, "content": "tok", )" + flags + R"(}],
    "normalizer": {"type": "Lowercase"},
    "model": {"type": "BPE", "vocab": {"t": 0, "o": 1, "k": 2, " ": 3, "a": 4, "é": 5, "_": 6}, "merges": []}})";
}

TEST(AddedTokenTest, Flags) {
  EXPECT_THAT(Encode(*MakeTokenizer(WithAddedToken(R"("normalized": false)")), "a tok TOK"),
              ElementsAre(4, 3, 9, 3, 0, 1, 2));
  EXPECT_THAT(Encode(*MakeTokenizer(WithAddedToken(R"("normalized": true)")), "a tok TOK"), ElementsAre(4, 3, 9, 3, 9));
  EXPECT_THAT(Encode(*MakeTokenizer(WithAddedToken(R"("lstrip": true)")), "a  tok a"), ElementsAre(4, 9, 3, 4));
  EXPECT_THAT(Encode(*MakeTokenizer(WithAddedToken(R"("rstrip": true)")), "a tok  a"), ElementsAre(4, 3, 9, 4));
  EXPECT_THAT(Encode(*MakeTokenizer(WithAddedToken(R"("single_word": true)")), "tok atok toka étok tok_ tok"),
              ElementsAre(9, 3, 4, 0, 1, 2, 3, 0, 1, 2, 4, 3, 5, 0, 1, 2, 3, 0, 1, 2, 6, 3, 9));
}

TEST(AddedTokenTest, LongestOfThoseThatStartFirst) {
  const auto t = MakeTokenizer(R"({"added_tokens": [
      {"id": 5, "content": "ab"}, {"id": 6, "content": "abc"}, {"id": 7, "content": "bcd"}],
      "model": {"vocab": {"a": 0, "b": 1, "c": 2, "d": 3}, "merges": []}})");
  EXPECT_THAT(Encode(*t, "abcd"), ElementsAre(6, 3));
  EXPECT_THAT(Encode(*t, "abd"), ElementsAre(5, 3));
  EXPECT_THAT(Encode(*t, "bcd"), ElementsAre(7));
}

std::string WithPreTokenizer(const std::string& pre_tokenizer) {
  // Every piece is one token: pairs of letters merge within a piece only.
  return R"({"pre_tokenizer": )" + pre_tokenizer + R"(, "model": {"type": "BPE",
    "vocab": {"a": 0, "b": 1, "-": 2, " ": 3, "1": 4, "aa": 5, "a-": 6, "-a": 7, "--": 8, "11": 9, "a1": 10},
    "merges": ["a -", "- a", "a a", "- -", "1 1", "a 1"]}})";
}

TEST(PreTokenizerTest, SplitBehaviors) {
  const auto encode = [](const std::string& behavior, const std::string& text) {
    return Encode(*MakeTokenizer(WithPreTokenizer(R"({"type": "Split", "pattern": {"String": "-"}, "behavior": ")" +
                                                  behavior + R"(", "invert": false})")),
                  text);
  };
  EXPECT_THAT(encode("Isolated", "a-a--"), ElementsAre(0, 2, 0, 2, 2));
  EXPECT_THAT(encode("Removed", "a-a--"), ElementsAre(0, 0));
  EXPECT_THAT(encode("MergedWithPrevious", "a-a--"), ElementsAre(6, 6, 2));
  EXPECT_THAT(encode("MergedWithNext", "a-a--"), ElementsAre(0, 7, 2, 2));
  EXPECT_THAT(encode("Contiguous", "a-a--"), ElementsAre(0, 2, 0, 8));
}

TEST(PreTokenizerTest, OtherTypes) {
  const auto encode = [](const std::string& json, const std::string& text) {
    return Encode(*MakeTokenizer(WithPreTokenizer(json)), text);
  };
  EXPECT_THAT(encode(R"({"type": "Digits", "individual_digits": true})", "a11"), ElementsAre(0, 4, 4));
  EXPECT_THAT(encode(R"({"type": "Digits", "individual_digits": false})", "a11"), ElementsAre(0, 9));
  EXPECT_THAT(encode(R"({"type": "Punctuation"})", "a-a"), ElementsAre(0, 2, 0));
  EXPECT_THAT(encode(R"({"type": "WhitespaceSplit"})", "a- a"), ElementsAre(6, 0));
  EXPECT_THAT(encode(R"({"type": "Whitespace"})", "a1- a"), ElementsAre(10, 2, 0));
  EXPECT_THAT(encode(R"({"type": "CharDelimiterSplit", "delimiter": "-"})", "a-a"), ElementsAre(0, 0));
  EXPECT_THAT(encode(R"({"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Removed", "invert": true})", "aa-a"),
              ElementsAre(5, 0));
}

TEST(NormalizerTest, Types) {
  const auto encode = [](const std::string& normalizer, const std::string& text) {
    return Encode(*MakeTokenizer(R"({"normalizer": )" + normalizer + R"(, "model": {"vocab":
        {"e": 0, "é": 1, "́": 2, "f": 3, "i": 4, "ﬁ": 5, " ": 6, "x": 7, "̇": 8}, "merges": []}})"),
                  text);
  };
  const std::string composed = "\u00E9", decomposed = "e\u0301";
  EXPECT_THAT(encode(R"({"type": "NFC"})", decomposed + "\uFB01"), ElementsAre(1, 5));
  EXPECT_THAT(encode(R"({"type": "NFD"})", composed), ElementsAre(0, 2));
  EXPECT_THAT(encode(R"({"type": "NFKC"})", decomposed + "\uFB01"), ElementsAre(1, 3, 4));
  EXPECT_THAT(encode(R"({"type": "NFKD"})", composed + "\uFB01"), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(encode(R"({"type": "Lowercase"})", "FX\u0130"), ElementsAre(3, 7, 4, 8));
  EXPECT_THAT(encode(R"({"type": "StripAccents"})", decomposed), ElementsAre(0));
  EXPECT_THAT(encode(R"({"type": "Strip", "strip_left": true, "strip_right": false})", " x "), ElementsAre(7, 6));
  EXPECT_THAT(encode(R"({"type": "Strip", "strip_left": false, "strip_right": true})", " x "), ElementsAre(6, 7));
  EXPECT_THAT(encode(R"({"type": "Replace", "pattern": {"Regex": "[ef]+"}, "content": "x"})", "eefi"),
              ElementsAre(7, 4));
  EXPECT_THAT(encode(R"({"type": "Prepend", "prepend": "x"})", ""), IsEmpty());
}

TEST(ByteLevelTest, PrefixSpace) {
  const auto t = MakeTokenizer(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true},
      "decoder": {"type": "ByteLevel"}, "model": {"vocab": {"Ġ": 0, "a": 1, "Ġa": 2}, "merges": ["Ġ a"]}})");
  EXPECT_THAT(Encode(*t, "a"), ElementsAre(2));
  EXPECT_THAT(Encode(*t, " a a"), ElementsAre(2, 2));
}

TEST(TokenizerTest, Properties) {
  const auto t = MakeTokenizer(kLlama3Style);
  EXPECT_EQ(t->VocabSize(), 22u);
  EXPECT_EQ(t->TokenId("<eot>"), 21u);
  EXPECT_EQ(t->TokenId("low"), 11u);
  EXPECT_EQ(t->TokenId("nothing"), std::nullopt);
  EXPECT_TRUE(t->IsSpecial(21));
  EXPECT_FALSE(t->IsSpecial(11));
  EXPECT_EQ(t->TokenBytes(13), " l");
  EXPECT_EQ(t->TokenBytes(15), "\xC3");
  EXPECT_EQ(t->TokenBytes(21), "<eot>");
  EXPECT_EQ(t->TokenBytes(999), "");
  EXPECT_EQ(MakeTokenizer(kLlama2Style)->TokenBytes(3), "\xC3");
  EXPECT_EQ(MakeTokenizer(kLlama2Style)->TokenBytes(14), " ab");
}

TEST(TokenizerTest, DigestIsSha256OfTheFile) {
  // Of `{"model":{"vocab":{},"merges":[]}}`, by sha256sum.
  EXPECT_EQ(MakeTokenizer(R"({"model":{"vocab":{},"merges":[]}})")->Digest(),
            "012c236fc50a8445ac0198079d2de6f537afb38ad6d978cd0c78119a5651dae9");
}

TEST(TokenizerTest, InvalidUtf8NamesTheByte) {
  const auto status = MakeTokenizer(kLlama3Style)->Encode("low\xC3(", false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at byte 3"));
}

TEST(TokenizerTest, ThreadsShareOneTokenizer) {
  const auto t = MakeTokenizer(kLlama3Style);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&result, &t] {
      for (int i = 0; i < 500; ++i) result = Encode(*t, "lower low " + std::to_string(i) + " lower");
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, Encode(*t, "lower low 499 lower"));
}

struct ErrorCase {
  const char* json;
  const char* message;
};

TEST(TokenizerTest, MalformedFilesNameThePath) {
  const ErrorCase cases[] = {
      {"", "f.json: not JSON"},
      {"[]", "f.json: expected an object, got array"},
      {"{}", "f.json: model: missing"},
      {R"({"model": {"type": "WordLevel"}})", "model.type: unsupported model \"WordLevel\""},
      {R"({"model": {"type": "Unigram"}})", "model.vocab: missing"},
      {R"({"model": {"type": "Unigram", "vocab": [["a", -1], ["b"]]}})", "model.vocab[1]: expected [token, score]"},
      {R"({"model": {"type": "Unigram", "vocab": [["a", -1]], "unk_id": 1}})",
       "model.unk_id: 1, but model.vocab has 1"},
      {R"({"model": {"type": "Unigram", "vocab": [], "alpha": 0.5}})", "model.alpha: sampling makes encoding random"},
      {R"({"model": {"type": "WordPiece", "vocab": {}}})", "model.unk_token: missing"},
      {R"({"model": {"type": "BPE", "merges": []}})", "model.vocab: missing"},
      {R"({"model": {"vocab": {"a": -1}, "merges": []}})", "model.vocab.a: expected an id"},
      {R"({"model": {"vocab": {"a": 4194304}, "merges": []}})", "model.vocab.a: expected an id"},
      {R"({"model": {"vocab": {"a": 0, "b": 0}, "merges": []}})", "model.vocab.b: id 0 is also the id of \"a\""},
      {R"({"model": {"vocab": {"a": 0}, "merges": ["a"]}})", "model.merges[0]: expected two tokens"},
      {R"({"model": {"vocab": {"a": 0}, "merges": ["a b"]}})", "model.merges[0]: \"b\" is not in the vocabulary"},
      {R"({"model": {"vocab": {"a": 0}, "merges": [["a", "a"]]}})", "merged token \"aa\" is not in the vocabulary"},
      {R"({"model": {"vocab": {"a": 0}, "merges": [["a"]]}})", "model.merges[0]: expected a pair"},
      {R"({"model": {"vocab": {}, "merges": [], "dropout": 0.1}})", "model.dropout"},
      {R"({"model": {"vocab": {}, "merges": []}, "normalizer": {"type": "X"}})",
       "normalizer.type: unsupported normalizer \"X\""},
      {R"({"model": {"vocab": {}, "merges": []}, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "*"}})",
       "normalizer.precompiled_charsmap: not base64"},
      {R"({"model": {"vocab": {}, "merges": []}, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/wAAAGFh"}})",
       "normalizer.precompiled_charsmap: normalization rules at byte 0: a trie of 255 bytes does not fit into 6 bytes"},
      {R"({"model": {"vocab": {}, "merges": []}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "X"}]}})",
       "pre_tokenizer.pretokenizers[0].type: unsupported pre-tokenizer \"X\""},
      {R"({"model": {"vocab": {}, "merges": []}, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}})",
       "pre_tokenizer.pattern.Regex: regex does not compile"},
      {R"({"model": {"vocab": {}, "merges": []}, "decoder": {"type": "CTC"}})",
       "decoder.type: unsupported decoder \"CTC\""},
      {R"({"model": {"vocab": {}, "merges": []}, "post_processor": {"type": "TemplateProcessing",
           "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "special_tokens": {}}})",
       "post_processor.special_tokens.x: missing"},
      {R"({"model": {"vocab": {"a": 0}, "merges": []}, "added_tokens": [{"id": 0, "content": "b"}]})",
       "added_tokens[0]: id 0 of \"b\" is the id of \"a\" in the model's vocabulary"},
      {R"({"model": {"vocab": {"a": 0}, "merges": []}, "added_tokens": [{"content": "b"}]})",
       "added_tokens[0].id: missing"},
  };
  for (const ErrorCase& c : cases) {
    const auto tokenizer = Tokenizer::Parse(c.json, "f.json");
    ASSERT_FALSE(tokenizer.ok()) << c.json;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(c.message)) << c.json;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("f.json: ")) << c.json;
  }
  EXPECT_THAT(std::string(Tokenizer::Parse(std::string(1000, '['), "f.json").status().message()),
              HasSubstr("nested deeper than 64 levels"));
  EXPECT_EQ(Tokenizer::Load("/nonexistent/tokenizer.json").status().code(), absl::StatusCode::kNotFound);
}

TEST(TokenizerTest, RefusesWhatIsFarTooLongBeforeItIsCutIntoWords) {
  // Cutting this text is an error, so whoever tries is found out.
  const auto t = MakeTokenizer(R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|a|a)+[bc]"},
      "behavior": "Isolated"}, "model": {"unk_token": "?", "vocab": {"?": 0, "a": 1, "aa": 2}, "merges": ["a a"]}})");
  const std::string text(2000, 'a');
  EXPECT_EQ(t->Encode(text, false, 999).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(t->Encode(text, false, 1000).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(TokenizerTest, CountsNoCharactersThatMayVanishAgainstTheLimit) {
  const std::string text = std::string(1000, ' ') + "a";
  for (
      const char* json : {
          R"({"model": {"vocab": {"a": 0}, "merges": []}})",                                              // dropped
          R"({"model": {"unk_token": "?", "fuse_unk": true, "vocab": {"a": 0, "?": 1}, "merges": []}})",  // fused
          R"({"pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"unk_token": "a", "vocab": {"a": 0}, "merges": []}})",
          R"({"added_tokens": [{"id": 1, "content": "a", "lstrip": true}], "model": {"unk_token": "?",
               "vocab": {"?": 0, "a": 1}, "merges": []}})",
      }) {
    const auto ids = MakeTokenizer(json)->Encode(text, false, 2);
    EXPECT_TRUE(ids.ok()) << json << ": " << ids.status();
  }
}

TEST(TokenizerTest, RunawayRegexIsAnError) {
  const auto t = MakeTokenizer(R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|a|a)+[bc]"},
      "behavior": "Isolated"}, "model": {"vocab": {"a": 0}, "merges": []}})");
  const auto ids = t->Encode(std::string(2000, 'a'), false);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace winnow
