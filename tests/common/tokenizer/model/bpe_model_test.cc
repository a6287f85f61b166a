#include "common/tokenizer/model/bpe_model.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/json.h"

namespace winnow {
namespace {

// A random model over four letters: each merge joins two tokens that exist.
struct RandomModel {
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  std::vector<std::pair<std::string, std::string>> merges;

  explicit RandomModel(std::mt19937* random) {
    while (merges.size() < 60) {
      const std::string left = tokens[(*random)() % tokens.size()], right = tokens[(*random)() % tokens.size()];
      if (left.size() + right.size() > 6) continue;
      if (std::find(merges.begin(), merges.end(), std::pair(left, right)) != merges.end()) continue;
      merges.emplace_back(left, right);
      if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end()) tokens.push_back(left + right);
    }
  }

  nlohmann::json ToJson() const {
    nlohmann::json model = {{"type", "BPE"}, {"vocab", nlohmann::json::object()}, {"merges", merges}};
    for (size_t i = 0; i < tokens.size(); ++i) model["vocab"][tokens[i]] = i;
    return model;
  }

  // The definition: as long as any merge applies, the one of lowest rank is applied at its leftmost place.
  std::vector<std::string> Encode(const std::string& word) const {
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    for (;;) {
      size_t best_rank = merges.size(), best_at = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto it = std::find(merges.begin(), merges.end(), std::pair(parts[i], parts[i + 1]));
        const auto rank = static_cast<size_t>(it - merges.begin());
        if (rank < best_rank) {
          best_rank = rank;
          best_at = i;
        }
      }
      if (best_rank == merges.size()) return parts;
      parts[best_at] += parts[best_at + 1];
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(best_at) + 1);
    }
  }
};

TEST(BpeModelTest, EqualsTheDefinitionOnRandomWords) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const RandomModel reference(&random);
    const nlohmann::json json = reference.ToJson();
    const auto model = BpeModel::Parse(JsonNode(&json, "model"));
    ASSERT_TRUE(model.ok()) << model.status();
    for (int i = 0; i < 60; ++i) {
      // On both sides of the length where the algorithm changes, and of the cache's.
      std::string word(1 + random() % (i % 3 == 0 ? 200 : 40), ' ');
      for (char& c : word) c = static_cast<char>('a' + random() % 4);
      std::vector<uint32_t> ids;
      ASSERT_TRUE((*model)->EncodeWord(word, &ids).ok());
      std::vector<std::string> parts;
      for (const uint32_t id : ids) parts.emplace_back(*(*model)->Token(id));
      EXPECT_EQ(parts, reference.Encode(word)) << word;
      std::vector<uint32_t> again;  // now from the cache
      ASSERT_TRUE((*model)->EncodeWord(word, &again).ok());
      EXPECT_EQ(again, ids);
    }
  }
}

TEST(BpeModelTest, PrefixAndSuffixMarkPlacesInTheWord) {
  const auto json =
      nlohmann::json::parse(R"({"type": "BPE", "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>",
      "vocab": {"a": 0, "##b": 1, "##b</w>": 2, "ab": 3, "a</w>": 4, "ab</w>": 5},
      "merges": ["a ##b", "a ##b</w>"]})");
  const auto model = BpeModel::Parse(JsonNode(&json, "model"));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto encode = [&](std::string_view word) {
    std::vector<uint32_t> ids;
    EXPECT_TRUE((*model)->EncodeWord(word, &ids).ok());
    return ids;
  };
  EXPECT_EQ(encode("a"), (std::vector<uint32_t>{4}));
  EXPECT_EQ(encode("ab"), (std::vector<uint32_t>{5}));
  EXPECT_EQ(encode("abb"), (std::vector<uint32_t>{3, 2}));
}

TEST(BpeModelTest, UnknownTokenOutsideOfTheVocabularyIsAnErrorWhenNeeded) {
  const auto json = nlohmann::json::parse(R"({"vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"})");
  const auto model = BpeModel::Parse(JsonNode(&json, "model"));
  ASSERT_TRUE(model.ok());
  std::vector<uint32_t> ids;
  EXPECT_TRUE((*model)->EncodeWord("a", &ids).ok());
  EXPECT_FALSE((*model)->EncodeWord("b", &ids).ok());
}

}  // namespace
}  // namespace winnow
