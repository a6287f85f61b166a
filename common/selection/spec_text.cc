#include "common/selection/spec_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "common/selection/presets.h"

namespace winnow {
namespace {

constexpr std::string_view kDefaultPreset = "winnow";

// A specification whose preset is of another version, or of a test, is compared with the defaults.
SelectionSpec BaseOf(const SelectionSpec& spec) {
  return FindPreset(spec.preset).value_or(SelectionSpec());
}

}  // namespace

absl::Status SpecChanges::Add(std::string_view field, std::string value) {
  WINNOW_ASSIGN_OR_RETURN(const SelectionField* found, FindField(field));
  fields.push_back({found, std::move(value)});
  return absl::OkStatus();
}

absl::StatusOr<SpecChanges> ParseSpecChanges(std::string_view text) {
  SpecChanges changes;
  bool first = true;
  for (const absl::string_view part : absl::StrSplit(AbslSv(text), ',')) {
    const absl::string_view item = absl::StripAsciiWhitespace(part);
    const size_t equals = item.find('=');
    if (first && equals == absl::string_view::npos) {
      changes.preset = std::string(item);
    } else if (equals == absl::string_view::npos) {
      return SpecError(
          "", absl::StrCat("\"", item.substr(0, 64), "\" is no field=value; the form is preset[,field=value...]"));
    } else {
      WINNOW_RETURN_IF_ERROR(changes.Add(StdSv(absl::StripAsciiWhitespace(item.substr(0, equals))),
                                         std::string(absl::StripAsciiWhitespace(item.substr(equals + 1)))));
    }
    first = false;
  }
  return changes;
}

absl::StatusOr<SelectionSpec> ApplyChanges(const SpecChanges& changes, const SelectionSpec& base) {
  SelectionSpec spec = base;
  if (changes.preset) {
    WINNOW_ASSIGN_OR_RETURN(spec, FindPreset(*changes.preset));
  }
  for (const SpecChanges::Change& change : changes.fields) {
    WINNOW_RETURN_IF_ERROR(change.field->Parse(change.value, spec));
  }
  return spec;
}

absl::StatusOr<SelectionSpec> ParseSpec(std::string_view text) {
  WINNOW_ASSIGN_OR_RETURN(const SpecChanges changes, ParseSpecChanges(text));
  WINNOW_ASSIGN_OR_RETURN(const SelectionSpec base, FindPreset(kDefaultPreset));
  return ApplyChanges(changes, base);
}

std::string SpecText(const SelectionSpec& spec) {
  const SelectionSpec base = BaseOf(spec);
  std::string text = spec.preset;
  for (const SelectionField& field : SelectionFields()) {
    if (!field.Same(spec, base)) absl::StrAppend(&text, ",", AbslSv(field.name), "=", field.Print(spec));
  }
  return text;
}

std::string FullSpecText(const SelectionSpec& spec) {
  std::string text = spec.preset;
  for (const SelectionField& field : SelectionFields()) {
    if (std::holds_alternative<ProfileValue>(field.value)) continue;
    absl::StrAppend(&text, ",", AbslSv(field.name), "=", field.Print(spec));
  }
  return text;
}

}  // namespace winnow
