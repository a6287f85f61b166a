#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/manifest/manifest.h"
#include "cmd/render/mounted_folders.h"
#include "common/base/status.h"

namespace winnow {

// Ranks that differ in their number alone.
struct RankGroup {
  std::string name;                         // "inference", "prefill", "decode", "cache": ranks are name-0, name-1, ...
  std::string command;                      // of `winnow`
  std::vector<std::string> flags;           // without name, addresses and router
  std::vector<NeededFile> files;            // that the flags name
  std::vector<MountedFolder> folders = {};  // of the files, in containers
  bool needs_model = false;
  int first = 0;  // the lowest number
  int count = 0;
  int gpus = 0;              // of each
  int64_t memory_bytes = 0;  // that each may take; 0: any
};

// A manifest as processes with their command lines. Of the machine where it is made it depends on one thing: without
// the model nothing is said of memory that the manifest does not say.
struct DeployPlan {
  DeployOptions deploy;
  std::string cluster;
  std::string model;  // folder on the machines
  int routers = 1;
  bool has_registry = false;
  bool has_replicas = false;                  // cache ranks feed each other
  std::vector<std::string> router_flags;      // without name and addresses
  std::vector<NeededFile> router_files;       // that the flags name
  std::vector<MountedFolder> router_folders;  // of the files, in containers
  std::vector<RankGroup> groups;
  uint16_t http_port = 8000;
  uint16_t grpc_port = 8001;
  uint16_t metrics_port = 9100;
  int stop_seconds = 0;  // from SIGTERM until the router has ended
};

// Whether the model is here, without which limits of memory cannot be worked out.
bool KnowsMemory(const Manifest& manifest);

// Where containers have the model; "" where a plan's processes run on the machines themselves.
inline constexpr char kModelInContainer[] = "/model";

// The whole cluster, wherever it runs, with the registry where deploy.registry says it is. INVALID_ARGUMENT when nodes
// differ in what a group must have in common, RESOURCE_EXHAUSTED for ranks that deploy.memory does not hold.
absl::StatusOr<DeployPlan> PlanCluster(const Manifest& manifest, const std::string& model_in_container);
// What runs on one machine, with the registry where the manifest says it is: of the node, or of a manifest without
// nodes.
absl::StatusOr<DeployPlan> PlanPart(const UpOptions& options, const DeployOptions& deploy,
                                    const std::string& model_in_container);

// FAILED_PRECONDITION for a manifest that says neither how others are kept out nor that they need not be.
absl::Status CheckMayBeReached(const Manifest& manifest);

// FAILED_PRECONDITION for a registry on loopback, which would be another place in each container or on each machine.
absl::Status CheckRegistryIsReached(const Manifest& manifest);

// INVALID_ARGUMENT for routers on ports that only they would know.
absl::Status CheckPortsAreKnown(const Manifest& manifest);

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
