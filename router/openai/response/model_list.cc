#include "router/openai/response/model_list.h"

#include "router/openai/json/json_writer.h"

namespace winnow {
namespace {

void WriteModel(const ServedModel& model, const std::string& name, int64_t created_unix_s, JsonWriter* json) {
  json->BeginObject();
  json->Key("id").String(name);
  json->Key("object").String("model");
  json->Key("created").Int(created_unix_s);
  json->Key("owned_by").String("winnow");
  json->Key("root").String(model.id);
  json->Key("max_model_len").Int(model.max_context_tokens);
  json->EndObject();
}

}  // namespace

std::string ModelJson(const ServedModel& model, const std::string& name, int64_t created_unix_s) {
  JsonWriter json;
  WriteModel(model, name, created_unix_s, &json);
  return json.Take();
}

std::string ModelListJson(const ServedModel& model, int64_t created_unix_s) {
  JsonWriter json;
  json.BeginObject().Key("object").String("list").Key("data").BeginArray();
  WriteModel(model, model.id, created_unix_s, &json);
  for (const std::string& alias : model.aliases) WriteModel(model, alias, created_unix_s, &json);
  json.EndArray().EndObject();
  return json.Take();
}

}  // namespace winnow
