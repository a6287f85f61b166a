#include "common/selection/field_reference.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/selection/presets.h"
#include "common/selection/spec_fields.h"

namespace winnow {
namespace {

constexpr char kIntroduction[] = R"(# Fields of selection specifications

This page is made from the table by which the program reads specifications, and a test keeps it so. [selection.md](selection.md) says when
to choose what, `winnow selection explain SPEC` what a specification of your own comes to.

*Default* is the value that `winnow` has, the default preset; a preset that differs is named behind it. *Request* says whether
a request may change the field; all others are fixed when the server starts.

| field | default | values | request | meaning, cost, source |
|---|---|---|---|---|
)";

std::string Text(std::string_view text) {
  return std::string(text);
}

// "; cost: COST", "; after SOURCE", what there is of it.
std::string CostAndSource(std::string_view cost, std::string_view source) {
  return absl::StrCat(cost.empty() ? "" : "; cost: ", Text(cost), source.empty() ? "" : "; after ", Text(source));
}

// A bar would end the cell.
std::string Cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}});
}

std::string Values(const SelectionField& field) {
  const std::vector<std::string> values = absl::StrSplit(field.Allowed(), '|');
  if (values.size() == 1) return values.front();
  return absl::StrCat("`", absl::StrJoin(values, "`, `"), "`");
}

// "2048; dense unlimited, lserve 4096".
std::string Defaults(const SelectionField& field) {
  const std::string usual = field.Print(*FindPreset("winnow"));
  std::map<std::string, std::vector<std::string>> others;  // presets, by value
  for (const SelectionPreset& preset : SelectionPresets()) {
    const std::string value = field.Print(preset.spec);
    if (value != usual) others[value].push_back(preset.spec.preset);
  }
  std::string text = absl::StrCat("`", usual, "`");
  for (const auto& [value, presets] : others) {
    absl::StrAppend(&text, "; ", absl::StrJoin(presets, ", "), " `", value, "`");
  }
  return text;
}

std::string Meaning(const SelectionField& field) {
  std::string text = absl::StrCat(Text(field.meaning), CostAndSource(field.cost, field.source));
  if (const auto* choice = std::get_if<ChoiceValue>(&field.value)) {
    for (const FieldChoice& value : choice->choices) {
      absl::StrAppend(&text, "<br>`", Text(value.name), "`: ", Text(value.meaning),
                      CostAndSource(value.cost, value.source));
    }
  }
  return text;
}

}  // namespace

std::string SelectionFieldReference() {
  std::string page = kIntroduction;
  for (const SelectionField& field : SelectionFields()) {
    absl::StrAppend(&page, "| `", Text(field.name), "` | ", Cell(Defaults(field)), " | ", Cell(Values(field)), " | ",
                    field.per_request ? "yes" : "", " | ", Cell(Meaning(field)), " |\n");
  }
  return page;
}

}  // namespace winnow
