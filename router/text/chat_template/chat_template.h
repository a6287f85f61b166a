#pragma once
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/base/status.h"
#include "router/text/chat_template/ast.h"

namespace winnow {

// Turns chat messages into the prompt of a model: its Jinja chat template, rendered as Hugging Face transformers does
// (trim_blocks, lstrip_blocks, loop controls, its tojson, raise_exception and strftime_now). Const and thread-safe.
//
// Text of special tokens inside a message stays as it is, and the tokenizer then reads it as special tokens: the same
// as in transformers.
class ChatTemplate {
 public:
  struct Options {
    bool add_generation_prompt = true;
    // An object of further variables: tools, documents, enable_thinking ... (the order of members is kept). tools and
    // documents are none when absent.
    nlohmann::ordered_json variables = nlohmann::ordered_json::object();
    // What strftime_now shows; the present when absent.
    std::optional<std::time_t> now;
  };

  // Reads chat_template.jinja, else `chat_template` of tokenizer_config.json, of a model's directory; bos_token and the
  // like come from tokenizer_config.json. ChatML when neither file has a template. Errors name the file.
  static absl::StatusOr<ChatTemplate> Load(const std::string& model_dir);
  // From the text of a tokenizer_config.json; `name` stands for it in errors.
  static absl::StatusOr<ChatTemplate> FromConfig(std::string_view tokenizer_config, std::string_view name);
  // One template without special tokens.
  static absl::StatusOr<ChatTemplate> FromSource(std::string_view source, std::string_view name);
  // <|im_start|>{role}\n{content}<|im_end|>\n for each message, then <|im_start|>assistant\n.
  static ChatTemplate ChatMl();

  // `messages`: an array of objects with role and content. InvalidArgument names the template, the line and what is
  // wrong, raise_exception's message included; ResourceExhausted when the template exceeds its limits.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& messages, const Options& options) const;

  // Whether any of the templates has this word, so that a variable of that name may have an effect.
  bool Mentions(std::string_view word) const;
  // The text of all templates, one behind the other.
  const std::string& Sources() const { return sources_; }

 private:
  struct Parsed {
    std::string name;  // of the template, for errors
    std::string key;   // "default", "tool_use" ...
    chat_template::Body body;
  };

  absl::Status Add(std::string_view source, std::string name, std::string key);
  absl::Status ReadConfig(std::string_view tokenizer_config, std::string_view name, bool with_templates);
  // "tool_use" when there are tools and such a template, else "default" or the first.
  const Parsed& Choose(const Options& options) const;

  std::vector<std::shared_ptr<const Parsed>> templates_;  // not empty
  std::string sources_;
  std::vector<std::pair<std::string, std::string>> variables_;  // bos_token, eos_token ...
};

}  // namespace winnow
