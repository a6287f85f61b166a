#include "router/openai/chat_request.h"

#include <limits>

#include "router/openai/api_error.h"
#include "router/openai/chat_messages.h"

namespace winnow {

absl::StatusOr<GenerationRequest> ParseChatRequest(const Json& body, const ServedModel& model, const TextCodec& codec) {
  GenerationRequest request;
  request.endpoint = Endpoint::kChatCompletions;
  WINNOW_ASSIGN_OR_RETURN(request.fields, ParseCommonFields(body, model, Endpoint::kChatCompletions));

  JsonReader reader(body);
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  std::optional<int64_t> max_tokens = reader.Int("max_tokens", 1, kMax);
  const char* limit_name = "max_tokens";
  if (const auto newer = reader.Int("max_completion_tokens", 1, kMax)) {
    max_tokens = newer;
    limit_name = "max_completion_tokens";
  }
  const bool logprobs = reader.Bool("logprobs").value_or(false);
  const std::optional<int64_t> top = reader.Int("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !logprobs) reader.Fail("top_logprobs", "needs \"logprobs\" to be true.");
  if (logprobs) request.top_logprobs = static_cast<uint32_t>(top.value_or(0));
  WINNOW_RETURN_IF_ERROR(reader.status());

  GenerationRequest::Prompt prompt;
  WINNOW_ASSIGN_OR_RETURN(prompt.token_ids, EncodeConversation(body, &model, codec));
  WINNOW_ASSIGN_OR_RETURN(prompt.max_tokens, ResolveMaxTokens(prompt.token_ids.size(), max_tokens, limit_name,
                                                              std::numeric_limits<uint32_t>::max(),
                                                              request.fields.selection, model, "messages"));
  request.prompts.push_back(std::move(prompt));
  return request;
}

}  // namespace winnow
