#include "router/openai/response/response_format.h"

namespace winnow {

void WriteResponseHead(const ResponseIdentity& identity, const char* object, JsonWriter* json) {
  json->Key("id").String(identity.id);
  json->Key("object").String(object);
  json->Key("created").Int(identity.created_unix_s);
  json->Key("model").String(identity.model);
}

void WriteFinish(const ChoiceEnd& end, JsonWriter* json) {
  json->Key("finish_reason");
  switch (end.reason) {
    case v1::FINISH_REASON_STOP:
      json->String(end.called_tools ? "tool_calls" : "stop");
      break;
    case v1::FINISH_REASON_LENGTH:
      json->String("length");
      break;
    default:
      json->Null();
  }
  json->Key("stop_reason");
  end.stop_match ? json->String(*end.stop_match) : json->Null();
}

void WriteChunkUsage(const ResponseIdentity& identity, const std::optional<ChunkUsage>& usage, JsonWriter* json) {
  if (usage) {
    json->Key("usage").BeginObject();
    json->Key("prompt_tokens").Int(usage->prompt_tokens);
    json->Key("completion_tokens").Int(usage->completion_tokens);
    json->Key("total_tokens").Int(uint64_t{usage->prompt_tokens} + usage->completion_tokens);
    json->EndObject();
  } else if (identity.include_usage) {
    json->Key("usage").Null();
  }
}

void WriteTokenIds(const std::vector<v1::Token>& tokens, JsonWriter* json) {
  json->Key("token_ids").BeginArray();
  for (const v1::Token& token : tokens) json->Int(token.id());
  json->EndArray();
}

StreamEvents FormatPromptChunk(const ResponseIdentity& identity, const char* object, uint32_t prompt_index,
                               const PromptProgress& progress) {
  JsonWriter json;
  json.BeginObject();
  WriteResponseHead(identity, object, &json);
  json.Key("choices").BeginArray().EndArray();
  WriteChunkUsage(identity, std::nullopt, &json);
  json.Key("winnow").BeginObject().Key("prompt_progress").BeginObject();
  json.Key("prompt_index").Int(prompt_index);
  json.Key("prompt_tokens").Int(progress.prompt_tokens);
  json.Key("computed_tokens").Int(progress.computed_tokens);
  json.Key("cached_tokens").Int(progress.cached_tokens);
  json.EndObject().EndObject().EndObject();
  return {{.data = json.Take()}};
}

StreamEvents FormatStreamEnd(const ResponseIdentity& identity, const char* object, const UsageTotals& usage) {
  StreamEvents events;
  if (identity.include_usage) {
    JsonWriter json;
    json.BeginObject();
    WriteResponseHead(identity, object, &json);
    json.Key("choices").BeginArray().EndArray();
    json.Key("usage");
    usage.Write(&json);
    json.EndObject();
    events.push_back({.data = json.Take()});
  }
  events.push_back({.data = "[DONE]"});
  return events;
}

}  // namespace winnow
