#include "router/openai/response/selection_list.h"

#include "common/selection/presets.h"
#include "common/selection/spec_text.h"
#include "router/generation/selection_rules.h"
#include "router/openai/json/json_writer.h"

namespace winnow {
namespace {

void WritePreset(const SelectionPreset& preset, const ServedModel& model, JsonWriter* json) {
  SpecChanges changes;
  changes.preset = preset.spec.preset;
  const absl::StatusOr<SelectionSpec> spec = ResolveSelection(changes, model);
  json->BeginObject();
  json->Key("preset").String(preset.spec.preset);
  json->Key("description").String(preset.description);
  json->Key("source");
  preset.source.empty() ? json->Null() : json->String(preset.source);
  json->Key("specification");
  spec.ok() ? json->String(SpecText(*spec)) : json->Null();
  json->Key("refused");
  spec.ok() ? json->Null() : json->String(StdSv(spec.status().message()));
  json->EndObject();
}

}  // namespace

std::string SelectionListJson(const ServedModel& model) {
  JsonWriter json;
  json.BeginObject();
  json.Key("default").String(SpecText(model.default_selection));
  json.Key("max_budget").Int(model.max_budget_tokens);
  json.Key("presets").BeginArray();
  for (const SelectionPreset& preset : SelectionPresets()) WritePreset(preset, model, &json);
  json.EndArray().EndObject();
  return json.Take();
}

}  // namespace winnow
