#include "common/tokenizer/added_vocabulary.h"

#include <algorithm>

#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

// Start of the character that ends at `end`.
size_t PreviousCharacter(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool EndsWithWord(std::string_view text) {
  if (text.empty()) return false;
  size_t pos = PreviousCharacter(text, text.size());
  return IsWordCharacter(NextCodePoint(text, &pos));
}

bool StartsWithWord(std::string_view text) {
  size_t pos = 0;
  return !text.empty() && IsWordCharacter(NextCodePoint(text, &pos));
}

size_t WhitespaceStartAtEnd(std::string_view text, size_t limit) {
  size_t start = text.size();
  while (start > limit) {
    const size_t previous = PreviousCharacter(text, start);
    size_t pos = previous;
    if (!IsUnicodeWhitespace(NextCodePoint(text, &pos))) break;
    start = previous;
  }
  return std::max(start, limit);
}

size_t LeadingWhitespaceBytes(std::string_view text) {
  size_t end = 0;
  for (size_t pos = 0; pos < text.size() && IsUnicodeWhitespace(NextCodePoint(text, &pos));) end = pos;
  return end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<std::pair<std::string, const AddedToken*>>& tokens) {
  nodes_.emplace_back();
  for (const auto& [text, token] : tokens) {
    if (text.empty()) continue;
    uint32_t at = 0;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      auto& children = nodes_[at].children;
      const auto it = std::find_if(children.begin(), children.end(), [&](const auto& e) { return e.first == byte; });
      if (it != children.end()) {
        at = it->second;
        continue;
      }
      const auto next = static_cast<uint32_t>(nodes_.size());
      children.emplace_back(byte, next);
      nodes_.emplace_back();
      if (at == 0) root_children_[byte] = next;
      at = next;
    }
    if (nodes_[at].token == nullptr) nodes_[at].token = token;
  }
}

const AddedToken* AddedTokenMatcher::MatchAt(std::string_view text, size_t at, size_t* end) const {
  uint32_t node = root_children_[static_cast<unsigned char>(text[at])];
  const AddedToken* best = nullptr;
  for (size_t pos = at + 1; node != 0; ++pos) {
    if (nodes_[node].token != nullptr) {
      best = nodes_[node].token;
      *end = pos;
    }
    if (pos >= text.size()) break;
    const auto byte = static_cast<unsigned char>(text[pos]);
    const auto& children = nodes_[node].children;
    const auto it = std::find_if(children.begin(), children.end(), [&](const auto& e) { return e.first == byte; });
    node = it == children.end() ? 0 : it->second;
  }
  return best;
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::Split(std::string_view text) const {
  std::vector<Part> parts;
  size_t done = 0;
  size_t at = 0;
  while (at < text.size()) {
    size_t match_end = 0;
    const AddedToken* token = MatchAt(text, at, &match_end);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = match_end;
    at = match_end;  // the search goes on behind the match even when it is refused
    if (token->single_word && (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) continue;
    // Whitespace that an earlier token took is not taken again.
    if (token->lstrip && begin > done) begin = WhitespaceStartAtEnd(text.substr(0, begin), done);
    if (token->rstrip) end += LeadingWhitespaceBytes(text.substr(end));
    // A token made of whitespace may lie inside what the one before it took along.
    end = std::max(end, done);
    begin = std::max(begin, done);
    if (done < begin) parts.push_back({{done, begin}, nullptr});
    parts.push_back({{begin, end}, token});
    done = end;
  }
  if (done < text.size() || text.empty()) parts.push_back({{done, text.size()}, nullptr});
  return parts;
}

}  // namespace winnow
