#include "common/tokenizer/model/unigram_model.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace winnow {
namespace {

using Ids = std::vector<uint32_t>;

Ids Encode(const UnigramModel& model, std::string_view word) {
  Ids ids;
  EXPECT_TRUE(model.EncodeWord(word, &ids).ok());
  return ids;
}

// The definition: the highest sum of scores over all ways to cut the word.
double BestSum(const std::map<std::string, double>& scores, const std::string& word) {
  if (word.empty()) return 0;
  double best = -std::numeric_limits<double>::infinity();
  for (const auto& [piece, score] : scores) {
    if (word.starts_with(piece)) best = std::max(best, score + BestSum(scores, word.substr(piece.size())));
  }
  return best;
}

TEST(UnigramModelTest, FindsTheBestOfAllWaysToCut) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::map<std::string, double> scores = {{"a", -9}, {"b", -8}, {"c", -7}};
    while (scores.size() < 14) {
      std::string piece;
      for (size_t i = 2 + random() % 4; i > 0; --i) piece += "abc"[random() % 3];
      scores[piece] = -1 - static_cast<double>(random() % 20000) / 1000;
    }
    std::vector<UnigramModel::Piece> pieces;
    std::vector<double> by_id;
    for (const auto& [piece, score] : scores) {
      pieces.push_back({.text = piece, .score = score});
      by_id.push_back(score);
    }
    for (const auto arithmetic : {UnigramModel::Arithmetic::kTokenizers, UnigramModel::Arithmetic::kSentencePiece}) {
      const UnigramModel model(pieces, {.unk_id = {}, .byte_fallback = false, .arithmetic = arithmetic});
      std::string word;
      for (size_t i = random() % 11; i > 0; --i) word += "abc"[random() % 3];
      double sum = 0;
      std::string text;
      for (const uint32_t id : Encode(model, word)) {
        sum += by_id[id];
        text += *model.Token(id);
      }
      EXPECT_EQ(text, word);
      EXPECT_NEAR(sum, BestSum(scores, word), 1e-4) << word;
    }
  }
}

TEST(UnigramModelTest, RunsOfUnknownCharactersAreOneTokenOrTheirBytes) {
  const std::vector<UnigramModel::Piece> pieces = {{.text = "<unk>"},
                                                   {.text = "a", .score = -1},
                                                   {.text = "<0xC3>"},
                                                   {.text = "<0xA9>"},
                                                   {.text = "b", .in_text = false}};
  const UnigramModel plain(pieces, {.unk_id = 0, .byte_fallback = false});
  EXPECT_EQ(Encode(plain, "aééaé"), (Ids{1, 0, 1, 0}));
  EXPECT_EQ(Encode(plain, "ab"), (Ids{1, 4}));  // the text of an unknown run is looked up once more
  const UnigramModel bytes(
      pieces, {.unk_id = 0, .byte_fallback = true, .arithmetic = UnigramModel::Arithmetic::kSentencePiece});
  EXPECT_EQ(Encode(bytes, "aéa日a"), (Ids{1, 2, 3, 1, 0, 1}));
  EXPECT_EQ(Encode(bytes, "ab"), (Ids{1, 0}));
  const UnigramModel without({pieces.begin() + 1, pieces.end()}, {});
  Ids ids;
  EXPECT_EQ(without.EncodeWord("é", &ids).message(),
            "\"é\" is not in the vocabulary, and there is no model.unk_id to stand for it");
}

TEST(UnigramModelTest, UserDefinedPiecesAreAlwaysTaken) {
  const UnigramModel model(
      {{.text = "<unk>", .in_text = false},
       {.text = "a", .score = -1},
       {.text = "b", .score = -1},
       {.text = "aba", .score = -2},
       {.text = "ab", .user_defined = true}},
      {.unk_id = 0, .byte_fallback = false, .arithmetic = UnigramModel::Arithmetic::kSentencePiece});
  EXPECT_EQ(Encode(model, "abab"), (Ids{4, 4}));
  EXPECT_EQ(Encode(model, "aaba"), (Ids{1, 4, 1}));
}

// Going through all pairs of places would take hours.
TEST(UnigramModelTest, LongWordsTakeTimeInProportion) {
  const UnigramModel model({{.text = "a", .score = -1}, {.text = "aaa", .score = -1.5}}, {});
  EXPECT_EQ(Encode(model, std::string(3'000'000, 'a')).size(), 1'000'000u);
}

}  // namespace
}  // namespace winnow
