#include "common/tokenizer/model/unigram_model.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score of a piece

std::vector<Vocabulary::Entry> Entries(const std::vector<UnigramModel::Piece>& pieces) {
  std::vector<Vocabulary::Entry> entries;
  entries.reserve(pieces.size());
  for (uint32_t id = 0; id < pieces.size(); ++id) entries.push_back({pieces[id].text, id});
  return entries;
}

}  // namespace

UnigramModel::UnigramModel(const std::vector<Piece>& pieces, const Options& options)
    : options_(options), vocabulary_(Entries(pieces)) {
  double lowest = std::numeric_limits<float>::max();
  double highest = std::numeric_limits<float>::min();  // SentencePiece's start: the smallest positive number
  std::vector<ByteTrie::Entry> keys;
  for (size_t id = pieces.size(); id-- > 0;) {  // of equal pieces the last is found
    const Piece& piece = pieces[id];
    if (piece.in_text) keys.push_back({*vocabulary_.Token(static_cast<uint32_t>(id)), static_cast<uint32_t>(id)});
    if (!piece.sets_range || piece.user_defined) continue;
    lowest = std::min(lowest, piece.score);
    highest = std::max(highest, piece.score);
  }
  trie_ = ByteTrie(std::move(keys));
  unknown_score_ = lowest - kUnknownPenalty;
  scores_.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    // SentencePiece's bonus: better than as many of the best pieces as the piece has bytes.
    const auto bonus = static_cast<double>(static_cast<float>(piece.text.size()) * static_cast<float>(highest)) - 0.1;
    scores_.push_back(piece.user_defined ? bonus : piece.score);
  }
}

absl::StatusOr<std::unique_ptr<UnigramModel>> UnigramModel::Parse(const JsonNode& node) {
  Options options;
  WINNOW_ASSIGN_OR_RETURN(options.byte_fallback, node.BoolOr("byte_fallback", false));
  for (const char* key : {"alpha", "nbest_size"}) {
    if (!node.Has(key)) continue;
    WINNOW_ASSIGN_OR_RETURN(const JsonNode option, node.Member(key));
    if (!option.value().is_number() || option.value().get<double>() != 0) {
      return absl::UnimplementedError(absl::StrCat(option.path(), ": sampling makes encoding random"));
    }
  }
  WINNOW_ASSIGN_OR_RETURN(const JsonNode vocab, node.Member("vocab"));
  WINNOW_RETURN_IF_ERROR(vocab.RequireArray());
  const size_t count = vocab.value().size();
  if (count > Vocabulary::kMaxId) {
    return vocab.Error(absl::StrCat(count, " tokens, the limit is ", Vocabulary::kMaxId));
  }
  std::vector<Piece> pieces;
  pieces.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& entry = vocab.value()[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return vocab.Element(i).Error("expected [token, score]");
    }
    pieces.push_back({.text = entry[0].get_ref<const std::string&>(), .score = entry[1].get<double>()});
  }
  if (node.Has("unk_id")) {
    WINNOW_ASSIGN_OR_RETURN(options.unk_id, node.Uint32("unk_id"));
    if (*options.unk_id >= count) {
      return node.ErrorAt("unk_id", absl::StrCat(*options.unk_id, ", but model.vocab has ", count, " tokens"));
    }
  }
  return std::make_unique<UnigramModel>(pieces, options);
}

template <typename Score>
std::vector<UnigramModel::Step> UnigramModel::BestSteps(std::string_view text) const {
  std::vector<Score> best(text.size() + 1);
  std::vector<Step> steps(text.size() + 1, Step{UINT32_MAX, kUnknown});
  const auto offer = [&](size_t begin, size_t end, uint32_t id, auto score) {
    if (steps[end].begin != UINT32_MAX && !(score > best[end])) return;
    best[end] = static_cast<Score>(score);
    steps[end] = {static_cast<uint32_t>(begin), id};
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t character_end = begin + Utf8SequenceBytes(static_cast<unsigned char>(text[begin]));
    bool has_character = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t end = begin; end < text.size();) {
      node = trie_.Next(node, text[end++]);
      if (node == ByteTrie::kNone) break;
      const uint32_t id = trie_.Value(node);
      if (id == ByteTrie::kNone) continue;
      offer(begin, end, id == options_.unk_id ? kUnknown : id, scores_[id] + static_cast<double>(best[begin]));
      has_character = has_character || end == character_end;
    }
    if (!has_character) offer(begin, character_end, kUnknown, static_cast<Score>(unknown_score_) + best[begin]);
    begin = character_end;
  }
  return steps;
}

absl::Status UnigramModel::EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const {
  const std::vector<Step> steps =
      options_.arithmetic == Arithmetic::kSentencePiece ? BestSteps<float>(word) : BestSteps<double>(word);
  std::vector<std::pair<size_t, uint32_t>> path;  // ends and ids, from the last; runs of unknown characters are one
  for (size_t end = word.size(); end > 0; end = steps[end].begin) {
    const bool continues_run = steps[end].id == kUnknown && !path.empty() && path.back().second == kUnknown;
    if (!continues_run) path.emplace_back(end, steps[end].id);
  }
  size_t begin = 0;
  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    const auto [end, id] = *step;
    if (id != kUnknown) {
      ids->push_back(id);
    } else {
      WINNOW_RETURN_IF_ERROR(AppendUnknown(word.substr(begin, end - begin), ids));
    }
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status UnigramModel::AppendUnknown(std::string_view run, std::vector<uint32_t>* ids) const {
  if (options_.arithmetic == Arithmetic::kTokenizers) {
    // The library looks the text of the whole run up once more.
    if (const auto id = TokenId(run)) {
      ids->push_back(*id);
      return absl::OkStatus();
    }
  }
  if (options_.byte_fallback && vocabulary_.AppendByteIds(run, ids)) return absl::OkStatus();
  if (!options_.unk_id) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", AbslSv(run), "\" is not in the vocabulary, and there is no model.unk_id to stand for it"));
  }
  ids->push_back(*options_.unk_id);
  return absl::OkStatus();
}

}  // namespace winnow
