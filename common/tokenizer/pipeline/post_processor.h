#pragma once
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/json_node.h"

namespace winnow {

// The `post_processor` of tokenizer.json for single texts: the special tokens put before and after. Const, thread-safe.
//
// TemplateProcessing, BertProcessing, RobertaProcessing and Sequence; ByteLevel only moves offsets, which are not kept.
// Any other type is an Unimplemented error that names it.
class PostProcessor {
 public:
  // Adds nothing.
  PostProcessor() = default;
  static absl::StatusOr<PostProcessor> Parse(const JsonNode& node);
  // Puts ids before and after a text.
  static PostProcessor Around(std::vector<uint32_t> before, std::vector<uint32_t> after);

  // Ids with the special tokens around them.
  std::vector<uint32_t> Apply(std::vector<uint32_t> ids) const;

 private:
  absl::Status ParseTemplate(const JsonNode& node);
  absl::Status ParseClassifier(const JsonNode& node);

  // One part of a template: the text itself, or fixed ids.
  struct Piece {
    bool is_text = false;
    std::vector<uint32_t> ids;
  };
  std::vector<std::vector<Piece>> templates_;  // applied one after another
};

}  // namespace winnow
