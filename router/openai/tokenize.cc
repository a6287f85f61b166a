#include "router/openai/tokenize.h"

#include "router/openai/json/api_error.h"
#include "router/openai/json/json_reader.h"
#include "router/openai/json/json_writer.h"
#include "router/openai/request/chat_messages.h"
#include "router/openai/request/generation_request.h"
#include "router/openai/request/request_fields.h"
#include "router/openai/request/sampling_fields.h"
#include "router/openai/request/tool_fields.h"

namespace winnow {
namespace {

absl::StatusOr<std::vector<uint32_t>> EncodeWhole(const Json& body, const TextCodec& codec) {
  JsonReader reader(body);
  if (reader.Find("messages") != nullptr) {
    if (reader.Find("prompt") != nullptr)
      return InvalidField("messages", "Give either \"prompt\" or \"messages\", not both.");
    WINNOW_ASSIGN_OR_RETURN(const ToolFields tools, ReadToolFields(body));
    WINNOW_ASSIGN_OR_RETURN(Conversation conversation,
                            EncodeConversation(body, tools.tools, /*bounded_by=*/nullptr, codec));
    return std::move(conversation.token_ids);
  }
  const std::optional<std::string> prompt = reader.String("prompt");
  const bool add_special_tokens = reader.Bool("add_special_tokens").value_or(true);
  WINNOW_RETURN_IF_ERROR(reader.status());
  if (!prompt) return InvalidField("prompt", "\"prompt\" is missing.", "missing_required_parameter");
  absl::StatusOr<std::vector<uint32_t>> ids = codec.Encode(*prompt, add_special_tokens);
  if (!ids.ok()) return InvalidField("prompt", StdSv(ids.status().message()));
  return ids;
}

absl::StatusOr<std::vector<uint32_t>> EncodeBody(const Json& body, const ServedModel& model, const TextCodec& codec) {
  WINNOW_ASSIGN_OR_RETURN(std::vector<uint32_t> ids, EncodeWhole(body, codec));
  JsonReader reader(body);
  WINNOW_RETURN_IF_ERROR(TruncatePrompt(reader, {}, model, &ids));
  return ids;
}

absl::Status CheckBody(const Json& body, const ServedModel& model, Endpoint endpoint) {
  JsonReader reader(body);
  if (const auto name = reader.String("model"); name && !model.HasName(*name)) return ModelNotFound(*name, model);
  WINNOW_RETURN_IF_ERROR(reader.status());
  return CheckFields(body, endpoint);
}

}  // namespace

absl::StatusOr<std::string> TokenizeJson(const Json& body, const ServedModel& model, const TextCodec& codec) {
  WINNOW_RETURN_IF_ERROR(CheckBody(body, model, Endpoint::kTokenize));
  WINNOW_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, EncodeBody(body, model, codec));
  JsonWriter json;
  json.BeginObject();
  json.Key("count").Int(ids.size());
  json.Key("max_model_len").Int(model.max_context_tokens);
  json.Key("tokens").BeginArray();
  for (const uint32_t id : ids) json.Int(id);
  json.EndArray().EndObject();
  return json.Take();
}

absl::StatusOr<std::string> DetokenizeJson(const Json& body, const ServedModel& model, const TextCodec& codec) {
  WINNOW_RETURN_IF_ERROR(CheckBody(body, model, Endpoint::kDetokenize));
  const auto tokens = body.find("tokens");
  if (tokens == body.end()) return InvalidField("tokens", "\"tokens\" is missing.", "missing_required_parameter");
  WINNOW_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, ParseTokenIds(*tokens, "tokens", model.vocab_size));
  JsonWriter json;
  json.BeginObject().Key("prompt").String(codec.Decode(ids, /*skip_special_tokens=*/false)).EndObject();
  return json.Take();
}

}  // namespace winnow
