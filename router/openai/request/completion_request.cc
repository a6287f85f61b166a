#include "router/openai/request/completion_request.h"

#include "router/constraint/answer_grammar.h"
#include "router/openai/json/api_error.h"
#include "router/openai/request/constraint_fields.h"

namespace winnow {
namespace {

absl::Status PromptTypeError() {
  return InvalidField(
      "prompt", "\"prompt\" must be a string, a list of strings, a list of token ids or a list of lists of token ids.",
      "invalid_type");
}

absl::StatusOr<std::vector<uint32_t>> EncodePrompt(const Json& text, bool add_special_tokens, bool bounded,
                                                   const ServedModel& model, const TextCodec& codec) {
  const auto& string = text.get_ref<const std::string&>();
  return CheckedPrompt(bounded ? codec.EncodeAtMost(model.max_context_tokens, string, add_special_tokens)
                               : codec.Encode(string, add_special_tokens),
                       model, "prompt");
}

absl::StatusOr<std::vector<std::vector<uint32_t>>> ParsePrompts(const Json& prompt, bool add_special_tokens,
                                                                bool bounded, size_t n, const ServedModel& model,
                                                                const TextCodec& codec) {
  std::vector<std::vector<uint32_t>> prompts(1);
  if (prompt.is_string()) {
    WINNOW_ASSIGN_OR_RETURN(prompts[0], EncodePrompt(prompt, add_special_tokens, bounded, model, codec));
    return prompts;
  }
  if (!prompt.is_array()) return PromptTypeError();
  if (prompt.empty()) return InvalidField("prompt", "\"prompt\" must not be an empty list.");
  if (prompt.front().is_number()) {
    WINNOW_ASSIGN_OR_RETURN(prompts[0], ParseTokenIds(prompt, "prompt", model.vocab_size));
    return prompts;
  }
  // Checked before any text is tokenized.
  if (prompt.size() * n > kMaxChoices) {
    return InvalidField("prompt", absl::StrCat(prompt.size(), " prompts with ", n, " answers each are more than the ",
                                               kMaxChoices, " choices that one request may ask for."));
  }
  if (prompt.size() * n > model.max_queue) {
    return InvalidField("prompt", absl::StrCat(prompt.size(), " prompts with ", n,
                                               " answers each are more than this server has room for, which is ",
                                               model.max_queue, " samples of all requests together (--max-queue)."));
  }
  prompts.clear();
  const bool texts = prompt.front().is_string();
  for (const Json& item : prompt) {
    if (texts ? !item.is_string() : !item.is_array()) return PromptTypeError();
    if (texts) {
      WINNOW_ASSIGN_OR_RETURN(prompts.emplace_back(), EncodePrompt(item, add_special_tokens, bounded, model, codec));
    } else {
      WINNOW_ASSIGN_OR_RETURN(prompts.emplace_back(),
                              ParseTokenIds(item, absl::StrCat("prompt[", prompts.size(), "]"), model.vocab_size));
    }
  }
  return prompts;
}

absl::Status ConstrainAnswers(const Json& body, GenerationRequest* request) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<ConstraintFields> fields, ReadConstraintFields(body));
  if (!fields.has_value()) return absl::OkStatus();
  AnswerGrammar answer;
  const absl::Status added = answer.Add(fields->output);
  const absl::StatusOr<std::string> grammar = added.ok() ? answer.Finish({}) : added;
  if (!grammar.ok()) {
    return InvalidField(fields->field, absl::StrCat("\"", fields->field, "\": ", grammar.status().message(), "."));
  }
  request->fields.sampling.mutable_constraint()->set_grammar(*grammar);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationRequest> ParseCompletionRequest(const Json& body, const ServedModel& model,
                                                         const TextCodec& codec) {
  GenerationRequest request;
  request.endpoint = Endpoint::kCompletions;
  WINNOW_ASSIGN_OR_RETURN(request.fields, ParseCommonFields(body, model, codec, Endpoint::kCompletions));

  JsonReader reader(body);
  const bool echo = reader.Bool("echo").value_or(false);
  TokenLimit max_tokens = ReadTokenLimit(reader, /*lowest=*/echo ? 0 : 1);
  if (max_tokens.tokens == 0) {
    request.drops_answer = true;
    max_tokens.tokens = 1;
  }
  if (const auto top = reader.Int("logprobs", 0, kMaxTopLogprobs)) request.top_logprobs = static_cast<uint32_t>(*top);
  request.echoes_logprobs = echo && request.top_logprobs;
  if (request.echoes_logprobs && request.fields.stream && request.fields.n > 1) {
    reader.Fail("echo", "with \"logprobs\" in a stream allows one answer for each prompt, \"n\" 1.");
  }
  request.prompt_logprobs = ReadPromptLogprobs(reader, request.fields.stream);
  const bool add_special_tokens = reader.Bool("add_special_tokens").value_or(true);
  WINNOW_RETURN_IF_ERROR(reader.status());

  WINNOW_RETURN_IF_ERROR(ConstrainAnswers(body, &request));
  const Json* prompt = reader.Find("prompt");
  if (prompt == nullptr) return InvalidField("prompt", "\"prompt\" is missing.", "missing_required_parameter");
  WINNOW_ASSIGN_OR_RETURN(
      std::vector<std::vector<uint32_t>> prompts,
      ParsePrompts(*prompt, add_special_tokens, PromptBound(body, model) != nullptr, request.fields.n, model, codec));
  if (request.fields.resumable && prompts.size() > 1) {
    return InvalidField("winnow.resumable",
                        absl::StrCat("\"winnow.resumable\" is for one prompt, and there are ", prompts.size(), "."));
  }
  for (std::vector<uint32_t>& token_ids : prompts) {
    WINNOW_RETURN_IF_ERROR(TruncatePrompt(reader, max_tokens, model, &token_ids));
    WINNOW_ASSIGN_OR_RETURN(const uint32_t limit,
                            ResolveMaxTokens(token_ids.size(), max_tokens, kDefaultCompletionTokens,
                                             request.fields.selection, model, "prompt"));
    WINNOW_RETURN_IF_ERROR(CheckMinTokens(request.fields.sampling, limit));
    request.prompts.push_back({.token_ids = std::move(token_ids), .max_tokens = limit});
    GenerationRequest::Prompt& added = request.prompts.back();
    if (echo) added.echo = codec.Decode(added.token_ids, request.fields.skip_special_tokens);
  }
  return request;
}

}  // namespace winnow
