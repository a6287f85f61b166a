#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "common/selection/validate.h"
#include "router/openai/json/api_error.h"
#include "router/openai/request/chat_request.h"
#include "router/openai/request/completion_request.h"
#include "router/openai/request/responses_request.h"
#include "router/openai/tokenize.h"
#include "tests/router/openai/fake_text_codec.h"

// Any body either becomes a request that keeps every promise of GenerationRequest, or a client error whose JSON is
// well-formed. The first byte picks the endpoint. Useful seeds and words: tests/fuzz/openai/json.dict.

namespace winnow {
namespace {

const ServedModel& Model() {
  static const ServedModel model{.id = "m",
                                 .max_context_tokens = 64,
                                 .vocab_size = FakeTextCodec::kVocabSize,
                                 .max_budget_tokens = 4096,
                                 .default_selection = {}};
  return model;
}

void CheckError(const absl::Status& status) {
  const ApiError error = ToApiError(status);
  WINNOW_CHECK(error.http_status == 400 || error.http_status == 404);
  WINNOW_CHECK(!error.message.empty());
  WINNOW_CHECK(Json::parse(ErrorJson(error)).at("error").at("message").is_string());
}

void CheckRequest(const GenerationRequest& request) {
  const CommonFields& fields = request.fields;
  WINNOW_CHECK(!request.prompts.empty());
  WINNOW_CHECK(fields.n >= 1 && request.prompts.size() * fields.n <= kMaxChoices);
  WINNOW_CHECK(fields.stop.size() <= kMaxStopStrings);
  WINNOW_CHECK(request.top_logprobs.value_or(0) <= kMaxTopLogprobs);
  WINNOW_CHECK(ValidateSelection(fields.selection).ok());
  for (const GenerationRequest::Prompt& prompt : request.prompts) {
    WINNOW_CHECK(!prompt.token_ids.empty() && prompt.max_tokens >= 1);
    WINNOW_CHECK(prompt.token_ids.size() + prompt.max_tokens <= Model().max_context_tokens);
    for (const uint32_t id : prompt.token_ids) WINNOW_CHECK(id < Model().vocab_size);
  }
  const v1::SamplingParams& sampling = fields.sampling;
  WINNOW_CHECK(!sampling.has_temperature() || (sampling.temperature() >= 0 && sampling.temperature() <= 2));
  WINNOW_CHECK(!sampling.has_top_p() || (sampling.top_p() > 0 && sampling.top_p() <= 1));
  WINNOW_CHECK(!sampling.has_repetition_penalty() || sampling.repetition_penalty() > 0);
  for (const v1::LogitBias& bias : sampling.logit_bias()) WINNOW_CHECK(bias.token_id() < Model().vocab_size);
}

absl::StatusOr<GenerationRequest> Parse(uint8_t endpoint, const Json& body, const TextCodec& codec) {
  if (endpoint == 0) return ParseCompletionRequest(body, Model(), codec);
  return endpoint == 1 ? ParseChatRequest(body, Model(), codec) : ParseResponsesRequest(body, Model(), codec);
}

void CheckBody(uint8_t endpoint, std::string_view text) {
  const FakeTextCodec codec;
  const absl::StatusOr<Json> body = ParseJsonObject(text);
  if (!body.ok()) return CheckError(body.status());
  if (endpoint >= 3) {
    const auto answer = endpoint == 3 ? TokenizeJson(*body, Model(), codec) : DetokenizeJson(*body, Model(), codec);
    if (!answer.ok()) return CheckError(answer.status());
    WINNOW_CHECK(Json::parse(*answer).is_object());
    return;
  }
  const auto request = Parse(endpoint, *body, codec);
  request.ok() ? CheckRequest(*request) : CheckError(request.status());
}

}  // namespace
}  // namespace winnow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  winnow::CheckBody(data[0] % 5, std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
