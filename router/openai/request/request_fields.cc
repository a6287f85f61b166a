#include "router/openai/request/request_fields.h"

#include <algorithm>

#include "common/base/nearest_name.h"
#include "router/openai/json/api_error.h"

namespace winnow {
namespace {

using enum Endpoint;
using enum FieldUse;

constexpr size_t kShownNameBytes = 64;  // of a name that a client made up

std::vector<RequestField> MakeFields() {
  const std::vector<Endpoint> completions = {kCompletions};
  const std::vector<Endpoint> chat = {kChatCompletions};
  const std::vector<Endpoint> responses = {kResponses};
  const std::vector<Endpoint> generation = {kCompletions, kChatCompletions};
  const std::vector<Endpoint> templates = {kChatCompletions, kTokenize};
  const std::vector<Endpoint> prompts = {kCompletions, kChatCompletions, kTokenize};
  const std::vector<Endpoint> all = {kCompletions, kChatCompletions, kTokenize, kDetokenize};

  std::vector<RequestField> fields;
  const auto served = [&](const std::vector<Endpoint>& endpoints, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) fields.push_back({.name = name, .use = kServed, .endpoints = endpoints});
  };
  const auto no_effect = [&](const std::vector<Endpoint>& endpoints, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names)
      fields.push_back({.name = name, .use = kNoEffect, .endpoints = endpoints});
  };
  const auto refused = [&](const std::vector<Endpoint>& endpoints, std::string_view name, std::vector<Json> off = {},
                           std::string_view instead = {}) {
    fields.push_back(
        {.name = name, .use = kRefused, .endpoints = endpoints, .off = std::move(off), .instead = instead});
  };

  served(all, {"model"});
  served({kCompletions, kTokenize}, {"prompt"});
  served(templates, {"messages", "add_generation_prompt", "chat_template_kwargs"});
  served(prompts, {"add_special_tokens"});
  served({kDetokenize}, {"tokens"});
  served(generation, {"best_of",
                      "frequency_penalty",
                      "ignore_eos",
                      "logit_bias",
                      "logprobs",
                      "max_tokens",
                      "min_p",
                      "n",
                      "presence_penalty",
                      "repetition_penalty",
                      "return_token_ids",
                      "seed",
                      "stop",
                      "stop_token_ids",
                      "stream",
                      "stream_options",
                      "temperature",
                      "top_k",
                      "top_p",
                      "winnow"});
  served(generation, {"min_tokens", "bad_words", "allowed_token_ids", "response_format", "structured_outputs",
                      "guided_json", "guided_regex", "guided_choice", "guided_grammar"});
  served(generation, {"cache_prompt", "prompt_logprobs", "skip_special_tokens", "include_stop_str_in_output",
                      "return_tokens_as_token_ids"});
  served(prompts, {"truncate_prompt_tokens"});
  served(completions, {"echo"});
  // Load generators send both limits to both endpoints.
  served(generation, {"max_completion_tokens"});
  served(chat, {"top_logprobs", "include_reasoning", "parallel_tool_calls"});
  served(templates,
         {"tools", "tool_choice", "documents", "enable_thinking", "reasoning_effort", "continue_final_message"});

  served(responses, {"model",
                     "input",
                     "instructions",
                     "max_output_tokens",
                     "temperature",
                     "top_p",
                     "top_k",
                     "min_p",
                     "presence_penalty",
                     "frequency_penalty",
                     "repetition_penalty",
                     "logit_bias",
                     "seed",
                     "stop",
                     "stop_token_ids",
                     "min_tokens",
                     "ignore_eos",
                     "bad_words",
                     "allowed_token_ids",
                     "skip_special_tokens",
                     "truncate_prompt_tokens",
                     "chat_template_kwargs",
                     "enable_thinking",
                     "stream",
                     "stream_options",
                     "tools",
                     "tool_choice",
                     "parallel_tool_calls",
                     "text",
                     "reasoning",
                     "include",
                     "top_logprobs",
                     "winnow"});
  no_effect(responses,
            {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
  const std::string_view whole = "\"input\" with the whole conversation: this server keeps no responses";
  refused(responses, "previous_response_id", {}, whole);
  refused(responses, "conversation", {}, whole);
  refused(responses, "store", {false}, "\"store\": false, the default here: this server keeps no responses");
  refused(responses, "background", {false});
  refused(responses, "prompt");
  refused(responses, "max_tool_calls");
  refused(responses, "truncation", {"disabled"}, "\"truncate_prompt_tokens\"");

  // Who asks, what is to be kept of the request, and how an operator would bill or cache it.
  no_effect(all, {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                  "prompt_cache_retention"});
  // Nothing here puts spaces between special tokens; a fast tokenizer of vLLM does not either.
  no_effect(generation, {"spaces_between_special_tokens"});

  refused(chat, "echo", {false});
  refused(generation, "use_beam_search", {false});
  refused(generation, "length_penalty", {1.0});
  refused(generation, "logits_processors", {Json::array()});
  refused(generation, "guided_decoding_backend", {"auto"});
  refused(generation, "guided_whitespace_pattern");
  refused(generation, "structural_tag");
  refused(generation, "grammar", {}, "\"guided_grammar\"");
  refused(generation, "ebnf", {}, "\"guided_grammar\"");
  refused(generation, "json_schema", {}, "\"response_format\"");
  refused(generation, "regex", {}, "\"guided_regex\"");
  refused(generation, "cache_salt", {}, "the API key: requests of different keys share no prefixes");
  refused(generation, "kv_transfer_params");
  refused(generation, "priority", {0}, "\"winnow.priority\", where a higher number goes first");
  refused(generation, "request_id", {}, "the header x-request-id");
  refused(generation, "timeout", {}, "the header x-request-timeout-ms");
  for (const std::string_view name : {"vllm_xargs", "nvext", "lora"}) refused(generation, name);
  refused(completions, "suffix", {""});
  refused(completions, "prompt_embeds");
  refused(chat, "functions", {Json::array()}, "\"tools\"");
  refused(chat, "function_call", {"none", "auto"}, "\"tool_choice\"");
  refused(chat, "modalities", {Json::array({"text"})});
  refused(chat, "audio");
  refused(chat, "prediction");
  refused(chat, "web_search_options");
  refused(chat, "reasoning", {}, "\"reasoning_effort\"");
  refused(chat, "thinking", {}, "\"enable_thinking\"");
  refused(chat, "verbosity", {"medium"});
  refused(templates, "chat_template", {}, "the template of the model's folder");
  refused(chat, "mm_processor_kwargs");
  refused({kTokenize}, "return_token_strs", {false});
  return fields;
}

bool IsOf(const RequestField& field, Endpoint endpoint) {
  return std::find(field.endpoints.begin(), field.endpoints.end(), endpoint) != field.endpoints.end();
}

const RequestField* Find(std::string_view name, Endpoint endpoint) {
  for (const RequestField& field : RequestFields()) {
    if (field.name == name && IsOf(field, endpoint)) return &field;
  }
  return nullptr;
}

const RequestField* FindAnywhere(std::string_view name) {
  for (const RequestField& field : RequestFields()) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

absl::Status Unknown(const std::string& path, std::string_view place, std::string_view nearest) {
  return InvalidField(path,
                      absl::StrCat("\"", path, "\" is not a field of ", AbslSv(place),
                                   nearest.empty() ? "." : absl::StrCat("; did you mean \"", AbslSv(nearest), "\"?")),
                      "unknown_parameter");
}

absl::Status UnknownField(const std::string& whole_name, Endpoint endpoint) {
  // Comparing names takes the product of their lengths.
  const std::string name = whole_name.substr(0, kShownNameBytes);
  if (const RequestField* elsewhere = FindAnywhere(name)) {
    return InvalidField(
        name,
        absl::StrCat("\"", name, "\" is a field of ", AbslSv(EndpointPath(elsewhere->endpoints.front())), ", not of ",
                     AbslSv(EndpointPath(endpoint)), "."),
        "unknown_parameter");
  }
  std::vector<std::string_view> served;
  for (const RequestField& field : RequestFields()) {
    if (IsOf(field, endpoint) && field.use != kRefused) served.push_back(field.name);
  }
  return Unknown(name, EndpointPath(endpoint), NearestName(name, served));
}

}  // namespace

std::string_view EndpointPath(Endpoint endpoint) {
  switch (endpoint) {
    case kCompletions:
      return "/v1/completions";
    case kChatCompletions:
      return "/v1/chat/completions";
    case kResponses:
      return "/v1/responses";
    case kTokenize:
      return "/tokenize";
    case kDetokenize:
      return "/detokenize";
  }
  return "?";
}

const std::vector<RequestField>& RequestFields() {
  static const std::vector<RequestField> fields = MakeFields();
  return fields;
}

absl::Status CheckFields(const Json& body, Endpoint endpoint) {
  for (const auto& [name, value] : body.items()) {
    const RequestField* field = Find(name, endpoint);
    if (field == nullptr) return UnknownField(name, endpoint);
    if (field->use != kRefused || value.is_null()) continue;
    if (std::find(field->off.begin(), field->off.end(), value) != field->off.end()) continue;
    return InvalidField(
        name,
        absl::StrCat("\"", name, "\" is not supported by this server",
                     field->instead.empty() ? "." : absl::StrCat("; instead there is ", AbslSv(field->instead), ".")),
        "unsupported_parameter");
  }
  return absl::OkStatus();
}

absl::Status CheckKeys(const Json& object, std::string_view path, const std::vector<std::string_view>& known) {
  for (const auto& [whole_name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), whole_name) != known.end()) continue;
    const std::string name = whole_name.substr(0, kShownNameBytes);
    const std::string full = absl::StrCat(AbslSv(path), name);
    const std::string_view nearest = NearestName(name, known);
    return Unknown(full, absl::StrCat("\"", AbslSv(path.substr(0, path.size() - 1)), "\""),
                   nearest.empty() ? "" : absl::StrCat(AbslSv(path), AbslSv(nearest)));
  }
  return absl::OkStatus();
}

}  // namespace winnow
