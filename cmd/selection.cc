#include <algorithm>
#include <cstdio>

#include "absl/strings/str_replace.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "common/base/json.h"
#include "common/selection/head_profile.h"
#include "common/selection/presets.h"
#include "common/selection/spec_json.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

extern const Command kListPresetsCommand, kExplainCommand;

constexpr size_t kWidth = 100;

// `text` in lines of at most kWidth, broken at `separator`, each with `indent` in front.
std::string Wrap(std::string_view text, std::string_view indent, char separator = ' ') {
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size() - 1) + 1;
    if (column == 0 || column + end > kWidth) {
      if (!out.empty() && out.back() == ' ') out.pop_back();
      absl::StrAppend(&out, column == 0 ? "" : "\n", AbslSv(indent));
      column = indent.size();
    }
    absl::StrAppend(&out, AbslSv(text.substr(0, end)));
    column += end;
    text.remove_prefix(end);
  }
  return out + "\n";
}

// What this version refuses of a specification; empty when nothing.
std::string Refusal(const SelectionSpec& spec) {
  const absl::Status status = ValidateSelection(spec);
  return status.ok() ? "" : std::string(status.message());
}

// What its server has to have; empty when nothing.
std::string Need(const SelectionSpec& spec) {
  return std::string(CheckNeedsNoHeadProfile(spec).message());
}

void PrintPresets() {
  for (const SelectionPreset& preset : SelectionPresets()) {
    std::printf("%s\n%s", preset.spec.preset.c_str(), Wrap(preset.description, "    ").c_str());
    if (!preset.source.empty()) std::printf("    after: %s\n", std::string(preset.source).c_str());
    std::printf("%s", Wrap(FullSpecText(preset.spec), "    ", ',').c_str());
    if (!preset.not_built.empty()) {
      std::printf("%s", Wrap(absl::StrCat("of that system not built: ", AbslSv(preset.not_built)), "    ").c_str());
    }
    if (const std::string need = Need(preset.spec); !need.empty()) std::printf("%s", Wrap(need, "    ").c_str());
    if (const std::string refusal = Refusal(preset.spec); !refusal.empty()) {
      std::printf("%s", Wrap("refused by this version: " + refusal, "    ").c_str());
    }
    std::printf("\n");
  }
}

nlohmann::ordered_json TextOrNull(std::string_view text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(std::string(text));
}

void PrintPresetsAsJson() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SelectionPreset& preset : SelectionPresets()) {
    list.push_back({{"preset", preset.spec.preset},
                    {"description", TextOrNull(preset.description)},
                    {"source", TextOrNull(preset.source)},
                    {"not_built", TextOrNull(preset.not_built)},
                    {"needs", TextOrNull(Need(preset.spec))},
                    {"refused", TextOrNull(Refusal(preset.spec))},
                    {"text", FullSpecText(preset.spec)},
                    {"specification", FullSpecJson(preset.spec)}});
  }
  std::printf("%s\n", list.dump(2).c_str());
}

struct ListPresetsOptions {
  bool json = false;
  void Declare(Fields& fields) { fields.Bool("json", &json, "As JSON: a list of objects."); }
};

int ListPresetsMain(const Arguments& arguments) {
  ListPresetsOptions options;
  if (const auto code = ParseCommandLine(kListPresetsCommand, arguments, options)) return *code;
  options.json ? PrintPresetsAsJson() : PrintPresets();
  return kExitOk;
}

void ExplainField(const SelectionField& field, const SelectionSpec& spec) {
  std::printf("%s = %s    (%s; %s)\n", std::string(field.name).c_str(), field.Print(spec).c_str(),
              field.Allowed().c_str(), field.per_request ? "a request may change it" : "fixed when the server starts");
  std::printf("%s", Wrap(field.meaning, "    ").c_str());
  std::string_view cost = field.cost;
  std::string_view source = field.source;
  if (const auto* choice = std::get_if<ChoiceValue>(&field.value)) {
    const FieldChoice& chosen = choice->choices.at(choice->get(spec));
    std::printf("%s", Wrap(absl::StrCat(AbslSv(chosen.name), ": ", AbslSv(chosen.meaning)), "    ").c_str());
    cost = chosen.cost;
    source = chosen.source;
  }
  if (!cost.empty()) std::printf("%s", Wrap(absl::StrCat("cost: ", AbslSv(cost)), "    ").c_str());
  if (!source.empty()) std::printf("    after: %s\n", std::string(source).c_str());
}

// A value as JSON has it: numbers and booleans as such.
nlohmann::ordered_json ValueOf(const std::string& text) {
  const auto value = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_number() || value.is_boolean() ? value : nlohmann::ordered_json(text);
}

void ExplainAsJson(const SelectionSpec& spec, const std::string& refusal) {
  nlohmann::ordered_json fields = nlohmann::ordered_json::array();
  for (const SelectionField& field : SelectionFields()) {
    nlohmann::ordered_json each = {{"field", std::string(field.name)},
                                   {"value", ValueOf(field.Print(spec))},
                                   {"allowed", field.Allowed()},
                                   {"per_request", field.per_request},
                                   {"meaning", std::string(field.meaning)}};
    std::string_view cost = field.cost, source = field.source;
    if (const auto* choice = std::get_if<ChoiceValue>(&field.value)) {
      const FieldChoice& chosen = choice->choices.at(choice->get(spec));
      each["value_meaning"] = std::string(chosen.meaning);
      cost = chosen.cost;
      source = chosen.source;
    }
    each["cost"] = TextOrNull(cost);
    each["source"] = TextOrNull(source);
    fields.push_back(std::move(each));
  }
  const nlohmann::ordered_json all = {{"specification", SpecText(spec)},
                                      {"needs", TextOrNull(Need(spec))},
                                      {"refused", TextOrNull(refusal)},
                                      {"fields", std::move(fields)}};
  std::printf("%s\n", all.dump(2).c_str());
}

void ExplainAsText(const SelectionSpec& spec, const std::string& refusal) {
  std::printf("%s\n\n", SpecText(spec).c_str());
  for (const SelectionField& field : SelectionFields()) ExplainField(field, spec);
  if (const std::string need = Need(spec); !need.empty()) std::printf("\n%s", Wrap(need, "").c_str());
  if (!refusal.empty()) std::printf("\nrefused by this version: %s\n", refusal.c_str());
}

struct ExplainOptions {
  bool json = false;
  void Declare(Fields& fields) { fields.Bool("json", &json, "As JSON: an object with a list of the fields."); }
};

int ExplainMain(const Arguments& arguments) {
  ExplainOptions options;
  std::vector<std::string> positionals;
  if (const auto code = ParseCommandLine(kExplainCommand, arguments, options, &positionals)) return *code;
  if (positionals.size() != 1) {
    return Fail(kExplainCommand, absl::InvalidArgumentError("give one specification, such as winnow,budget=512"),
                kExitUsage);
  }
  const absl::StatusOr<SelectionSpec> spec = ParseSpec(positionals.front());
  if (!spec.ok()) return Fail(kExplainCommand, spec.status(), kExitUsage);
  const absl::Status valid = ValidateSelection(*spec);
  if (absl::IsInvalidArgument(valid)) return Fail(kExplainCommand, valid, kExitUsage);
  const std::string refusal(valid.message());
  options.json ? ExplainAsJson(*spec, refusal) : ExplainAsText(*spec, refusal);
  return kExitOk;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const SelectionPreset& preset : SelectionPresets()) names.push_back(preset.spec.preset);
  return names;
}

constexpr char kSelectionAbout[] =
    "A specification is a preset and what is changed of it: preset[,field=value...], for example\n"
    "winnow,predictor=temporal,window=16,budget=512. docs/selection.md says when to choose what.\n";

const Command kListPresetsCommand = {
    .name = "selection list",
    .summary = "list the presets: what they do, their full specifications, what is not built",
    .synopsis = "[--json]",
    .options = Declared<ListPresetsOptions>,
    .run = ListPresetsMain};
const Command kExplainCommand = {.name = "selection explain",
                                 .summary = "say of every field of a specification what its value means and costs",
                                 .synopsis = "PRESET[,FIELD=VALUE...] [--json]",
                                 .about = kSelectionAbout,
                                 .operands = {.first = PresetNames},
                                 .options = Declared<ExplainOptions>,
                                 .run = ExplainMain};
constexpr const Command* kSelectionSubcommands[] = {&kListPresetsCommand, &kExplainCommand};

}  // namespace

const Command kSelectionCommand = {.name = "selection",
                                   .summary = "list and explain selection presets and specifications",
                                   .synopsis = "COMMAND",
                                   .about = kSelectionAbout,
                                   .subcommands = kSelectionSubcommands};

}  // namespace winnow
