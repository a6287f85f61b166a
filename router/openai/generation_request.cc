#include "router/openai/generation_request.h"

#include <algorithm>

#include "router/generation/answer_length.h"
#include "router/openai/api_error.h"

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

absl::StatusOr<uint32_t> ResolveMaxTokens(size_t prompt_tokens, std::optional<int64_t> given,
                                          std::string_view given_name, uint32_t fallback,
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
  if (!given) return std::min(fallback, DefaultMaxTokens(prompt_tokens, selection, model));
  const size_t left = context - prompt_tokens;
  if (static_cast<uint64_t>(*given) > left) {
    return InvalidField(given_name,
                        absl::StrCat("This model's maximum context length is ", context, " tokens, but the prompt has ",
                                     prompt_tokens, " and \"", AbslSv(given_name), "\" asks for ", *given, " more (",
                                     prompt_tokens + *given, " in all); at most ", left, " can be generated."),
                        "context_length_exceeded");
  }
  return static_cast<uint32_t>(*given);
}

}  // namespace winnow
