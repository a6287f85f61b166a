#include "router/openai/response_format.h"

namespace winnow {

void WriteResponseHead(const ResponseIdentity& identity, const char* object, JsonWriter* json) {
  json->Key("id").String(identity.id);
  json->Key("object").String(object);
  json->Key("created").Int(identity.created_unix_s);
  json->Key("model").String(identity.model);
}

void WriteFinish(v1::FinishReason reason, const std::optional<std::string>& stop_match, JsonWriter* json) {
  json->Key("finish_reason");
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      json->String("stop");
      break;
    case v1::FINISH_REASON_LENGTH:
      json->String("length");
      break;
    default:
      json->Null();
  }
  json->Key("stop_reason");
  stop_match ? json->String(*stop_match) : json->Null();
}

void WriteTokenIds(const std::vector<v1::Token>& tokens, JsonWriter* json) {
  json->Key("token_ids").BeginArray();
  for (const v1::Token& token : tokens) json->Int(token.id());
  json->EndArray();
}

std::string FormatUsageChunk(const ResponseIdentity& identity, const char* object, const UsageTotals& usage) {
  JsonWriter json;
  json.BeginObject();
  WriteResponseHead(identity, object, &json);
  json.Key("choices").BeginArray().EndArray();
  json.Key("usage");
  usage.Write(&json);
  json.EndObject();
  return json.Take();
}

}  // namespace winnow
