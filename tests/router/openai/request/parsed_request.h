#pragma once
#include <string>
#include <string_view>

#include "router/openai/request/chat_request.h"
#include "router/openai/request/completion_request.h"
#include "tests/router/openai/fake_text_codec.h"

// Requests of a small model, parsed for the tests of this folder.
namespace winnow {

inline ServedModel TestModel() {
  return {.id = "org/tiny",
          .max_context_tokens = 100,
          .vocab_size = FakeTextCodec::kVocabSize,
          .max_budget_tokens = 4096,
          .default_selection = {}};
}

inline absl::StatusOr<GenerationRequest> ParseCompletion(std::string_view text) {
  WINNOW_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(text));
  return ParseCompletionRequest(body, TestModel(), FakeTextCodec());
}

inline absl::StatusOr<GenerationRequest> ParseChat(std::string_view text) {
  WINNOW_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(text));
  return ParseChatRequest(body, TestModel(), FakeTextCodec());
}

// A completions body with one more field.
inline std::string With(const std::string& fields) {
  return R"({"prompt": "hi", )" + fields + "}";
}

inline std::string ChatWith(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}";
}

// A chat of a model that writes Hermes' calls and thinks.
inline absl::StatusOr<GenerationRequest> ParseToolChat(const std::string& fields, const FakeTextCodec& codec = {}) {
  ServedModel model = TestModel();
  model.max_context_tokens = 1000;
  model.chat_formats = {.tools = ToolFormat::kHermes, .reasoning = ReasoningFormat::kThink};
  WINNOW_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(ChatWith(fields)));
  return ParseChatRequest(body, model, codec);
}

inline std::string PromptOf(const absl::StatusOr<GenerationRequest>& request) {
  return request.ok() ? FakeTextCodec().Decode(request->prompts[0].token_ids, false) : request.status().ToString();
}

}  // namespace winnow
