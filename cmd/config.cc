// winnow config: manifests, without starting anything.
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_split.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/manifest/manifest.h"
#include "cmd/manifest/schema.h"
#include "cmd/plan/cluster_memory.h"
#include "cmd/plan/rank_sizes.h"
#include "cmd/role/options/model_options.h"
#include "common/base/json.h"

namespace winnow {
namespace {

extern const Command kCheckCommand, kSchemaCommand, kFieldsCommand;

struct CheckOptions {
  bool json = false;

  void Declare(Fields& fields) { fields.Bool("json", &json, "Print JSON: a list of files with their errors."); }
};

// What was found in one file.
struct Checked {
  std::string path;
  absl::Status status;
  std::string note;
};

// What a manifest says of this machine's files is checked where the model is.
absl::Status CheckHere(const Manifest& manifest, std::string& note) {
  if (!CheckModelOption(manifest.options.model).ok()) {
    note =
        absl::StrCat("the model ", manifest.options.model, " is not on this machine: sizes of memory are not checked");
    return absl::OkStatus();
  }
  const auto check = [&](const UpOptions& options) -> absl::Status {
    WINNOW_RETURN_IF_ERROR(options.Validate());
    WINNOW_RETURN_IF_ERROR(CheckRanksFit(options));
    // As it is rendered.
    return SizeRanks(options, manifest.deploy.memory_bytes).status();
  };
  if (manifest.nodes.empty()) return check(manifest.options);
  for (const ManifestNode& node : manifest.nodes) {
    WINNOW_ASSIGN_OR_RETURN(const UpOptions options, manifest.OptionsOf(node.name));
    WINNOW_RETURN_IF_ERROR(Annotate(check(options), absl::StrCat("node ", node.name)));
  }
  return absl::OkStatus();
}

Checked CheckFile(const std::string& path) {
  Checked checked{.path = path, .status = absl::OkStatus(), .note = ""};
  const absl::StatusOr<Manifest> manifest = LoadManifest(path);
  checked.status = manifest.ok() ? Annotate(CheckHere(*manifest, checked.note), path) : manifest.status();
  return checked;
}

void Print(const std::vector<Checked>& files) {
  for (const Checked& file : files) {
    if (!file.note.empty()) std::printf("note: %s\n", file.note.c_str());
    if (file.status.ok()) {
      std::printf("%s: ok\n", file.path.c_str());
    } else {
      std::fprintf(stderr, "%s\n", std::string(file.status.message()).c_str());
    }
  }
}

void PrintJson(const std::vector<Checked>& files) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Checked& file : files) {
    nlohmann::ordered_json errors = nlohmann::ordered_json::array();
    for (const absl::string_view line : absl::StrSplit(file.status.message(), '\n', absl::SkipEmpty())) {
      errors.push_back(std::string(line));
    }
    list.push_back({{"file", file.path}, {"ok", file.status.ok()}, {"errors", errors}});
    if (!file.note.empty()) list.back()["note"] = file.note;
  }
  std::printf("%s\n", list.dump(2).c_str());
}

int CheckMain(const Arguments& arguments) {
  CheckOptions options;
  std::vector<std::string> paths;
  if (const auto code = ParseCommandLine(kCheckCommand, arguments, options, &paths)) return *code;
  if (paths.empty()) return Fail(kCheckCommand, absl::InvalidArgumentError("give manifests to check"), kExitUsage);
  std::vector<Checked> files;
  for (const std::string& path : paths) files.push_back(CheckFile(path));
  options.json ? PrintJson(files) : Print(files);
  const bool ok = std::all_of(files.begin(), files.end(), [](const Checked& file) { return file.status.ok(); });
  return ok ? kExitOk : kExitFailure;
}

int SchemaMain(const Arguments& arguments) {
  NoOptions options;
  if (const auto code = ParseCommandLine(kSchemaCommand, arguments, options)) return *code;
  std::fputs(ManifestSchema().c_str(), stdout);
  return kExitOk;
}

int FieldsMain(const Arguments& arguments) {
  NoOptions options;
  if (const auto code = ParseCommandLine(kFieldsCommand, arguments, options)) return *code;
  std::fputs(ManifestFieldTable().c_str(), stdout);
  return kExitOk;
}

const Command kCheckCommand = {.name = "config check",
                               .summary = "read manifests and print line and field of every error",
                               .synopsis = "FILE... [--json]",
                               .operands = {.files = true},
                               .options = Declared<CheckOptions>,
                               .run = CheckMain};
const Command kSchemaCommand = {
    .name = "config schema", .summary = "print the JSON schema of manifests, for editors", .run = SchemaMain};
const Command kFieldsCommand = {
    .name = "config fields", .summary = "print all fields as a Markdown table", .run = FieldsMain};
constexpr const Command* kConfigSubcommands[] = {&kCheckCommand, &kSchemaCommand, &kFieldsCommand};

}  // namespace

const Command kConfigCommand = {.name = "config",
                                .summary = "check manifests of clusters, and describe their fields",
                                .synopsis = "COMMAND",
                                .subcommands = kConfigSubcommands};

}  // namespace winnow
