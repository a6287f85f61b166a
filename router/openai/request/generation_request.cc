#include "router/openai/request/generation_request.h"

#include <algorithm>
#include <limits>

#include "router/generation/answer_length.h"
#include "router/openai/json/api_error.h"

namespace winnow {

absl::StatusOr<std::vector<uint32_t>> CheckedPrompt(absl::StatusOr<std::vector<uint32_t>> encoded,
                                                    const ServedModel& model, std::string_view name) {
  if (encoded.ok()) return encoded;
  if (!absl::IsOutOfRange(encoded.status())) return InvalidField(name, StdSv(encoded.status().message()));
  return InvalidField(name,
                      absl::StrCat("This model's maximum context length is ", model.max_context_tokens,
                                   " tokens, but the prompt has more."),
                      "context_length_exceeded");
}

TokenLimit ReadTokenLimit(JsonReader& reader, int64_t lowest) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  TokenLimit limit{.tokens = reader.Int("max_tokens", lowest, kMax)};
  if (const auto newer = reader.Int("max_completion_tokens", lowest, kMax)) {
    limit = {.tokens = newer, .field = "max_completion_tokens"};
  }
  return limit;
}

std::optional<uint32_t> ReadPromptLogprobs(JsonReader& reader, bool stream) {
  const auto top = reader.Int("prompt_logprobs", 0, kMaxTopLogprobs);
  if (!top) return std::nullopt;
  if (stream) reader.Fail("prompt_logprobs", "is not told in a stream; \"echo\" with \"logprobs\" is.");
  return static_cast<uint32_t>(*top);
}

const ServedModel* PromptBound(const Json& body, const ServedModel& model) {
  return JsonReader(body).Find("truncate_prompt_tokens") == nullptr ? &model : nullptr;
}

absl::Status TruncatePrompt(JsonReader& reader, const TokenLimit& limit, const ServedModel& model,
                            std::vector<uint32_t>* token_ids) {
  const auto given = reader.Int("truncate_prompt_tokens", -1, std::numeric_limits<int32_t>::max());
  if (given == 0) reader.Fail("truncate_prompt_tokens", "must be -1 or a positive number of tokens.");
  WINNOW_RETURN_IF_ERROR(reader.status());
  if (!given) return absl::OkStatus();
  const int64_t room = int64_t{model.max_context_tokens} - limit.tokens.value_or(1);
  const auto keep = static_cast<size_t>(*given < 0 ? std::max<int64_t>(room, 1) : *given);
  if (token_ids->size() > keep) token_ids->erase(token_ids->begin(), token_ids->end() - static_cast<ptrdiff_t>(keep));
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ResolveMaxTokens(size_t prompt_tokens, const TokenLimit& given, uint32_t fallback,
                                          const SelectionSpec& selection, const ServedModel& model,
                                          std::string_view prompt_name) {
  if (prompt_tokens == 0) {
    return InvalidField(prompt_name,
                        absl::StrCat("\"", AbslSv(prompt_name), "\" has no tokens; at least one is needed."));
  }
  const size_t context = model.max_context_tokens;
  if (prompt_tokens >= context) {
    return InvalidField(prompt_name,
                        absl::StrCat("This model's maximum context length is ", context, " tokens, but the prompt has ",
                                     prompt_tokens, " tokens, which leaves no room for an answer."),
                        "context_length_exceeded");
  }
  if (!given.tokens) return std::min(fallback, DefaultMaxTokens(prompt_tokens, selection, model));
  const size_t left = context - prompt_tokens;
  if (static_cast<uint64_t>(*given.tokens) > left) {
    return InvalidField(given.field,
                        absl::StrCat("This model's maximum context length is ", context, " tokens, but the prompt has ",
                                     prompt_tokens, " and \"", given.field, "\" asks for ", *given.tokens, " more (",
                                     prompt_tokens + *given.tokens, " in all); at most ", left, " can be generated."),
                        "context_length_exceeded");
  }
  return static_cast<uint32_t>(*given.tokens);
}

}  // namespace winnow
