#include "cmd/manifest/schema.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cmd/manifest/manifest.h"
#include "cmd/manifest/manifest_fields.h"
#include "common/base/check.h"
#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

// 2^53: what JSON readers take exactly.
constexpr double kMostExact = 9007199254740992.0;

void AddBounds(const Field& field, Json& schema) {
  if (field.low > -kMostExact) schema["minimum"] = static_cast<int64_t>(field.low);
  if (field.high < kMostExact) schema["maximum"] = static_cast<int64_t>(field.high);
}

Json SchemaOf(const Field& field) {
  Json schema;
  switch (field.kind) {
    case FieldKind::kText:
    case FieldKind::kFile:
    case FieldKind::kFolder:
      schema["type"] = "string";
      break;
    case FieldKind::kBool:
      schema["type"] = "boolean";
      break;
    case FieldKind::kInteger:
      schema["type"] = "integer";
      AddBounds(field, schema);
      break;
    case FieldKind::kNumber:
      schema["type"] = "number";
      schema["minimum"] = field.low;
      schema["maximum"] = field.high;
      break;
    case FieldKind::kBytes:
      schema["type"] = {"integer", "string"};
      schema["minimum"] = static_cast<int64_t>(field.low);
      schema["pattern"] = "^[0-9.]+ ?(B|[KMGT]iB|[kKMGT]B)?$";
      break;
    case FieldKind::kDuration:
      schema["type"] = {"integer", "string"};
      schema["minimum"] = schema["maximum"] = 0;
      schema["pattern"] = "^(0|[0-9.]+ ?(us|ms|s|m|h))$";
      break;
    case FieldKind::kAddress:
      schema["type"] = "string";
      schema["pattern"] = "^.+:[0-9]+$";
      break;
    case FieldKind::kChoice:
      schema["enum"] = field.choices;
      break;
    case FieldKind::kCustom:
      schema["type"] = {"string", "integer"};
      break;
  }
  schema["description"] = field.help;
  const std::string value = field.format();
  if (!value.empty()) schema["default"] = value;
  return schema;
}

std::string Underscored(std::string_view name) {
  return absl::StrReplaceAll(AbslSv(name), {{"-", "_"}});
}

Json ObjectOf(std::string_view help) {
  return {{"type", "object"}, {"description", help}, {"additionalProperties", false}, {"properties", Json::object()}};
}

Json ObjectOf(std::string_view help, const Fields& fields) {
  Json object = ObjectOf(help);
  for (const Field& field : fields.all()) object["properties"][Underscored(field.name)] = SchemaOf(field);
  return object;
}

}  // namespace

std::string ManifestSchema() {
  Manifest manifest;
  const Fields options = Fields::Of(manifest.options);
  Json schema = ObjectOf("What runs, and where: `winnow up -f FILE` starts it.");
  Json& top = schema["properties"];
  for (const ManifestField& place : ManifestFields()) {
    const Field* field = options.Find(place.option);
    WINNOW_CHECK(field != nullptr);
    const size_t dot = place.path.find('.');
    if (dot == std::string_view::npos) {
      top[std::string(place.path)] = SchemaOf(*field);
      continue;
    }
    const std::string name(place.path.substr(0, dot));
    if (!top.contains(name)) {
      const auto sections = ManifestSections();
      const auto section =
          std::find_if(sections.begin(), sections.end(), [&](const auto& s) { return s.name == name; });
      WINNOW_CHECK(section != sections.end());
      top[name] = ObjectOf(section->help);
    }
    top[name]["properties"][std::string(place.path.substr(dot + 1))] = SchemaOf(*field);
  }
  top["model"]["required"] = {"path"};
  ManifestNode node;
  Json node_schema = ObjectOf("A machine.", Fields::Of(node));
  node_schema["required"] = {"address"};
  top["nodes"] = {{"type", "object"},
                  {"description", "The machines of a cluster over several, by name: `winnow up -f FILE --node NAME`."},
                  {"additionalProperties", std::move(node_schema)}};
  top["deploy"] = ObjectOf("For `winnow deploy render`.", Fields::Of(manifest.deploy));
  schema["required"] = {"model"};
  Json whole{{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "Winnow manifest"}};
  whole.update(schema);
  return whole.dump(2) + "\n";
}

std::string ManifestFieldTable() {
  Manifest manifest;
  ManifestNode node;
  const Fields options = Fields::Of(manifest.options), nodes = Fields::Of(node), deploy = Fields::Of(manifest.deploy);
  std::string table = "| field | value | default |\n|---|---|---|\n";
  const auto add = [&table](std::string_view path, const Field& field, std::string_view option) {
    const std::string type = absl::StrReplaceAll(field.type, {{"|", "\\|"}});
    const std::string value = field.format();
    absl::StrAppend(&table, "| `", AbslSv(path), "`", option.empty() ? "" : absl::StrCat(" (`--", AbslSv(option), "`)"),
                    " | ", type, " | ", value.empty() ? "" : absl::StrCat("`", value, "`"), " |\n");
  };
  for (const ManifestField& place : ManifestFields()) add(place.path, *options.Find(place.option), place.option);
  for (const Field& field : nodes.all()) add(absl::StrCat("nodes.NAME.", Underscored(field.name)), field, "");
  for (const Field& field : deploy.all()) add(absl::StrCat("deploy.", Underscored(field.name)), field, "");
  return table;
}

}  // namespace winnow
