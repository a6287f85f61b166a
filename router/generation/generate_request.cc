#include "router/generation/generate_request.h"

#include "common/base/json.h"
#include "router/constraint/answer_grammar.h"
#include "router/generation/bad_words.h"
#include "router/generation/request_checks.h"
#include "router/generation/request_error.h"
#include "router/generation/selection_options.h"

namespace winnow {
namespace {

template <typename T>
std::optional<T> Optional(bool has, const T& value) {
  return has ? std::optional<T>(value) : std::nullopt;
}

// Ids of a prompt in the field `name`, within what the model's context holds.
absl::StatusOr<std::vector<uint32_t>> EncodePrompt(std::string_view name, std::string_view text,
                                                   bool add_special_tokens, const ServedModel& model,
                                                   const TextCodec& codec) {
  absl::StatusOr<std::vector<uint32_t>> ids = codec.EncodeAtMost(model.max_context_tokens, text, add_special_tokens);
  if (ids.ok()) return ids;
  if (!absl::IsOutOfRange(ids.status())) return AnnotateField(ids.status(), name);
  return InvalidField(name,
                      absl::StrCat(AbslSv(name), ": has more than the ", model.max_context_tokens,
                                   " tokens that the model's context holds"),
                      "context_length_exceeded");
}

absl::StatusOr<std::vector<uint32_t>> EncodeMessages(const v1::Messages& messages, const ServedModel& model,
                                                     const TextCodec& codec) {
  if (messages.messages().empty()) return InvalidField("messages", "messages: is empty");
  auto conversation = nlohmann::ordered_json::array();
  for (const v1::Message& message : messages.messages()) {
    conversation.push_back({{"role", message.role()}, {"content", message.content()}});
  }
  const absl::StatusOr<std::string> text =
      codec.RenderChat(conversation, /*add_generation_prompt=*/true, nlohmann::ordered_json::object());
  if (!text.ok()) return AnnotateField(text.status(), "messages");
  return EncodePrompt("messages", *text, /*add_special_tokens=*/false, model, codec);  // templates write them
}

absl::StatusOr<std::vector<uint32_t>> EncodeInput(const v1::GenerateRequest& request, const ServedModel& model,
                                                  const TextCodec& codec) {
  switch (request.input_case()) {
    case v1::GenerateRequest::kText:
      return EncodePrompt("text", request.text(), /*add_special_tokens=*/true, model, codec);
    case v1::GenerateRequest::kTokenIds:
      return std::vector<uint32_t>(request.token_ids().ids().begin(), request.token_ids().ids().end());
    case v1::GenerateRequest::kMessages:
      return EncodeMessages(request.messages(), model, codec);
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return InvalidField("input", "input: one of text, token_ids and messages must be set");
}

absl::Status ReadConstraint(const v1::GenerateRequest& request, v1::SamplingParams* sampling) {
  if (sampling->has_constraint()) {
    return InvalidField("sampling.constraint", "sampling.constraint: is made by the router of structured_output");
  }
  if (!request.has_structured_output()) return absl::OkStatus();
  AnswerGrammar answer;
  const absl::Status added = answer.Add(request.structured_output());
  const absl::StatusOr<std::string> grammar = added.ok() ? answer.Finish({}) : added;
  if (!grammar.ok()) return AnnotateField(grammar.status(), "structured_output");
  sampling->mutable_constraint()->set_grammar(*grammar);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationInput> ParseGenerateRequest(const v1::GenerateRequest& request, const ServedModel& model,
                                                     const TextCodec& codec) {
  WINNOW_RETURN_IF_ERROR(CheckModelName(Optional(request.has_model(), request.model()), model));
  GenerationInput input;
  input.request_id = request.request_id();
  input.n = request.has_n() ? request.n() : 1;
  input.sampling = request.sampling();
  input.stop.assign(request.stop().begin(), request.stop().end());
  input.stop_token_ids.assign(request.stop_token_ids().begin(), request.stop_token_ids().end());
  input.ignore_eos = request.ignore_eos();
  input.top_logprobs = Optional(request.has_top_logprobs(), request.top_logprobs());
  input.priority = request.priority();
  input.trace_parts = request.trace_parts();
  input.prompt_progress = request.prompt_progress();
  input.resumable = request.resumable();
  WINNOW_ASSIGN_OR_RETURN(input.selection, SelectionOf(request.selection(), model));
  WINNOW_ASSIGN_OR_RETURN(input.prompt_token_ids, EncodeInput(request, model, codec));
  WINNOW_ASSIGN_OR_RETURN(input.max_tokens, LimitMaxTokens(Optional(request.has_max_tokens(), request.max_tokens()),
                                                           input.prompt_token_ids.size(), input.selection, model));
  WINNOW_RETURN_IF_ERROR(ReadConstraint(request, &input.sampling));
  const std::vector<std::string> bad_words(request.bad_words().begin(), request.bad_words().end());
  if (const absl::Status added = AddBadWords(bad_words, codec, &input.sampling); !added.ok()) {
    return AnnotateField(added, "bad_words");
  }
  WINNOW_RETURN_IF_ERROR(CheckGenerationInput(input, model));
  return input;
}

}  // namespace winnow
