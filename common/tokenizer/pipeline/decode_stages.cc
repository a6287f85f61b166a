#include "common/tokenizer/pipeline/decode_stages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/pipeline/normalizer.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

std::string ReplaceLiteral(std::string_view text, std::string_view literal, std::string_view content) {
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text.find(literal, done)) != text.npos; done = at + literal.size()) {
    out.append(text, done, at - done).append(content);
  }
  return out.append(text.substr(done));
}

// Takes back the spaces that splitting English at punctuation leaves, in the order of the `tokenizers` library.
std::string CleanUpSpaces(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) {
    if (text.find(from) != text.npos) text = ReplaceLiteral(text, from, to);
  }
  return text;
}

class ByteLevelStage : public DecodeStage {
 public:
  explicit ByteLevelStage(DecodeStage* next) : next_(next) {}
  void Push(std::string_view token) override {
    std::string text;
    utf8_.Push(ByteLevelTokenBytes(token), &text);
    if (!text.empty()) next_->Push(text);
  }
  void Finish() override {
    std::string text;
    utf8_.Finish(&text);
    if (!text.empty()) next_->Push(text);
    next_->Finish();
  }

 private:
  DecodeStage* const next_;
  LossyUtf8Stream utf8_;
};

// A run of byte tokens is text when all of it is UTF-8; else each of its bytes becomes U+FFFD, so a run is kept until
// it ends or is known to be invalid.
class ByteFallbackStage : public DecodeStage {
 public:
  explicit ByteFallbackStage(DecodeStage* next) : next_(next) {}
  void Push(std::string_view token) override {
    if (const auto byte = ByteTokenValue(token)) {
      PushByte(*byte);
      return;
    }
    EndRun();
    next_->Push(token);
  }
  void Finish() override {
    EndRun();
    next_->Finish();
  }

 private:
  void PushByte(char byte) {
    if (invalid_) {
      next_->Push(kReplacementCharacter);
      return;
    }
    run_.push_back(byte);
    // U+FFFD from the lossy decoder that is not in the input means that no continuation can repair the run. A sequence
    // in the run may spell U+FFFD itself, so compare with the bytes.
    std::string decoded;
    check_.Push(std::string_view(&byte, 1), &decoded);
    if (decoded.empty()) return;
    if (!std::string_view(run_).ends_with(decoded)) {
      invalid_ = true;
      Replace();
    }
  }
  void EndRun() {
    std::string unfinished;
    check_.Finish(&unfinished);
    if (!unfinished.empty()) {
      Replace();
    } else if (!run_.empty()) {
      next_->Push(run_);
    }
    run_.clear();
    invalid_ = false;
  }
  void Replace() {
    for (size_t i = 0; i < run_.size(); ++i) next_->Push(kReplacementCharacter);
    run_.clear();
    check_ = LossyUtf8Stream();
  }

  DecodeStage* const next_;
  std::string run_;
  LossyUtf8Stream check_;
  bool invalid_ = false;  // the current run is, and its bytes so far have been passed on as U+FFFD
};

class ReplaceStage : public DecodeStage {
 public:
  ReplaceStage(const TextPattern* pattern, std::string_view content, DecodeStage* next)
      : pattern_(pattern), content_(content), next_(next) {}
  void Push(std::string_view token) override {
    // Where the regex gives up (its limits), the token stays as it is.
    const auto replaced = pattern_->ReplaceAll(token, content_, kMaxTransformedBytes);
    next_->Push(replaced.ok() ? std::string_view(*replaced) : token);
  }
  void Finish() override { next_->Finish(); }

 private:
  const TextPattern* const pattern_;
  const std::string_view content_;
  DecodeStage* const next_;
};

// Replaces a literal in one long token that arrives in parts; keeps a tail that may be the start of the literal.
class FusedReplaceStage : public DecodeStage {
 public:
  FusedReplaceStage(const std::string& literal, std::string_view content, DecodeStage* next)
      : literal_(literal), content_(content), next_(next) {}
  void Push(std::string_view part) override {
    kept_.append(part);
    std::string out;
    size_t done = 0;
    for (size_t at; (at = kept_.find(literal_, done)) != kept_.npos; done = at + literal_.size()) {
      out.append(kept_, done, at - done).append(content_);
    }
    size_t tail = std::max(done, kept_.size() - std::min(kept_.size(), literal_.size() - 1));
    while (tail < kept_.size() && !std::string_view(literal_).starts_with(std::string_view(kept_).substr(tail))) ++tail;
    out.append(kept_, done, tail - done);
    kept_.erase(0, tail);
    if (!out.empty()) next_->Push(out);
  }
  void Finish() override {
    if (!kept_.empty()) next_->Push(kept_);
    next_->Finish();
  }

 private:
  const std::string& literal_;  // not empty
  const std::string_view content_;
  DecodeStage* const next_;
  std::string kept_;
};

class StripStage : public DecodeStage {
 public:
  StripStage(std::string_view character, size_t start, size_t stop, DecodeStage* next)
      : character_(character), start_(start), stop_(stop), next_(next) {}
  void Push(std::string_view token) override {
    for (size_t i = 0; i < start_ && token.starts_with(character_); ++i) token.remove_prefix(character_.size());
    for (size_t i = 0; i < stop_ && token.ends_with(character_); ++i) token.remove_suffix(character_.size());
    next_->Push(token);
  }
  void Finish() override { next_->Finish(); }

 private:
  const std::string_view character_;
  const size_t start_, stop_;
  DecodeStage* const next_;
};

// Strip of one long token that arrives in parts (parts are whole characters); keeps up to `stop` characters at the end.
class FusedStripStage : public DecodeStage {
 public:
  FusedStripStage(std::string_view character, size_t start, size_t stop, DecodeStage* next)
      : character_(character), start_left_(start), stop_(stop), next_(next) {}
  void Push(std::string_view part) override {
    while (start_left_ > 0 && !part.empty()) {
      if (!part.starts_with(character_)) {
        start_left_ = 0;
        break;
      }
      part.remove_prefix(character_.size());
      --start_left_;
    }
    if (part.empty()) return;
    std::string out;
    size_t run = 0;  // characters to strip at the end of this part
    std::string_view body = part;
    while (run < stop_ && body.ends_with(character_)) {
      body.remove_suffix(character_.size());
      ++run;
    }
    if (body.empty()) {
      kept_ += run;
    } else {
      Emit(kept_, &out);
      out.append(body);
      kept_ = run;
    }
    if (kept_ > stop_) {
      Emit(kept_ - stop_, &out);
      kept_ = stop_;
    }
    if (!out.empty()) next_->Push(out);
  }
  void Finish() override { next_->Finish(); }

 private:
  void Emit(size_t count, std::string* out) const {
    for (size_t i = 0; i < count; ++i) out->append(character_);
  }

  const std::string_view character_;
  size_t start_left_;
  const size_t stop_;
  DecodeStage* const next_;
  size_t kept_ = 0;  // characters held back, all equal to character_
};

class MetaspaceStage : public DecodeStage {
 public:
  MetaspaceStage(std::string_view mark, bool drop_first, bool fused, DecodeStage* next)
      : mark_(mark), drop_first_(drop_first), fused_(fused), next_(next) {}
  void Push(std::string_view token) override {
    std::string text;
    const bool drop = first_ && drop_first_;
    for (size_t pos = 0; pos < token.size();) {
      if (token.substr(pos).starts_with(mark_)) {
        if (!drop) text.push_back(' ');
        pos += mark_.size();
      } else {
        text.push_back(token[pos++]);
      }
    }
    if (!fused_) first_ = false;
    next_->Push(text);
  }
  void Finish() override { next_->Finish(); }

 private:
  const std::string_view mark_;
  const bool drop_first_;
  const bool fused_;  // everything is one token, so all of it is the first
  DecodeStage* const next_;
  bool first_ = true;
};

class JoinWithSpacesStage : public DecodeStage {
 public:
  explicit JoinWithSpacesStage(DecodeStage* next) : next_(next) {}
  void Push(std::string_view token) override {
    if (!first_) next_->Push(" ");
    first_ = false;
    next_->Push(token);
  }
  void Finish() override { next_->Finish(); }

 private:
  DecodeStage* const next_;
  bool first_ = true;
};

// Puts spaces before words; continuations of words lose their mark instead.
class WordPieceStage : public DecodeStage {
 public:
  WordPieceStage(std::string_view prefix, bool cleanup, DecodeStage* next)
      : prefix_(prefix), cleanup_(cleanup), next_(next) {}
  void Push(std::string_view token) override {
    std::string text;
    if (first_) {
      text = token;
    } else if (token.starts_with(prefix_)) {
      text = token.substr(prefix_.size());
    } else {
      text.append(" ").append(token);
    }
    first_ = false;
    if (cleanup_) text = CleanUpSpaces(std::move(text));
    if (!text.empty()) next_->Push(text);
  }
  void Finish() override { next_->Finish(); }

 private:
  const std::string_view prefix_;
  const bool cleanup_;
  DecodeStage* const next_;
  bool first_ = true;
};

// Turns the marks at the ends of words into spaces; that of the last token vanishes.
class WordEndStage : public DecodeStage {
 public:
  WordEndStage(std::string_view mark, DecodeStage* next) : mark_(mark), next_(next) {}
  void Push(std::string_view token) override {
    PassOn(" ");
    if (token.find(mark_) == token.npos) {
      next_->Push(token);
    } else {
      kept_ = token;
    }
  }
  void Finish() override {
    PassOn("");
    next_->Finish();
  }

 private:
  void PassOn(std::string_view in_place_of_mark) {
    if (kept_.empty()) return;
    next_->Push(ReplaceLiteral(kept_, mark_, in_place_of_mark));
    kept_.clear();
  }

  const std::string_view mark_;  // not empty
  DecodeStage* const next_;
  std::string kept_;  // the last token, as long as it may be the last of all
};

// Collects one long token for a stage that cannot take it in parts: correct, but nothing comes out before the end.
class WholeTextStage : public DecodeStage {
 public:
  explicit WholeTextStage(std::unique_ptr<DecodeStage> inner) : inner_(std::move(inner)) {}
  void Push(std::string_view part) override { text_.append(part); }
  void Finish() override {
    inner_->Push(text_);
    inner_->Finish();
  }

 private:
  const std::unique_ptr<DecodeStage> inner_;
  std::string text_;
};

std::unique_ptr<DecodeStage> OfWholeText(bool fused, std::unique_ptr<DecodeStage> stage) {
  if (!fused) return stage;
  return std::make_unique<WholeTextStage>(std::move(stage));
}

}  // namespace

std::unique_ptr<DecodeStage> NewByteLevelStage(bool fused, DecodeStage* next) {
  return OfWholeText(fused, std::make_unique<ByteLevelStage>(next));
}

std::unique_ptr<DecodeStage> NewByteFallbackStage(bool fused, DecodeStage* next) {
  return OfWholeText(fused, std::make_unique<ByteFallbackStage>(next));
}

std::unique_ptr<DecodeStage> NewReplaceStage(const TextPattern& pattern, std::string_view content, bool fused,
                                             DecodeStage* next) {
  if (const std::string* literal = pattern.literal()) {
    if (literal->empty()) return nullptr;
    if (fused) return std::make_unique<FusedReplaceStage>(*literal, content, next);
  }
  return OfWholeText(fused, std::make_unique<ReplaceStage>(&pattern, content, next));
}

std::unique_ptr<DecodeStage> NewStripStage(std::string_view character, size_t start, size_t stop, bool fused,
                                           DecodeStage* next) {
  if (fused) return std::make_unique<FusedStripStage>(character, start, stop, next);
  return std::make_unique<StripStage>(character, start, stop, next);
}

std::unique_ptr<DecodeStage> NewMetaspaceStage(std::string_view mark, bool drop_first, bool fused, DecodeStage* next) {
  return std::make_unique<MetaspaceStage>(mark, drop_first, fused, next);
}

std::unique_ptr<DecodeStage> NewWordPieceStage(std::string_view prefix, bool cleanup, bool fused, DecodeStage* next) {
  return OfWholeText(fused, std::make_unique<WordPieceStage>(prefix, cleanup, next));
}

std::unique_ptr<DecodeStage> NewWordEndStage(std::string_view mark, bool fused, DecodeStage* next) {
  return OfWholeText(fused, std::make_unique<WordEndStage>(mark, next));
}

std::unique_ptr<DecodeStage> NewJoinWithSpacesStage(DecodeStage* next) {
  return std::make_unique<JoinWithSpacesStage>(next);
}

std::optional<char> ByteTokenValue(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

}  // namespace winnow
