#include "cmd/render/plan.h"

#include <algorithm>

#include "cmd/plan/rank_sizes.h"
#include "cmd/role/options/model_options.h"
#include "common/config/host_address.h"

namespace winnow {
namespace {

// The options whose values are not the defaults.
template <class Options>
std::vector<std::string> FlagsOf(Options options, const Options& plain) {
  // Where it runs is the renderer's to say.
  const SecurityOptions security = options.process.security;
  options.process = plain.process;
  options.process.security = security;
  Options defaults = plain;
  const Fields fields = Fields::Of(options), others = Fields::Of(defaults);
  std::vector<std::string> flags;
  for (size_t i = 0; i < fields.all().size(); ++i) {
    const std::string value = fields.all()[i].format();
    if (value != others.all()[i].format()) flags.push_back(absl::StrCat("--", fields.all()[i].name, "=", value));
  }
  return flags;
}

// The files among the options whose values are not the defaults.
template <class Options>
std::vector<NeededFile> FilesOf(Options options, Options plain) {
  const Fields fields = Fields::Of(options), others = Fields::Of(plain);
  std::vector<NeededFile> files;
  for (size_t i = 0; i < fields.all().size(); ++i) {
    const Field& field = fields.all()[i];
    if (field.kind != FieldKind::kFile || field.format() == others.all()[i].format()) continue;
    files.push_back({field.name, field.format()});
  }
  return files;
}

// The GPU without its number: each rank gets its own.
DeviceChoice AnyOf(const DeviceChoice& device) {
  return {device.kind, 0};
}

RankGroup InferenceGroup(const UpOptions& options, int index, int first, int count, int64_t limit_bytes) {
  InferenceProcessOptions rank = options.InferenceRank(index, {});
  rank.join = {.routers = {}, .discovery = options.discovery, .advertise = ""};
  rank.threads = rank.cache.threads = options.threads;
  rank.cache.memory_bytes = options.cache_memory_bytes;
  const int gpus = rank.device.kind == DeviceChoice::Kind::kGpu
                       ? std::max(rank.device.num_named(), std::max(1, options.tensor_parallel))
                       : 0;
  if (gpus > 1) rank.tensor_parallel = gpus;
  rank.device = AnyOf(rank.device);
  rank.cache.device = AnyOf(rank.cache.device);
  const InferenceProcessOptions plain;
  if (!options.hosts_cache()) rank.cache = plain.cache;
  std::string name = options.InferenceRankName(index);
  return {.name = name.substr(0, name.rfind('-')),
          .command = "inference-rank",
          .flags = FlagsOf(rank, plain),
          .files = FilesOf(rank, plain),
          .needs_model = true,
          .first = first,
          .count = count,
          .gpus = gpus,
          .memory_bytes = limit_bytes};
}

RankGroup CacheGroup(const UpOptions& options, int64_t limit_bytes) {
  CacheProcessOptions rank = options.CacheRank(0, {});
  rank.join = {.routers = {}, .discovery = options.discovery, .advertise = ""};
  rank.cache.threads = options.threads;
  rank.cache.memory_bytes = options.cache_memory_bytes;
  const int gpus = rank.cache.device.kind == DeviceChoice::Kind::kGpu ? 1 : 0;
  rank.cache.device = AnyOf(rank.cache.device);
  const bool needs_model = !rank.cache.model.empty() || !rank.cache.peer_model.empty();
  return {.name = "cache",
          .command = "cache-rank",
          .flags = FlagsOf(rank, CacheProcessOptions()),
          .files = FilesOf(rank, CacheProcessOptions()),
          .needs_model = needs_model,
          .first = options.part.first_cache,
          .count = options.cache_ranks,
          .gpus = gpus,
          .memory_bytes = limit_bytes};
}

bool ModelIsHere(const UpOptions& options) {
  return CheckModelOption(options.model).ok();
}

// Without the model only what the manifest says is known.
absl::StatusOr<RankSizes> SizesOf(const UpOptions& options, const DeployOptions& deploy) {
  if (ModelIsHere(options)) return SizeRanks(options, deploy.memory_bytes);
  return RankSizes{.inference_limit_bytes = deploy.memory_bytes, .cache_limit_bytes = deploy.memory_bytes};
}

void TakeIfGiven(int64_t bytes, int64_t& size) {
  if (bytes > 0) size = bytes;
}

}  // namespace

bool KnowsMemory(const Manifest& manifest) {
  return ModelIsHere(manifest.options);
}

absl::StatusOr<DeployPlan> PlanPart(const UpOptions& options, const DeployOptions& deploy,
                                    const std::string& model_in_container) {
  DeployPlan plan;
  plan.deploy = deploy;
  plan.cluster = options.cluster;
  plan.model = deploy.model_path.empty() ? options.model : deploy.model_path;
  plan.routers = options.part.has_router ? options.routers : 0;
  UpOptions of = options;
  WINNOW_ASSIGN_OR_RETURN(const RankSizes sizes, SizesOf(options, deploy));
  TakeIfGiven(sizes.slot_memory_bytes, of.slot_memory_bytes);
  TakeIfGiven(sizes.prefill_memory_bytes, of.prefill.memory_bytes);
  TakeIfGiven(sizes.cache_memory_bytes, of.cache_memory_bytes);
  plan.has_registry = of.discovery.registry.has_value();
  plan.has_replicas = of.placement.replicas > 1;
  of.model = model_in_container.empty() ? plan.model : model_in_container;
  RouterProcessOptions router = of.Router();
  router.http = RouterProcessOptions().http;
  plan.router_flags = FlagsOf(router, RouterProcessOptions());
  plan.router_files = FilesOf(router, RouterProcessOptions());
  if (!options.splits_phases() && options.inference_ranks > 0) {
    plan.groups.push_back(
        InferenceGroup(of, 0, options.part.first_inference, options.inference_ranks, sizes.inference_limit_bytes));
  }
  if (options.prefill_ranks > 0) {
    plan.groups.push_back(
        InferenceGroup(of, 0, options.part.first_prefill, options.prefill_ranks, sizes.inference_limit_bytes));
  }
  if (options.decode_ranks > 0) {
    plan.groups.push_back(InferenceGroup(of, options.prefill_ranks, options.part.first_decode, options.decode_ranks,
                                         sizes.inference_limit_bytes));
  }
  if (!options.hosts_cache() && options.cache_ranks > 0) plan.groups.push_back(CacheGroup(of, sizes.cache_limit_bytes));
  if (!model_in_container.empty()) {
    WINNOW_ASSIGN_OR_RETURN(plan.router_folders, MountedFolders(plan.router_files, "router"));
    for (RankGroup& group : plan.groups) {
      WINNOW_ASSIGN_OR_RETURN(group.folders, MountedFolders(group.files, group.command));
    }
  }
  plan.http_port = options.http.port;
  plan.grpc_port = options.grpc.port;
  plan.metrics_port = options.metrics.port;
  plan.stop_seconds =
      static_cast<int>(std::chrono::ceil<std::chrono::seconds>(options.drain_delay + options.stop_grace).count()) + 10;
  return plan;
}

absl::StatusOr<DeployPlan> PlanCluster(const Manifest& given, const std::string& model_in_container) {
  Manifest manifest = given;
  if (manifest.deploy.registry) manifest.options.discovery.registry = manifest.deploy.registry;
  if (manifest.nodes.empty()) return PlanPart(manifest.options, manifest.deploy, model_in_container);
  DeployPlan whole;
  whole.routers = 0;
  for (const ManifestNode& node : manifest.nodes) {
    WINNOW_ASSIGN_OR_RETURN(UpOptions options, manifest.OptionsOf(node.name));
    WINNOW_ASSIGN_OR_RETURN(DeployPlan part, PlanPart(options, manifest.deploy, model_in_container));
    std::vector<RankGroup> groups = std::move(whole.groups);
    for (RankGroup& group : part.groups) {
      const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.name == group.name; });
      if (same == groups.end()) {
        groups.push_back(std::move(group));
        continue;
      }
      if (same->flags != group.flags || same->gpus != group.gpus) {
        return absl::InvalidArgumentError(absl::StrCat("the ", group.name, " ranks of node ", node.name,
                                                       " have another device than those of the nodes before it"));
      }
      same->count += group.count;
    }
    const int routers = whole.routers + part.routers;
    whole = std::move(part);
    whole.groups = std::move(groups);
    whole.routers = routers;
  }
  return whole;
}

absl::Status CheckMayBeReached(const Manifest& manifest) {
  const UpOptions& options = manifest.options;
  if (options.security.insecure) return absl::OkStatus();
  if (!options.security.tls_cert.empty() && !options.http_tls.files.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "processes on several machines or in containers listen where others reach them, and without TLS: set "
      "security.insecure where the network is private");
}

absl::Status CheckRegistryIsReached(const Manifest& manifest) {
  const std::optional<RegistryUrl>& registry =
      manifest.deploy.registry ? manifest.deploy.registry : manifest.options.discovery.registry;
  if (!registry) return absl::OkStatus();
  for (const HostPort& member : registry->endpoints) {
    if (!IsLoopbackHost(member.host)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("registry ", registry->ToString(), ": ", member.host,
                     " is another place in each container and on each machine: say in deploy.registry where it is"));
  }
  return absl::OkStatus();
}

absl::Status CheckPortsAreKnown(const Manifest& manifest) {
  if (manifest.options.grpc.port != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "router.grpc: ranks that are rendered are told the port of their routers: name one");
}

std::string RenderedHeader(std::string_view kind, std::string_view source) {
  return absl::StrCat("# Written by `winnow deploy render ", AbslSv(kind), " ", AbslSv(source),
                      "`: change that file instead.\n");
}

}  // namespace winnow
