#pragma once
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "router/generation/text_codec.h"
#include "router/openai/json/utf8_scan.h"

namespace winnow {

// A tokenizer simple enough to compute by eye: each byte is its own id, 256 is "<s>" (the special token that encoding
// adds), 257 is "lo", 258 "<tool_call>". A conversation becomes "role:content;" per message, with "assistant:" at its
// end.
class FakeTextCodec : public TextCodec {
 public:
  static constexpr uint32_t kBos = 256;
  static constexpr uint32_t kVocabSize = 300;

  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text, bool add_special_tokens) const override {
    if (!IsUtf8(text)) return absl::InvalidArgumentError("the text is not UTF-8");
    std::vector<uint32_t> ids;
    if (add_special_tokens) ids.push_back(kBos);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  absl::StatusOr<std::vector<uint32_t>> EncodeAtMost(size_t max_tokens, std::string_view text,
                                                     bool add_special_tokens) const override {
    if (text.size() > 10 * max_tokens) return absl::OutOfRangeError("far too long");
    return Encode(text, add_special_tokens);
  }

  std::string Decode(const std::vector<uint32_t>& ids, bool skip_special_tokens) const override {
    std::string text;
    for (const uint32_t id : ids) {
      if (id != kBos || !skip_special_tokens) text += TokenText(id);
    }
    return text;
  }

  std::string TokenText(uint32_t id) const override {
    if (id < 256) return std::string(1, static_cast<char>(id));
    return id == kBos ? "<s>" : id == 257 ? "lo" : id == 258 ? "<tool_call>" : "";
  }

  absl::StatusOr<std::string> RenderChat(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                                         const nlohmann::ordered_json& variables) const override {
    if (variables.contains("refuse")) return absl::InvalidArgumentError("the template refuses");
    std::string text = variables.empty() ? "" : variables.dump() + ";";
    for (const auto& message : messages) {
      const auto& content = message.at("content");
      text += message.at("role").get<std::string>() + ":" + (content.is_null() ? "" : content.get<std::string>());
      if (message.contains("tool_calls")) text += message.at("tool_calls").dump();
      text += ";";
    }
    return add_generation_prompt ? text + "assistant:" + opening : text;
  }

  bool TemplateReads(std::string_view variable) const override { return read_variables.contains(variable); }

  std::optional<uint32_t> TokenId(std::string_view token) const override {
    for (uint32_t id = 256; id < kVocabSize; ++id) {
      if (TokenText(id) == token) return id;
    }
    return std::nullopt;
  }

  std::set<std::string, std::less<>> read_variables = {"tools", "enable_thinking", "reasoning_effort"};
  std::string opening;  // what the template writes of the answer
};

}  // namespace winnow
