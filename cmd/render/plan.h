#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/manifest/manifest.h"
#include "common/base/status.h"

namespace winnow {

// Ranks that differ in their number alone.
struct RankGroup {
  std::string name;                // "inference", "prefill", "decode", "cache": ranks are name-0, name-1, ...
  std::string command;             // of `winnow`
  std::vector<std::string> flags;  // without name, addresses and router
  bool needs_model = false;
  int first = 0;  // the lowest number
  int count = 0;
  int gpus = 0;  // of each
};

// A manifest as processes with their command lines. Nothing in it depends on the machine where it is made.
struct DeployPlan {
  DeployOptions deploy;
  std::string cluster;
  std::string model;  // folder on the machines
  bool has_router = true;
  std::vector<std::string> router_flags;  // without addresses
  std::vector<RankGroup> groups;
  uint16_t http_port = 8000;
  uint16_t grpc_port = 8001;
  uint16_t metrics_port = 9100;
  int stop_seconds = 0;  // from SIGTERM until the router has ended
};

// Where containers have the model; "" where a plan's processes run on the machines themselves.
inline constexpr char kModelInContainer[] = "/model";

// The whole cluster, wherever it runs. INVALID_ARGUMENT when nodes differ in what a group must have in common.
absl::StatusOr<DeployPlan> PlanCluster(const Manifest& manifest, const std::string& model_in_container);
// What runs on one machine: of the node, or of a manifest without nodes.
DeployPlan PlanPart(const UpOptions& options, const DeployOptions& deploy, const std::string& model_in_container);

// UNIMPLEMENTED for options that name files, which containers do not have.
absl::Status CheckNeedsNoFiles(const Manifest& manifest);

// FAILED_PRECONDITION for a manifest that says neither how others are kept out nor that they need not be.
absl::Status CheckMayBeReached(const Manifest& manifest);

struct RenderedFile {
  std::string path;  // below the folder that is written
  std::string text;
};
using RenderedFiles = std::vector<RenderedFile>;

// `source` is the manifest's name, for the first line of each file.
absl::StatusOr<RenderedFiles> RenderKubernetes(const Manifest& manifest, std::string_view source);
absl::StatusOr<RenderedFiles> RenderCompose(const Manifest& manifest, std::string_view source);
absl::StatusOr<RenderedFiles> RenderSystemd(const Manifest& manifest, std::string_view source);
absl::StatusOr<RenderedFiles> RenderSlurm(const Manifest& manifest, std::string_view source);

// "# Written by `winnow deploy render kubernetes cpu.yaml`: change that file instead."
std::string RenderedHeader(std::string_view kind, std::string_view source);

}  // namespace winnow
