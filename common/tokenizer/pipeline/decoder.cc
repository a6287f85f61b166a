#include "common/tokenizer/pipeline/decoder.h"

#include <optional>
#include <utility>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/pipeline/normalizer.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr size_t kMaxDecoderSteps = 64;

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
  steps_.push_back({.kind = Kind::kJoinWithSpaces, .pattern = {}, .content = {}, .sentencepiece = {}});
}

absl::StatusOr<Decoder> Decoder::Parse(const JsonNode& node) {
  Decoder decoder;
  decoder.steps_.clear();
  WINNOW_RETURN_IF_ERROR(ParseInto(node, &decoder.steps_));
  return decoder;
}

Decoder Decoder::SentencePiece(SentencePieceDecoding decoding) {
  Decoder decoder;
  decoder.steps_.clear();
  decoder.steps_.push_back(
      {.kind = Kind::kSentencePiece, .pattern = {}, .content = {}, .sentencepiece = std::move(decoding)});
  return decoder;
}

absl::Status Decoder::ParseInto(const JsonNode& node, std::vector<Step>* steps) {
  WINNOW_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (steps->size() >= kMaxDecoderSteps) return node.Error("too many decoders in sequence");
  Step step{.kind = Kind::kFuse, .pattern = {}, .content = {}, .sentencepiece = {}};
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
  } else if (type == "WordPiece") {
    step.kind = Kind::kWordPiece;
    WINNOW_ASSIGN_OR_RETURN(step.content, node.StringOr("prefix", "##"));
    WINNOW_ASSIGN_OR_RETURN(step.cleanup, node.BoolOr("cleanup", true));
  } else if (type == "BPEDecoder") {
    step.kind = Kind::kWordEnd;
    WINNOW_ASSIGN_OR_RETURN(step.content, node.StringOr("suffix", "</w>"));
    if (step.content.empty()) return node.ErrorAt("suffix", "expected at least one character");
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
  switch (step.kind) {
    case Kind::kFuse:
      return nullptr;
    case Kind::kByteLevel:
      return NewByteLevelStage(fused, next);
    case Kind::kByteFallback:
      return NewByteFallbackStage(fused, next);
    case Kind::kStrip:
      return NewStripStage(step.content, step.strip_start, step.strip_stop, fused, next);
    case Kind::kReplace:
      return NewReplaceStage(step.pattern, step.content, fused, next);
    case Kind::kMetaspace:
      return NewMetaspaceStage(step.content, step.drop_first, fused, next);
    case Kind::kWordPiece:
      return NewWordPieceStage(step.content, step.cleanup, fused, next);
    case Kind::kWordEnd:
      return NewWordEndStage(step.content, fused, next);
    case Kind::kSentencePiece:
      return NewSentencePieceStage(step.sentencepiece, next);
    case Kind::kJoinWithSpaces:
      return NewJoinWithSpacesStage(next);
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
    if (step.kind == Kind::kSentencePiece) return SentencePieceBytes(step.sentencepiece, bytes);
    if (step.kind == Kind::kByteLevel) {
      bytes = ByteLevelTokenBytes(bytes);
    } else if (step.kind == Kind::kByteFallback) {
      if (const auto byte = ByteTokenValue(bytes)) return std::string(1, *byte);
    } else if (step.kind == Kind::kReplace) {
      auto replaced = step.pattern.ReplaceAll(bytes, step.content, kMaxTransformedBytes);
      if (replaced.ok()) bytes = *std::move(replaced);
    } else if (step.kind == Kind::kWordPiece) {
      const bool goes_on = bytes.starts_with(step.content);
      bytes = goes_on ? bytes.substr(step.content.size()) : absl::StrCat(" ", bytes);
    } else if (step.kind == Kind::kJoinWithSpaces) {
      bytes = absl::StrCat(" ", bytes);
    } else if (step.kind == Kind::kMetaspace || step.kind == Kind::kWordEnd) {
      auto replaced = TextPattern::Literal(step.content).ReplaceAll(bytes, " ", kMaxTransformedBytes);
      if (replaced.ok()) bytes = *std::move(replaced);
    }
  }
  return bytes;
}

}  // namespace winnow
