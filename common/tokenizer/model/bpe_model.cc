#include "common/tokenizer/model/bpe_model.h"

#include <algorithm>
#include <queue>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr size_t kMaxMerges = 1u << 22;

constexpr uint64_t PairKey(uint32_t left, uint32_t right) {
  return uint64_t{left} << 32 | right;
}

// A merge as one entry of tokenizer.json has it: "a b" or ["a", "b"].
absl::StatusOr<std::pair<std::string_view, std::string_view>> MergeSides(const JsonNode& list, size_t index) {
  const nlohmann::json& entry = list.value()[index];
  if (entry.is_array()) {
    if (entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string()) {
      return list.Element(index).Error("expected a pair of strings");
    }
    return std::pair<std::string_view, std::string_view>(entry[0].get_ref<const std::string&>(),
                                                         entry[1].get_ref<const std::string&>());
  }
  if (!entry.is_string()) return list.Element(index).Error("expected \"a b\" or [\"a\", \"b\"]");
  const std::string_view text = entry.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos) {
    return list.Element(index).Error("expected two tokens with one space between them");
  }
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Parse(const JsonNode& node) {
  std::unique_ptr<BpeModel> model(new BpeModel());
  WINNOW_RETURN_IF_ERROR(model->ParseOptions(node));
  WINNOW_ASSIGN_OR_RETURN(model->vocabulary_, Vocabulary::Parse(node));
  model->direct_ids_.fill(kNoId);
  for (char32_t c = 0; c < kDirectCharacters; ++c) {
    std::string character;
    AppendUtf8(c, &character);
    if (const auto id = model->TokenId(character)) model->direct_ids_[c] = *id;
  }
  WINNOW_RETURN_IF_ERROR(model->ParseMerges(node));
  return model;
}

absl::Status BpeModel::ParseOptions(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(word_prefix_, node.StringOr("continuing_subword_prefix", ""));
  WINNOW_ASSIGN_OR_RETURN(word_suffix_, node.StringOr("end_of_word_suffix", ""));
  WINNOW_ASSIGN_OR_RETURN(unk_token_, node.StringOr("unk_token", ""));
  WINNOW_ASSIGN_OR_RETURN(fuse_unk_, node.BoolOr("fuse_unk", false));
  WINNOW_ASSIGN_OR_RETURN(byte_fallback_, node.BoolOr("byte_fallback", false));
  WINNOW_ASSIGN_OR_RETURN(ignore_merges_, node.BoolOr("ignore_merges", false));
  if (node.Has("dropout")) {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode dropout, node.Member("dropout"));
    if (!dropout.value().is_number() || dropout.value().get<double>() != 0) {
      return absl::UnimplementedError(absl::StrCat(dropout.path(), ": dropout makes encoding random"));
    }
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ParseMerges(const JsonNode& node) {
  WINNOW_ASSIGN_OR_RETURN(const JsonNode list, node.Member("merges"));
  WINNOW_RETURN_IF_ERROR(list.RequireArray());
  const size_t count = list.value().size();
  if (count > kMaxMerges) return list.Error(absl::StrCat(count, " merges, the limit is ", kMaxMerges));
  merges_.reserve(count);
  uint32_t rank = 0;
  std::string merged;
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& entry = list.value()[i];
    if (entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version")) continue;
    WINNOW_ASSIGN_OR_RETURN(const auto sides, MergeSides(list, i));
    const auto left = TokenId(sides.first);
    const auto right = TokenId(sides.second);
    for (const auto& [id, text] : {std::pair(left, sides.first), std::pair(right, sides.second)}) {
      if (!id) return list.Element(i).Error(absl::StrCat("\"", AbslSv(text), "\" is not in the vocabulary"));
    }
    if (sides.second.size() < word_prefix_.size()) {
      return list.Element(i).Error("the right side is shorter than continuing_subword_prefix");
    }
    merged.assign(sides.first).append(sides.second.substr(word_prefix_.size()));
    const auto id = TokenId(merged);
    if (!id) return list.Element(i).Error(absl::StrCat("the merged token \"", merged, "\" is not in the vocabulary"));
    merges_[PairKey(*left, *right)] = {rank++, *id};
  }
  return absl::OkStatus();
}

bool BpeModel::KnowsEveryCharacter() const {
  if (!unk_token_.empty() && !fuse_unk_) return true;
  return byte_fallback_ && vocabulary_.HasAllByteTokens();
}

bool BpeModel::KnowsByteLevelAlphabet() const {
  if (!word_prefix_.empty() || !word_suffix_.empty()) return false;
  for (int byte = 0; byte < 256; ++byte) {
    if (direct_ids_[ByteLevelCharacter(static_cast<uint8_t>(byte))] == kNoId) return false;
  }
  return true;
}

const BpeModel::Merge* BpeModel::FindMerge(uint32_t left, uint32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

absl::Status BpeModel::EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const {
  if (word.empty()) return absl::OkStatus();
  if (ignore_merges_) {
    if (const auto id = TokenId(word)) {
      ids->push_back(*id);
      return absl::OkStatus();
    }
  }
  const bool cached = word.size() <= kCacheWordBytes;
  CacheShard& shard = cache_[absl::HashOf(AbslSv(word)) % kCacheShards];
  if (cached) {
    const std::lock_guard lock(shard.mutex);
    const auto it = shard.words.find(AbslSv(word));
    if (it != shard.words.end()) {
      ids->insert(ids->end(), it->second.begin(), it->second.end());
      return absl::OkStatus();
    }
  }
  std::vector<uint32_t> symbols;
  WINNOW_RETURN_IF_ERROR(FirstSymbols(word, &symbols));
  if (symbols.size() <= kScanSymbols) {
    MergeByScan(&symbols);
  } else {
    MergeByHeap(&symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  if (cached) {
    const std::lock_guard lock(shard.mutex);
    if (shard.words.size() >= kCacheWordsPerShard) shard.words.clear();
    shard.words.emplace(std::string(word), std::move(symbols));
  }
  return absl::OkStatus();
}

uint32_t BpeModel::CharacterId(std::string_view character) const {
  if (character.size() <= 2) {
    size_t pos = 0;
    const char32_t c = NextCodePoint(character, &pos);
    if (c < kDirectCharacters && pos == character.size()) return direct_ids_[c];
  }
  return TokenId(character).value_or(kNoId);
}

absl::Status BpeModel::FirstSymbols(std::string_view word, std::vector<uint32_t>* symbols) const {
  const bool decorated = !word_prefix_.empty() || !word_suffix_.empty();
  uint32_t pending_unk = kNoId;  // an unknown character waits here so that the next one can be fused with it
  std::string buffer;
  for (size_t pos = 0; pos < word.size();) {
    const size_t bytes = Utf8SequenceBytes(static_cast<unsigned char>(word[pos]));
    std::string_view character = word.substr(pos, bytes);
    if (decorated) {
      buffer.assign(pos > 0 ? word_prefix_ : "").append(character);
      if (pos + bytes == word.size()) buffer.append(word_suffix_);
      character = buffer;
    }
    pos += bytes;
    if (const uint32_t id = CharacterId(character); id != kNoId) {
      if (pending_unk != kNoId) symbols->push_back(std::exchange(pending_unk, kNoId));
      symbols->push_back(id);
      continue;
    }
    // As in the reference, a waiting unknown character comes after these bytes.
    if (byte_fallback_ && vocabulary_.AppendByteIds(character, symbols)) continue;
    if (unk_token_.empty()) continue;
    const auto unk = TokenId(unk_token_);
    if (!unk) {
      return absl::InvalidArgumentError(absl::StrCat("model.unk_token \"", unk_token_, "\" is not in the vocabulary"));
    }
    if (pending_unk != kNoId && !fuse_unk_) symbols->push_back(pending_unk);
    pending_unk = *unk;
  }
  if (pending_unk != kNoId) symbols->push_back(pending_unk);
  return absl::OkStatus();
}

void BpeModel::MergeByScan(std::vector<uint32_t>* symbols) const {
  std::array<const Merge*, kScanSymbols> pair_merges{};  // of the pair that starts at each symbol
  size_t count = symbols->size();
  for (size_t i = 0; i + 1 < count; ++i) pair_merges[i] = FindMerge((*symbols)[i], (*symbols)[i + 1]);
  while (count > 1) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (pair_merges[i] != nullptr && (best == count || pair_merges[i]->rank < pair_merges[best]->rank)) best = i;
    }
    if (best == count) break;
    (*symbols)[best] = pair_merges[best]->id;
    symbols->erase(symbols->begin() + static_cast<ptrdiff_t>(best) + 1);
    for (size_t i = best + 1; i + 1 < count; ++i) pair_merges[i] = pair_merges[i + 1];
    --count;
    if (best > 0) pair_merges[best - 1] = FindMerge((*symbols)[best - 1], (*symbols)[best]);
    pair_merges[best] = best + 1 < count ? FindMerge((*symbols)[best], (*symbols)[best + 1]) : nullptr;
  }
}

void BpeModel::MergeByHeap(std::vector<uint32_t>* symbols) const {
  constexpr uint32_t kNone = UINT32_MAX;
  struct Symbol {
    uint32_t id;
    uint32_t previous;
    uint32_t next;
    bool removed;
  };
  struct Candidate {
    uint32_t rank;
    uint32_t position;
    uint32_t merged_id;
    bool operator<(const Candidate& other) const {  // the top of the queue is the lowest rank, then the leftmost
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  const auto count = static_cast<uint32_t>(symbols->size());
  std::vector<Symbol> list(count);
  for (uint32_t i = 0; i < count; ++i) {
    list[i] = {(*symbols)[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1, false};
  }
  std::vector<Candidate> candidates;
  for (uint32_t i = 0; i + 1 < count; ++i) {
    if (const Merge* merge = FindMerge(list[i].id, list[i + 1].id)) candidates.push_back({merge->rank, i, merge->id});
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(candidates));
  const auto consider = [&](uint32_t left) {
    if (left == kNone || list[left].next == kNone) return;
    if (const Merge* merge = FindMerge(list[left].id, list[list[left].next].id)) {
      queue.push({merge->rank, left, merge->id});
    }
  };
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = list[top.position];
    if (left.removed || left.next == kNone) continue;
    Symbol& right = list[left.next];
    const Merge* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->id != top.merged_id) continue;  // one side has changed since this was queued
    left.id = top.merged_id;
    right.removed = true;
    left.next = right.next;
    if (left.next != kNone) list[left.next].previous = top.position;
    consider(left.previous);
    consider(top.position);
  }
  symbols->clear();
  for (const Symbol& symbol : list) {
    if (!symbol.removed) symbols->push_back(symbol.id);
  }
}

}  // namespace winnow
