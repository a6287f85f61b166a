#pragma once
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/tokenizer/tokenizer.h"
#include "router/chat_output/chat_formats.h"
#include "router/generation/text_codec.h"
#include "router/generation/text_decoder.h"
#include "router/text/chat_template/chat_template.h"

namespace winnow {

// Tokenizer and chat template of a model directory, as the front ends and the text generation want them. A directory
// without a tokenizer is served too, in token ids only: Encode refuses, outputs have no text. Const and thread-safe.
class ModelText final : public TextCodec, public TextDecoderFactory {
 public:
  static absl::StatusOr<std::unique_ptr<ModelText>> Load(const std::string& model_dir);

  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  // null when there is none

  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text, bool add_special_tokens) const override;
  absl::StatusOr<std::vector<uint32_t>> EncodeAtMost(size_t max_tokens, std::string_view text,
                                                     bool add_special_tokens) const override;
  std::string Decode(const std::vector<uint32_t>& ids, bool skip_special_tokens) const override;
  std::string TokenText(uint32_t id) const override;
  absl::StatusOr<std::string> RenderChat(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                         const nlohmann::ordered_json& variables) const override;

  bool TemplateReads(std::string_view variable) const override;
  std::optional<uint32_t> TokenId(std::string_view token) const override;

  // As the model's files show them.
  ChatFormats DetectFormats() const;

  std::unique_ptr<TextDecoder> NewDecoder(const TextDecoding& decoding) const override;

 private:
  ModelText(std::unique_ptr<Tokenizer> tokenizer, ChatTemplate chat_template)
      : tokenizer_(std::move(tokenizer)), chat_template_(std::move(chat_template)) {}

  const std::unique_ptr<Tokenizer> tokenizer_;
  const ChatTemplate chat_template_;
};

}  // namespace winnow
