#include "router/generation/request_checks.h"

#include <cmath>

#include "router/generation/answer_length.h"
#include "router/generation/request_error.h"

namespace winnow {
namespace {

absl::Status FieldError(std::string_view field, const std::string& what) {
  return InvalidField(field, absl::StrCat(AbslSv(field), ": ", what));
}

// NaN is in no range.
absl::Status CheckRange(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return FieldError(field, absl::StrCat("must be between ", low, " and ", high, ", got ", value));
}

absl::Status CheckTokenId(std::string_view field, uint32_t id, const ServedModel& model) {
  if (id < model.vocab_size) return absl::OkStatus();
  return FieldError(field, absl::StrCat("token id ", id, " is not in the vocabulary of ", model.vocab_size));
}

}  // namespace

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() <= RequestLimits::kRequestIdBytes) return absl::OkStatus();
  return FieldError("request_id", absl::StrCat("is longer than ", RequestLimits::kRequestIdBytes, " bytes"));
}

absl::Status CheckModelName(const std::optional<std::string>& name, const ServedModel& model) {
  if (!name || model.HasName(*name)) return absl::OkStatus();
  return WithField(
      absl::NotFoundError(absl::StrCat("model: \"", *name, "\" does not exist; this server has ", model.QuotedNames())),
      "model", "model_not_found");
}

absl::Status CheckSampling(const v1::SamplingParams& s, const ServedModel& model) {
  if (s.has_temperature()) WINNOW_RETURN_IF_ERROR(CheckRange("temperature", s.temperature(), 0, 2));
  if (s.has_top_p() && !(s.top_p() > 0 && s.top_p() <= 1)) {
    return FieldError("top_p", absl::StrCat("must be above 0 and at most 1, got ", s.top_p()));
  }
  if (s.has_min_p()) WINNOW_RETURN_IF_ERROR(CheckRange("min_p", s.min_p(), 0, 1));
  if (s.has_presence_penalty()) {
    WINNOW_RETURN_IF_ERROR(CheckRange("presence_penalty", s.presence_penalty(), -2, 2));
  }
  if (s.has_frequency_penalty()) {
    WINNOW_RETURN_IF_ERROR(CheckRange("frequency_penalty", s.frequency_penalty(), -2, 2));
  }
  if (s.has_repetition_penalty() && !(s.repetition_penalty() > 0 && std::isfinite(s.repetition_penalty()))) {
    return FieldError("repetition_penalty", absl::StrCat("must be above 0 and finite, got ", s.repetition_penalty()));
  }
  if (static_cast<size_t>(s.logit_bias_size()) > RequestLimits::kLogitBiases) {
    return FieldError("logit_bias",
                      absl::StrCat("has ", s.logit_bias_size(), " entries, at most ", RequestLimits::kLogitBiases));
  }
  for (const v1::LogitBias& bias : s.logit_bias()) {
    WINNOW_RETURN_IF_ERROR(CheckTokenId("logit_bias", bias.token_id(), model));
    WINNOW_RETURN_IF_ERROR(CheckRange("logit_bias", bias.bias(), -100, 100));
  }
  for (const uint32_t id : s.allowed_token_ids()) {
    WINNOW_RETURN_IF_ERROR(CheckTokenId("allowed_token_ids", id, model));
  }
  if (static_cast<size_t>(s.bad_words_size()) > RequestLimits::kBadWords) {
    return FieldError("bad_words",
                      absl::StrCat("has ", s.bad_words_size(), " entries, at most ", RequestLimits::kBadWords));
  }
  for (const v1::TokenSequence& word : s.bad_words()) {
    if (word.token_ids().empty()) return FieldError("bad_words", "holds an empty sequence");
    for (const uint32_t id : word.token_ids()) WINNOW_RETURN_IF_ERROR(CheckTokenId("bad_words", id, model));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> LimitMaxTokens(std::optional<uint32_t> max_tokens, size_t prompt_tokens,
                                        const SelectionSpec& selection, const ServedModel& model) {
  if (prompt_tokens == 0) return FieldError("prompt", "is empty");
  if (prompt_tokens >= model.max_context_tokens) {
    return FieldError("prompt", absl::StrCat("has ", prompt_tokens, " tokens; the model's context holds ",
                                             model.max_context_tokens, ", of which at least one is for the output"));
  }
  if (max_tokens && *max_tokens == 0) return FieldError("max_tokens", "must be at least 1");
  const uint32_t left = model.max_context_tokens - static_cast<uint32_t>(prompt_tokens);
  if (max_tokens && *max_tokens > left) {
    return FieldError("max_tokens",
                      absl::StrCat("is ", *max_tokens, ", but with a prompt of ", prompt_tokens, " tokens only ", left,
                                   " are left of the model's context of ", model.max_context_tokens));
  }
  return max_tokens.has_value() ? *max_tokens : DefaultMaxTokens(prompt_tokens, selection, model);
}

absl::Status CheckGenerationInput(const GenerationInput& input, const ServedModel& model) {
  WINNOW_RETURN_IF_ERROR(CheckRequestId(input.request_id));
  WINNOW_RETURN_IF_ERROR(
      LimitMaxTokens(input.max_tokens, input.prompt_token_ids.size(), input.selection, model).status());
  for (const uint32_t id : input.prompt_token_ids) WINNOW_RETURN_IF_ERROR(CheckTokenId("prompt", id, model));
  WINNOW_RETURN_IF_ERROR(CheckRange("n", input.n, 1, RequestLimits::kSamples));
  if (input.n > model.max_queue) {
    return FieldError("n", absl::StrCat("is ", input.n, ", but this server has room for ", model.max_queue,
                                        " samples of all requests together (--max-queue)"));
  }
  WINNOW_RETURN_IF_ERROR(CheckSampling(input.sampling, model));
  WINNOW_RETURN_IF_ERROR(CheckRange("min_tokens", input.sampling.min_tokens(), 0, input.max_tokens));
  WINNOW_RETURN_IF_ERROR(CheckRange("priority", input.priority, -RequestLimits::kPriority, RequestLimits::kPriority));
  if (input.stop.size() > RequestLimits::kStopStrings) {
    return FieldError("stop",
                      absl::StrCat("has ", input.stop.size(), " strings, at most ", RequestLimits::kStopStrings));
  }
  for (const std::string& stop : input.stop) {
    WINNOW_RETURN_IF_ERROR(CheckRange("stop", stop.size(), 1, RequestLimits::kStopStringBytes));
  }
  if (input.stop_token_ids.size() > RequestLimits::kStopTokenIds) {
    return FieldError("stop_token_ids", absl::StrCat("has ", input.stop_token_ids.size(), " ids, at most ",
                                                     RequestLimits::kStopTokenIds));
  }
  for (const uint32_t id : input.stop_token_ids) WINNOW_RETURN_IF_ERROR(CheckTokenId("stop_token_ids", id, model));
  if (input.trace_parts > 0) {
    WINNOW_RETURN_IF_ERROR(
        CheckRange("trace_parts", input.trace_parts, RequestLimits::kFewestTraceParts, RequestLimits::kMostTraceParts));
  }
  if (input.top_logprobs)
    WINNOW_RETURN_IF_ERROR(CheckRange("top_logprobs", *input.top_logprobs, 0, RequestLimits::kTopLogprobs));
  return absl::OkStatus();
}

}  // namespace winnow
