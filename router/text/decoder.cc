#include "router/text/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "router/text/byte_level.h"
#include "router/text/normalizer.h"
#include "router/text/utf8.h"

namespace winnow {
namespace {

constexpr size_t kMaxDecoderSteps = 64;

// The byte of a token "<0xHH>".
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

}  // namespace

class DecodeStream::Sink : public DecodeStage {
 public:
  void Push(std::string_view token) override { text_.append(token); }
  void Finish() override {}
  void MoveTo(std::string* out) {
    if (out->empty()) {
      out->swap(text_);
    } else {
      out->append(text_);
    }
    text_.clear();
  }

 private:
  std::string text_;
};

DecodeStream::DecodeStream(std::unique_ptr<Sink> sink) : sink_(std::move(sink)) {}
DecodeStream::~DecodeStream() = default;
DecodeStream::DecodeStream(DecodeStream&&) noexcept = default;

void DecodeStream::Push(std::string_view token, std::string* out) {
  DecodeStage& first = stages_.empty() ? static_cast<DecodeStage&>(*sink_) : *stages_.back();
  first.Push(token);
  sink_->MoveTo(out);
}

void DecodeStream::Finish(std::string* out) {
  if (!stages_.empty()) stages_.back()->Finish();
  sink_->MoveTo(out);
}

Decoder::Decoder() {
  steps_.push_back({.kind = Kind::kJoinWithSpaces, .pattern = {}, .content = {}});
}

absl::StatusOr<Decoder> Decoder::Parse(const JsonNode& node) {
  Decoder decoder;
  decoder.steps_.clear();
  WINNOW_RETURN_IF_ERROR(ParseInto(node, &decoder.steps_));
  return decoder;
}

absl::Status Decoder::ParseInto(const JsonNode& node, std::vector<Step>* steps) {
  WINNOW_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (steps->size() >= kMaxDecoderSteps) return node.Error("too many decoders in sequence");
  Step step{.kind = Kind::kFuse, .pattern = {}, .content = {}};
  if (type == "Sequence") {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode list, node.Member("decoders"));
    WINNOW_RETURN_IF_ERROR(list.RequireArray());
    for (size_t i = 0; i < list.value().size(); ++i) WINNOW_RETURN_IF_ERROR(ParseInto(list.Element(i), steps));
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    WINNOW_ASSIGN_OR_RETURN(step.content, node.String("content"));
    if (CountCodePoints(step.content) != 1) return node.ErrorAt("content", "expected one character");
    WINNOW_ASSIGN_OR_RETURN(step.strip_start, node.Uint32("start"));
    WINNOW_ASSIGN_OR_RETURN(step.strip_stop, node.Uint32("stop"));
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    WINNOW_ASSIGN_OR_RETURN(const JsonNode pattern, node.Member("pattern"));
    WINNOW_ASSIGN_OR_RETURN(step.pattern, TextPattern::Parse(pattern));
    WINNOW_ASSIGN_OR_RETURN(step.content, node.String("content"));
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    WINNOW_ASSIGN_OR_RETURN(step.content, node.String("replacement"));
    if (CountCodePoints(step.content) != 1) return node.ErrorAt("replacement", "expected one character");
    WINNOW_ASSIGN_OR_RETURN(const bool add_prefix_space, node.BoolOr("add_prefix_space", true));
    WINNOW_ASSIGN_OR_RETURN(const std::string scheme,
                            node.StringOr("prepend_scheme", add_prefix_space ? "always" : "never"));
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      return node.ErrorAt("prepend_scheme", absl::StrCat("unknown scheme \"", scheme, "\""));
    }
    step.drop_first = scheme != "never";
  } else {
    return absl::UnimplementedError(absl::StrCat(node.path(), ".type: unsupported decoder \"", type, "\""));
  }
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

std::unique_ptr<DecodeStage> Decoder::MakeStage(const Step& step, bool fused, DecodeStage* next) {
  const auto whole_text = [&](std::unique_ptr<DecodeStage> stage) -> std::unique_ptr<DecodeStage> {
    if (!fused) return stage;
    return std::make_unique<WholeTextStage>(std::move(stage));
  };
  switch (step.kind) {
    case Kind::kFuse:
      return nullptr;
    case Kind::kByteLevel:
      return whole_text(std::make_unique<ByteLevelStage>(next));
    case Kind::kByteFallback:
      return whole_text(std::make_unique<ByteFallbackStage>(next));
    case Kind::kStrip:
      if (fused) return std::make_unique<FusedStripStage>(step.content, step.strip_start, step.strip_stop, next);
      return std::make_unique<StripStage>(step.content, step.strip_start, step.strip_stop, next);
    case Kind::kReplace:
      if (const std::string* literal = step.pattern.literal()) {
        if (literal->empty()) return nullptr;
        if (fused) return std::make_unique<FusedReplaceStage>(*literal, step.content, next);
      }
      return whole_text(std::make_unique<ReplaceStage>(&step.pattern, step.content, next));
    case Kind::kMetaspace:
      return std::make_unique<MetaspaceStage>(step.content, step.drop_first, fused, next);
    case Kind::kJoinWithSpaces:
      return std::make_unique<JoinWithSpacesStage>(next);
  }
  return nullptr;
}

DecodeStream Decoder::NewStream() const {
  // A stage's mode depends on whether a step before it joins the tokens; stages are built from the last.
  size_t fuse_at = steps_.size();
  for (size_t i = 0; i < steps_.size() && fuse_at == steps_.size(); ++i) {
    if (steps_[i].kind == Kind::kFuse || steps_[i].kind == Kind::kByteLevel) fuse_at = i;
  }
  DecodeStream stream(std::make_unique<DecodeStream::Sink>());
  DecodeStage* next = stream.sink_.get();
  for (size_t i = steps_.size(); i-- > 0;) {
    std::unique_ptr<DecodeStage> stage = MakeStage(steps_[i], /*fused=*/i > fuse_at, next);
    if (stage == nullptr) continue;
    next = stage.get();
    stream.stages_.push_back(std::move(stage));
  }
  return stream;
}

std::string Decoder::TokenBytes(std::string_view token) const {
  std::string bytes(token);
  for (const Step& step : steps_) {
    if (step.kind == Kind::kByteLevel) {
      bytes = ByteLevelTokenBytes(bytes);
    } else if (step.kind == Kind::kByteFallback) {
      if (const auto byte = ByteTokenValue(bytes)) return std::string(1, *byte);
    } else if (step.kind == Kind::kReplace) {
      auto replaced = step.pattern.ReplaceAll(bytes, step.content, kMaxTransformedBytes);
      if (replaced.ok()) bytes = *std::move(replaced);
    } else if (step.kind == Kind::kMetaspace) {
      auto replaced = TextPattern::Literal(step.content).ReplaceAll(bytes, " ", kMaxTransformedBytes);
      if (replaced.ok()) bytes = *std::move(replaced);
    }
  }
  return bytes;
}

}  // namespace winnow
