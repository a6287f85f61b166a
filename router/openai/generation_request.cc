#include "router/openai/generation_request.h"

#include <algorithm>
#include <limits>

#include "router/answer_length.h"
#include "router/openai/api_error.h"

namespace winnow {

TokenLimit ReadTokenLimit(JsonReader& reader) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  TokenLimit limit{.tokens = reader.Int("max_tokens", 1, kMax)};
  if (const auto newer = reader.Int("max_completion_tokens", 1, kMax)) {
    limit = {.tokens = newer, .field = "max_completion_tokens"};
  }
  return limit;
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
