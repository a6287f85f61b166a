#include "common/tokenizer/model/rank_bpe_model.h"

#include <queue>
#include <utility>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

std::vector<Vocabulary::Entry> Entries(const std::vector<RankBpeModel::Piece>& pieces) {
  std::vector<Vocabulary::Entry> entries;
  entries.reserve(pieces.size());
  for (const auto& piece : pieces) entries.push_back({piece.text, piece.id});
  return entries;
}

}  // namespace

// The merges of one word.
class RankBpeModel::Merger {
 public:
  Merger(const RankBpeModel& model, std::vector<Symbol>* symbols) : model_(model), symbols_(*symbols) {}

  void Run() {
    for (uint32_t i = 1; i < symbols_.size(); ++i) Consider(i - 1, i);
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      Symbol& left = symbols_[top.left];
      Symbol& right = symbols_[top.right];
      if (left.text.empty() || right.text.empty()) continue;
      if (left.text.size() + right.text.size() != top.bytes) continue;  // one has grown since this was queued
      left.text = {left.text.data(), top.bytes};
      right.text = {};
      left.next = right.next;
      if (left.next != kNone) symbols_[left.next].previous = top.left;
      Consider(left.previous, top.left);
      Consider(top.left, left.next);
    }
  }

  // Appends the parts of a piece that are not unused ones, in order.
  template <typename Take>
  void TakeApart(std::string_view text, const Take& take) const {
    std::vector<std::string_view> stack = {text};
    while (!stack.empty()) {
      const std::string_view part = stack.back();
      stack.pop_back();
      const auto it = unused_.find(AbslSv(part));
      if (it == unused_.end()) {
        take(part);
        continue;
      }
      stack.push_back(it->second.second);
      stack.push_back(it->second.first);
    }
  }

 private:
  struct Candidate {
    uint32_t rank;
    uint32_t left;
    uint32_t right;
    size_t bytes;                                   // of both together, when this was queued
    bool operator<(const Candidate& other) const {  // the top of the queue is the lowest rank, then the leftmost
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  void Consider(uint32_t left, uint32_t right) {
    if (left == kNone || right == kNone) return;
    const Symbol& a = symbols_[left];
    const Symbol& b = symbols_[right];
    if (a.user_defined || b.user_defined) return;
    const std::string_view text(a.text.data(), a.text.size() + b.text.size());
    const Piece* piece = model_.FindPiece(text);
    if (piece == nullptr) return;
    queue_.push({piece->rank, left, right, text.size()});
    if (piece->kind == Kind::kUnused) unused_[AbslSv(text)] = {a.text, b.text};
  }

  const RankBpeModel& model_;
  std::vector<Symbol>& symbols_;
  std::priority_queue<Candidate> queue_;
  // Of an unused piece, what it was last made of.
  absl::flat_hash_map<absl::string_view, std::pair<std::string_view, std::string_view>> unused_;
};

RankBpeModel::RankBpeModel(const std::vector<Piece>& pieces, const Options& options)
    : options_(options), vocabulary_(Entries(pieces)) {
  pieces_.reserve(pieces.size());
  std::vector<ByteTrie::Entry> user_defined;
  for (Piece piece : pieces) {
    if (piece.kind == Kind::kNotInText) continue;
    piece.text = *vocabulary_.Token(piece.id);
    if (piece.kind == Kind::kUserDefined) user_defined.push_back({piece.text, piece.id});
    pieces_.emplace(AbslSv(piece.text), piece);
  }
  user_defined_ = ByteTrie(std::move(user_defined));
}

bool RankBpeModel::KnowsByteLevelAlphabet() const {
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    AppendUtf8(ByteLevelCharacter(static_cast<uint8_t>(byte)), &character);
    if (FindPiece(character) == nullptr) return false;
  }
  return true;
}

const RankBpeModel::Piece* RankBpeModel::FindPiece(std::string_view text) const {
  if (text.size() > vocabulary_.LongestTokenBytes()) return nullptr;
  const auto it = pieces_.find(AbslSv(text));
  return it == pieces_.end() ? nullptr : &it->second;
}

std::vector<RankBpeModel::Symbol> RankBpeModel::FirstSymbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  for (size_t pos = 0; pos < word.size();) {
    const size_t user_defined = user_defined_.LongestPrefix(word.substr(pos)).bytes;
    const size_t bytes = user_defined > 0 ? user_defined : Utf8SequenceBytes(static_cast<unsigned char>(word[pos]));
    const auto index = static_cast<uint32_t>(symbols.size());
    symbols.push_back({word.substr(pos, bytes), index == 0 ? kNone : index - 1, index + 1, user_defined > 0});
    pos += bytes;
  }
  if (!symbols.empty()) symbols.back().next = kNone;
  return symbols;
}

absl::Status RankBpeModel::EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const {
  if (options_.whole_words_first) {
    if (const Piece* piece = FindPiece(word)) {
      ids->push_back(piece->id);
      return absl::OkStatus();
    }
  }
  std::vector<Symbol> symbols = FirstSymbols(word);
  Merger merger(*this, &symbols);
  merger.Run();
  absl::Status status;
  bool after_unknown = false;
  for (uint32_t at = symbols.empty() ? kNone : 0; at != kNone; at = symbols[at].next) {
    merger.TakeApart(symbols[at].text, [&](std::string_view part) {
      const Piece* piece = FindPiece(part);
      const bool unknown = piece == nullptr;
      if (!unknown) {
        ids->push_back(piece->id);
      } else if (options_.byte_fallback && vocabulary_.AppendByteIds(part, ids)) {
        // The bytes stand for it.
      } else if (!options_.unk_id) {
        status = absl::InvalidArgumentError(absl::StrCat("\"", AbslSv(part), "\" is not in the vocabulary"));
      } else if (!after_unknown) {
        ids->push_back(*options_.unk_id);
      }
      after_unknown = unknown;
    });
  }
  return status;
}

}  // namespace winnow
