#include "router/openai/model_list.h"

#include "router/openai/json_writer.h"

namespace winnow {
namespace {

void WriteModel(const ServedModel& model, int64_t created_unix_s, JsonWriter* json) {
  json->BeginObject();
  json->Key("id").String(model.id);
  json->Key("object").String("model");
  json->Key("created").Int(created_unix_s);
  json->Key("owned_by").String("winnow");
  json->Key("max_model_len").Int(model.max_context_tokens);
  json->EndObject();
}

}  // namespace

std::string ModelJson(const ServedModel& model, int64_t created_unix_s) {
  JsonWriter json;
  WriteModel(model, created_unix_s, &json);
  return json.Take();
}

std::string ModelListJson(const ServedModel& model, int64_t created_unix_s) {
  JsonWriter json;
  json.BeginObject().Key("object").String("list").Key("data").BeginArray();
  WriteModel(model, created_unix_s, &json);
  json.EndArray().EndObject();
  return json.Take();
}

}  // namespace winnow
