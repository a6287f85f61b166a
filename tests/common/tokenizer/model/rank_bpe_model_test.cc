#include "common/tokenizer/model/rank_bpe_model.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace winnow {
namespace {

using Ids = std::vector<uint32_t>;
using Kind = RankBpeModel::Kind;

Ids Encode(const RankBpeModel& model, std::string_view word) {
  Ids ids;
  EXPECT_TRUE(model.EncodeWord(word, &ids).ok());
  return ids;
}

// The definition: as long as two neighbours together are a piece, those of lowest rank become one, the leftmost first.
std::vector<std::string> Merge(const std::map<std::string, uint32_t>& ranks, const std::string& word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (;;) {
    uint32_t best_rank = UINT32_MAX;
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ranks.find(parts[i] + parts[i + 1]);
      if (it != ranks.end() && it->second < best_rank) {
        best_rank = it->second;
        best_at = i;
      }
    }
    if (best_rank == UINT32_MAX) return parts;
    parts[best_at] += parts[best_at + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best_at) + 1);
  }
}

TEST(RankBpeModelTest, MergesInTheOrderOfRanks) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    std::map<std::string, uint32_t> ranks = {{"a", 100}, {"b", 100}, {"c", 100}};
    while (ranks.size() < 30) {
      std::string piece;
      for (size_t i = 2 + random() % 4; i > 0; --i) piece += "abc"[random() % 3];
      ranks[piece] = random() % 12;  // several of one rank
    }
    std::vector<RankBpeModel::Piece> pieces;
    for (const auto& [text, rank] : ranks) {
      pieces.push_back({.text = text, .id = static_cast<uint32_t>(pieces.size()), .rank = rank});
    }
    const RankBpeModel model(pieces, {});
    std::string word;
    for (size_t i = random() % 40; i > 0; --i) word += "abc"[random() % 3];
    std::vector<std::string> parts;
    for (const uint32_t id : Encode(model, word)) parts.emplace_back(*model.Token(id));
    EXPECT_EQ(parts, Merge(ranks, word)) << word;
  }
}

TEST(RankBpeModelTest, KindsOfPieces) {
  const RankBpeModel model({{.text = "<unk>", .id = 0, .rank = 0, .kind = Kind::kNotInText},
                            {.text = "a", .id = 1, .rank = 9},
                            {.text = "b", .id = 2, .rank = 9},
                            {.text = "ab", .id = 3, .rank = 1, .kind = Kind::kUnused},
                            {.text = "abab", .id = 4, .rank = 2},
                            {.text = "aa", .id = 5, .rank = 3, .kind = Kind::kUserDefined},
                            {.text = "aab", .id = 6, .rank = 0}},
                           {.unk_id = 0});
  EXPECT_EQ(Encode(model, "ab"), (Ids{1, 2}));       // an unused piece is taken apart again,
  EXPECT_EQ(Encode(model, "abab"), (Ids{4}));        // but longer ones are made of it
  EXPECT_EQ(Encode(model, "aab"), (Ids{5, 2}));      // a user-defined piece merges with nothing
  EXPECT_EQ(Encode(model, "xyaz"), (Ids{0, 1, 0}));  // unknown characters next to each other are one token
}

TEST(RankBpeModelTest, WholeWordsFirst) {
  const std::vector<RankBpeModel::Piece> pieces = {
      {.text = "a", .id = 0, .rank = 0}, {.text = "b", .id = 1, .rank = 1}, {.text = "aba", .id = 2, .rank = 2}};
  EXPECT_EQ(Encode(RankBpeModel(pieces, {}), "aba"), (Ids{0, 1, 0}));
  EXPECT_EQ(Encode(RankBpeModel(pieces, {.unk_id = {}, .byte_fallback = false, .whole_words_first = true}), "aba"),
            (Ids{2}));
}

// Scanning for each merge would take hours.
TEST(RankBpeModelTest, LongWordsAreMergedByAHeap) {
  std::vector<std::string> texts = {"a"};
  for (int i = 0; i < 6; ++i) texts.push_back(texts.back() + texts.back());
  std::vector<RankBpeModel::Piece> pieces;
  for (uint32_t i = 0; i < texts.size(); ++i) pieces.push_back({.text = texts[i], .id = i, .rank = i});
  EXPECT_EQ(Encode(RankBpeModel(pieces, {}), std::string(640'000, 'a')).size(), 10'000u);
}

}  // namespace
}  // namespace winnow
