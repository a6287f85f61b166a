// winnow config: manifests, without starting anything.
#include <fstream>
#include <sstream>

#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "cmd/manifest/manifest.h"
#include "cmd/manifest/schema.h"

namespace winnow {
namespace {

struct NoOptions {
  void Declare(Fields&) {}
};

constexpr char kUsage[] =
    "check FILE... | schema | fields\n"
    "\n"
    "  check FILE...   reads manifests and prints line and field of every error; exit code 1 if there are any\n"
    "  schema          prints the JSON schema of manifests, for editors\n"
    "  fields          prints all fields as a Markdown table\n";

// What a manifest says of this machine's files is checked where the model is.
absl::Status CheckHere(const Manifest& manifest) {
  if (!CheckModelOption(manifest.options.model).ok()) {
    std::printf("note: the model %s is not on this machine: sizes of memory are not checked\n",
                manifest.options.model.c_str());
    return absl::OkStatus();
  }
  if (manifest.nodes.empty()) return manifest.options.Validate();
  for (const ManifestNode& node : manifest.nodes) {
    WINNOW_ASSIGN_OR_RETURN(const UpOptions options, manifest.OptionsOf(node.name));
    WINNOW_RETURN_IF_ERROR(Annotate(options.Validate(), absl::StrCat("node ", node.name)));
  }
  return absl::OkStatus();
}

int Check(const std::vector<std::string>& paths) {
  int errors = 0;
  for (const std::string& path : paths) {
    const absl::StatusOr<Manifest> manifest = LoadManifest(path);
    const absl::Status status = manifest.ok() ? Annotate(CheckHere(*manifest), path) : manifest.status();
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      ++errors;
    } else {
      std::printf("%s: ok\n", path.c_str());
    }
  }
  return errors == 0 ? 0 : 1;
}

}  // namespace

int ConfigMain(const Arguments& arguments) {
  NoOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine("config", kUsage, arguments, options, &words)) return *code;
  const std::string what = words.empty() ? "" : words.front();
  if (what == "check" && words.size() > 1) return Check({words.begin() + 1, words.end()});
  if (what == "schema" && words.size() == 1) {
    std::fputs(ManifestSchema().c_str(), stdout);
    return 0;
  }
  if (what == "fields" && words.size() == 1) {
    std::fputs(ManifestFieldTable().c_str(), stdout);
    return 0;
  }
  return Fail("config", absl::InvalidArgumentError("expected check FILE..., schema or fields"), 2);
}

}  // namespace winnow
