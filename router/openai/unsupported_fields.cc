#include "router/openai/unsupported_fields.h"

#include <algorithm>
#include <span>
#include <vector>

#include "router/openai/api_error.h"

namespace winnow {
namespace {

struct Field {
  const char* name;
  std::vector<Json> off;  // null always is
};

const std::vector<Field>& CommonFields() {
  static const std::vector<Field> fields = {
      {"echo", {false}},
      {"use_beam_search", {false}},
      {"length_penalty", {1.0}},
      {"min_tokens", {0}},
      {"bad_words", {Json::array()}},
      {"allowed_token_ids", {}},
      {"prompt_logprobs", {}},
      {"truncate_prompt_tokens", {}},
      {"skip_special_tokens", {true}},
      {"include_stop_str_in_output", {false}},
      {"return_tokens_as_token_ids", {false}},
      {"logits_processors", {Json::array()}},
      {"response_format", {Json::object({{"type", "text"}})}},
      {"guided_json", {}},
      {"guided_regex", {}},
      {"guided_choice", {}},
      {"guided_grammar", {}},
      {"structured_outputs", {}},
  };
  return fields;
}

const std::vector<Field>& CompletionFields() {
  static const std::vector<Field> fields = {{"suffix", {""}}, {"prompt_embeds", {}}};
  return fields;
}

const std::vector<Field>& ChatFields() {
  static const std::vector<Field> fields = {
      {"tools", {Json::array()}},
      {"tool_choice", {"none", "auto"}},
      {"functions", {Json::array()}},
      {"function_call", {"none", "auto"}},
      {"modalities", {Json::array({"text"})}},
      {"audio", {}},
      {"prediction", {}},
      {"web_search_options", {}},
      {"reasoning_effort", {}},
      {"verbosity", {}},
      {"continue_final_message", {false}},
      {"chat_template", {}},
      {"documents", {Json::array()}},
      {"mm_processor_kwargs", {}},
  };
  return fields;
}

absl::Status Refuse(const Json& body, const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    const auto it = body.find(field.name);
    if (it == body.end() || it->is_null() || std::count(field.off.begin(), field.off.end(), *it) > 0) continue;
    return InvalidField(field.name, absl::StrCat("\"", field.name, "\" is not supported by this server."),
                        "unsupported_parameter");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseUnsupportedFields(const Json& body, Endpoint endpoint) {
  WINNOW_RETURN_IF_ERROR(Refuse(body, CommonFields()));
  return Refuse(body, endpoint == Endpoint::kCompletions ? CompletionFields() : ChatFields());
}

}  // namespace winnow
