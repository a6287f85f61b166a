#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// Text to token ids and back, as the served model has it: what the front ends need of tokenizer and chat template.
// Thread-safe.
class TextCodec {
 public:
  virtual ~TextCodec() = default;

  // INVALID_ARGUMENT when `text` is not UTF-8.
  virtual absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text, bool add_special_tokens) const = 0;

  // The same of a prompt that is refused when it has more than `max_tokens` tokens: OUT_OF_RANGE as soon as that is
  // certain, which may be long before the text is tokenized. A codec may leave the check to the caller, as this one.
  virtual absl::StatusOr<std::vector<uint32_t>> EncodeAtMost(size_t max_tokens, std::string_view text,
                                                             bool add_special_tokens) const {
    static_cast<void>(max_tokens);
    return Encode(text, add_special_tokens);
  }

  // Valid UTF-8.
  virtual std::string Decode(const std::vector<uint32_t>& ids, bool skip_special_tokens) const = 0;

  // The bytes a token stands for, which may be part of a character; special tokens show their name.
  virtual std::string TokenText(uint32_t id) const = 0;

  // The prompt text of a conversation. `variables` is an object of further template variables (may be empty). Both
  // keep the order in which the client wrote them.
  // INVALID_ARGUMENT with the template's own words when it refuses the messages.
  virtual absl::StatusOr<std::string> RenderChat(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                                 const nlohmann::ordered_json& variables) const = 0;

  // Whether the template mentions a variable; what it does not mention has no effect.
  virtual bool TemplateReads(std::string_view variable) const = 0;

  // The id of a token of the vocabulary, spelled as the vocabulary has it.
  virtual std::optional<uint32_t> TokenId(std::string_view token) const = 0;
};

}  // namespace winnow
