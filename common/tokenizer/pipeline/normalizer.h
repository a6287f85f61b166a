#pragma once
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/tokenizer/json_node.h"

namespace winnow {

// A text may not grow beyond this by normalization or pre-tokenization.
inline constexpr size_t kMaxTransformedBytes = size_t{1} << 30;

// Rewrites a piece of text before it is split into words. Const and thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // In and out: valid UTF-8.
  virtual absl::Status Normalize(std::string* text) const = 0;
  // The same of a part of an input between added tokens, or of all of it.
  virtual absl::Status NormalizePart(std::string* text, bool /*at_input_start*/) const { return Normalize(text); }
};

// The `normalizer` of tokenizer.json: NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents,
// ByteLevel, BertNormalizer, Nmt, Precompiled and Sequence. Any other type is an Unimplemented error that names it.
absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const JsonNode& node);

}  // namespace winnow
