// Text goes in and comes out as each kind of tokenizer has it: a model whose folder holds that kind's files, served.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/model_cluster.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::e2e {
namespace {

// A folder of tests/testdata/tokenizers, and how many ids its tokens and special tokens take.
struct Kind {
  const char* name;
  const char* folder;
  int vocab_size;
};
void PrintTo(const Kind& value, std::ostream* out) {
  *out << value.name;
}

class TokenizerKinds : public ModelCluster<Kind> {
 protected:
  void SetUp() override {
    const std::filesystem::path folder = SourcePath(std::string("tests/testdata/tokenizers/") + GetParam().folder);
    WriteTinyCheckpoint({.vocab_size = GetParam().vocab_size, .max_position_embeddings = 4096}, directory_.path());
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename() == "golden.json") continue;
      std::filesystem::copy(entry.path(), std::filesystem::path(directory_.path()) / entry.path().filename());
    }
    golden_ = Json::parse(std::ifstream(folder / "golden.json"));
    ASSERT_NO_FATAL_FAILURE(StartWith({}));
  }

  Json golden_;
};

TEST_P(TokenizerKinds, TextsHaveTheIdsAndIdsTheTextsOfTheReference) {
  const HttpClient http = cluster_->http();
  for (const Json& item : golden_) {
    const Json request = {{"prompt", item["text"]}, {"add_special_tokens", false}};
    EXPECT_EQ(http.Post("/tokenize", request).json()["tokens"], item["ids"]) << item["text"];
    EXPECT_EQ(http.Post("/tokenize", {{"prompt", item["text"]}}).json()["tokens"], item["ids_with_special"]);
    if (item["ids"].empty()) continue;
    EXPECT_EQ(http.Post("/detokenize", {{"tokens", item["ids"]}}).json()["prompt"], item["decoded"]) << item["text"];
  }
}

// A prompt as text and as ids, whole and streamed: the answers are the same, down to the bytes of their text.
TEST_P(TokenizerKinds, AnswersAreTheSameTextWholeAndStreamed) {
  int asked = 0;
  for (const Json& item : golden_) {
    if (item["ids_with_special"].size() < 8 || asked == 6) continue;
    ++asked;
    Json request = GreedyRequest(item["ids_with_special"].get<TokenIds>(), 40);
    const Completion by_ids = Complete(cluster_->http(), request);
    ASSERT_TRUE(by_ids.ok()) << by_ids.error;
    request["prompt"] = item["text"];
    const Completion by_text = Complete(cluster_->http(), request);
    ASSERT_TRUE(by_text.ok()) << by_text.error;
    EXPECT_EQ(by_text.usage["prompt_tokens"], item["ids_with_special"].size());
    EXPECT_EQ(by_text.ids, by_ids.ids);
    EXPECT_EQ(by_text.text, by_ids.text);
    const Completion streamed = StreamCompletion(cluster_->http(), request);
    EXPECT_EQ(streamed.ids, by_ids.ids);
    EXPECT_EQ(streamed.text, by_ids.text);
  }
  EXPECT_EQ(asked, 6);
}

INSTANTIATE_TEST_SUITE_P(
    All, TokenizerKinds,
    testing::Values(Kind{"Unigram", "unigram-t5", 800}, Kind{"UnigramBytes", "unigram-bytes", 1024},
                    Kind{"WordPiece", "wordpiece-bert", 1408}, Kind{"VocabTxt", "bert-vocab", 1408},
                    Kind{"SentencePieceBpe", "spm-bpe-llama", 1024},
                    Kind{"SentencePieceUnigram", "spm-unigram-rules", 800},
                    Kind{"TiktokenLlama3", "tiktoken-llama3", 1024}, Kind{"TiktokenQwen", "tiktoken-qwen", 1024},
                    Kind{"TiktokenKimi", "tiktoken-kimi", 1024}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace winnow::e2e
