// winnow deploy: a manifest as files of other tools.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/render/plan.h"

namespace winnow {
namespace {

extern const Command kRenderCommand;

struct RenderOptions {
  std::string out;

  void Declare(Fields& fields) {
    fields.Folder("out", &out, "Folder to write the files to; it is made where it is missing. Empty = print them.");
  }
};

using Renderer = absl::StatusOr<RenderedFiles> (*)(const Manifest&, std::string_view);

struct Kind {
  std::string_view name;
  Renderer render;
};

constexpr Kind kKinds[] = {
    {"kubernetes", RenderKubernetes}, {"compose", RenderCompose}, {"systemd", RenderSystemd}, {"slurm", RenderSlurm}};

absl::Status Write(const RenderedFiles& files, const std::string& folder) {
  for (const RenderedFile& file : files) {
    const std::filesystem::path path = std::filesystem::path(folder) / file.path;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    std::ofstream out(path, std::ios::trunc);
    out << file.text;
    out.close();
    if (!out) return absl::InternalError(absl::StrCat("cannot write ", path.string()));
  }
  return absl::OkStatus();
}

absl::Status Render(const std::string& kind, const std::string& path, const std::string& folder) {
  const Kind* renderer = nullptr;
  for (const Kind& each : kKinds) {
    if (each.name == kind) renderer = &each;
  }
  if (renderer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot render \"", kind, "\": expected kubernetes, compose, systemd or slurm"));
  }
  WINNOW_ASSIGN_OR_RETURN(const Manifest manifest, LoadManifest(path));
  if (!KnowsMemory(manifest)) {
    std::fprintf(
        stderr,
        "note: the model %s is not on this machine: memory is limited to deploy.memory where that is said, and "
        "not checked\n",
        manifest.options.model.c_str());
  }
  WINNOW_ASSIGN_OR_RETURN(const RenderedFiles files,
                          renderer->render(manifest, std::filesystem::path(path).filename().string()));
  if (!folder.empty()) return Write(files, folder);
  for (const RenderedFile& file : files) {
    if (files.size() > 1) std::printf("%s# %s\n", &file == &files.front() ? "" : "---\n", file.path.c_str());
    std::fputs(file.text.c_str(), stdout);
  }
  return absl::OkStatus();
}

int RenderMain(const Arguments& arguments) {
  RenderOptions options;
  std::vector<std::string> words;
  if (const auto code = ParseCommandLine(kRenderCommand, arguments, options, &words)) return *code;
  if (words.size() != 2) {
    return Fail(kRenderCommand, absl::InvalidArgumentError("expected what to render as, and the manifest"), kExitUsage);
  }
  const absl::Status status = Render(words[0], words[1], options.out);
  return status.ok() ? kExitOk : Fail(kRenderCommand, status, kExitUsage);
}

std::vector<std::string> KindNames() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

const Command kRenderCommand = {.name = "deploy render",
                                .summary = "write what a manifest says as files of another tool, with the same values",
                                .synopsis = "kubernetes|compose|systemd|slurm FILE [--out DIR]",
                                .operands = {.first = KindNames, .files = true},
                                .options = Declared<RenderOptions>,
                                .run = RenderMain};
constexpr const Command* kDeploySubcommands[] = {&kRenderCommand};

}  // namespace

const Command kDeployCommand = {.name = "deploy",
                                .summary = "write a manifest as Kubernetes, compose, systemd or Slurm files",
                                .synopsis = "COMMAND",
                                .subcommands = kDeploySubcommands};

}  // namespace winnow
