#include "router/openai/response/trace_json.h"

#include <algorithm>

namespace winnow {
namespace {

void WriteCounts(const char* name, const google::protobuf::RepeatedField<uint32_t>& counts, JsonWriter* json) {
  json->Key(name).BeginArray();
  for (const uint32_t count : counts) json->Int(count);
  json->EndArray();
}

void WriteTrace(const v1::SelectionTrace& trace, JsonWriter* json) {
  json->BeginObject();
  json->Key("token_index").Int(trace.token_index());
  json->Key("context_tokens").Int(trace.context_tokens());
  json->Key("lists").Int(trace.lists());
  WriteCounts("attended", trace.attended(), json);
  WriteCounts("resident", trace.resident(), json);
  WriteCounts("moved", trace.moved(), json);
  if (trace.has_captured_mass()) {
    json->Key("captured_mass").Float(trace.captured_mass());
    json->Key("mass_token_index").Int(trace.mass_token_index());
  }
  json->EndObject();
}

}  // namespace

void WriteTraces(const std::vector<v1::Token>& tokens, JsonWriter* json) {
  if (std::none_of(tokens.begin(), tokens.end(), [](const v1::Token& token) { return token.has_trace(); })) return;
  json->Key("winnow").BeginObject().Key("trace").BeginArray();
  for (const v1::Token& token : tokens) {
    if (token.has_trace()) WriteTrace(token.trace(), json);
  }
  json->EndArray().EndObject();
}

}  // namespace winnow
