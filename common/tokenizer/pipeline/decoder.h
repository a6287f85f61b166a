#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/pipeline/decode_stages.h"
#include "common/tokenizer/pipeline/sentencepiece_stage.h"
#include "common/tokenizer/split.h"

namespace winnow {

// A text being decoded, token by token. The concatenation of all that Push and Finish append is the decoded text.
class DecodeStream {
 public:
  ~DecodeStream();
  DecodeStream(DecodeStream&&) noexcept;

  void Push(std::string_view token, std::string* out);
  void Finish(std::string* out);

 private:
  friend class Decoder;
  class Sink;
  explicit DecodeStream(std::unique_ptr<Sink> sink);

  std::unique_ptr<Sink> sink_;
  std::vector<std::unique_ptr<DecodeStage>>
      stages_;  // last stage first: each holds a pointer to the one before it here
};

// The `decoder` of tokenizer.json: ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, WordPiece, BPEDecoder and
// Sequence; any other type is an Unimplemented error that names it. Const and thread-safe; must outlive its streams.
class Decoder {
 public:
  // Without a decoder, tokens are joined by spaces.
  Decoder();
  static absl::StatusOr<Decoder> Parse(const JsonNode& node);
  // What SentencePiece does with the pieces of a tokenizer.model.
  static Decoder SentencePiece(SentencePieceDecoding decoding);

  DecodeStream NewStream() const;

  // The bytes that a token adds inside a text (not at its start or end, where Strip and Metaspace may remove more).
  std::string TokenBytes(std::string_view token) const;

 private:
  enum class Kind {
    kByteLevel,
    kByteFallback,
    kFuse,
    kStrip,
    kReplace,
    kMetaspace,
    kWordPiece,
    kWordEnd,
    kSentencePiece,
    kJoinWithSpaces
  };
  struct Step {
    Kind kind;
    TextPattern pattern;  // kReplace
    // kReplace: replacement; kStrip and kMetaspace: the character; kWordPiece: the prefix; kWordEnd: the mark
    std::string content;
    size_t strip_start = 0;  // kStrip: at most so many characters
    size_t strip_stop = 0;
    bool drop_first = false;  // kMetaspace: the first token's marks vanish instead of becoming spaces
    bool cleanup = false;     // kWordPiece
    SentencePieceDecoding sentencepiece;
  };
  static absl::Status ParseInto(const JsonNode& node, std::vector<Step>* steps);
  static std::unique_ptr<DecodeStage> MakeStage(const Step& step, bool fused, DecodeStage* next);

  std::vector<Step> steps_;
};

}  // namespace winnow
