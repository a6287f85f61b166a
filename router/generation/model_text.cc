#include "router/generation/model_text.h"

#include "common/base/json.h"
#include "common/tokenizer/checkpoint/load_tokenizer.h"
#include "common/tokenizer/detokenizer.h"

namespace winnow {
namespace {

class DetokenizingDecoder final : public TextDecoder {
 public:
  DetokenizingDecoder(const Tokenizer* tokenizer, const TextDecoding& decoding)
      : detokenizer_(tokenizer, decoding.skip_special_tokens, decoding.shown_special) {}
  std::string Push(uint32_t id) override { return detokenizer_.Push(id); }
  std::string Flush() override { return detokenizer_.Flush(); }

 private:
  Detokenizer detokenizer_;
};

// Of a model without tokenizer: no text at all.
class NoTextDecoder final : public TextDecoder {
 public:
  std::string Push(uint32_t) override { return ""; }
  std::string Flush() override { return ""; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelText>> ModelText::Load(const std::string& model_dir) {
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(model_dir));
  WINNOW_ASSIGN_OR_RETURN(ChatTemplate chat_template, ChatTemplate::Load(model_dir));
  return std::unique_ptr<ModelText>(new ModelText(std::move(tokenizer), std::move(chat_template)));
}

absl::StatusOr<std::vector<uint32_t>> ModelText::Encode(std::string_view text, bool add_special_tokens) const {
  return EncodeAtMost(Tokenizer::kAnyNumber, text, add_special_tokens);
}

absl::StatusOr<std::vector<uint32_t>> ModelText::EncodeAtMost(size_t max_tokens, std::string_view text,
                                                              bool add_special_tokens) const {
  if (tokenizer_ == nullptr) return absl::InvalidArgumentError("this model has no tokenizer: send token ids");
  return tokenizer_->Encode(text, add_special_tokens, max_tokens);
}

std::string ModelText::Decode(const std::vector<uint32_t>& ids, bool skip_special_tokens) const {
  return tokenizer_ == nullptr ? "" : tokenizer_->Decode(ids, skip_special_tokens);
}

std::string ModelText::TokenText(uint32_t id) const {
  return tokenizer_ == nullptr ? absl::StrCat("token_id:", id) : tokenizer_->TokenBytes(id);
}

absl::StatusOr<std::string> ModelText::RenderChat(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                                  const nlohmann::ordered_json& variables) const {
  ChatTemplate::Options options;
  options.add_generation_prompt = add_generation_prompt;
  options.variables = variables;
  return chat_template_.Render(messages, options);
}

bool ModelText::TemplateReads(std::string_view variable) const {
  return chat_template_.Mentions(variable);
}

std::optional<uint32_t> ModelText::TokenId(std::string_view token) const {
  return tokenizer_ == nullptr ? std::nullopt : tokenizer_->TokenId(token);
}

ChatFormats ModelText::DetectFormats() const {
  return DetectChatFormats(chat_template_.Sources(),
                           [this](std::string_view token) { return TokenId(token).has_value(); });
}

std::unique_ptr<TextDecoder> ModelText::NewDecoder(const TextDecoding& decoding) const {
  if (tokenizer_ == nullptr) return std::make_unique<NoTextDecoder>();
  return std::make_unique<DetokenizingDecoder>(tokenizer_.get(), decoding);
}

}  // namespace winnow
