#include "cmd/render/plan.h"

#include <algorithm>

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

// The GPU without its number: each rank gets its own.
DeviceChoice AnyOf(const DeviceChoice& device) {
  return {device.kind, 0};
}

RankGroup InferenceGroup(const UpOptions& options, int index, int first, int count) {
  InferenceProcessOptions rank = options.InferenceRank(index, {"router", 1});
  rank.join = {.routers = {}, .discovery = options.discovery, .advertise = ""};
  rank.threads = rank.cache.threads = options.threads;
  rank.cache.memory_bytes = options.cache_memory_bytes;
  const int gpus = rank.device.kind == DeviceChoice::Kind::kCuda
                       ? std::max(rank.device.num_named(), std::max(1, options.tensor_parallel))
                       : 0;
  if (gpus > 1) rank.tensor_parallel = gpus;
  rank.device = AnyOf(rank.device);
  rank.cache.device = AnyOf(rank.cache.device);
  const InferenceProcessOptions plain;
  if (!options.hosts_cache()) rank.cache = plain.cache;
  std::string name = options.InferenceRankName(index);
  return {name.substr(0, name.rfind('-')), "inference-rank", FlagsOf(rank, plain), true, first, count, gpus};
}

RankGroup CacheGroup(const UpOptions& options) {
  CacheProcessOptions rank = options.CacheRank(0, {"router", 1});
  rank.join = {.routers = {}, .discovery = options.discovery, .advertise = ""};
  rank.cache.threads = options.threads;
  rank.cache.memory_bytes = options.cache_memory_bytes;
  const int gpus = rank.cache.device.kind == DeviceChoice::Kind::kCuda ? 1 : 0;
  rank.cache.device = AnyOf(rank.cache.device);
  const bool needs_model = !rank.cache.model.empty() || !rank.cache.lane_model.empty();
  return {"cache",
          "cache-rank",
          FlagsOf(rank, CacheProcessOptions()),
          needs_model,
          options.part.first_cache,
          options.cache_ranks,
          gpus};
}

}  // namespace

DeployPlan PlanPart(const UpOptions& options, const DeployOptions& deploy, const std::string& model_in_container) {
  DeployPlan plan;
  plan.deploy = deploy;
  plan.cluster = options.cluster;
  plan.model = deploy.model_path.empty() ? options.model : deploy.model_path;
  plan.has_router = options.part.has_router;
  UpOptions of = options;
  of.model = model_in_container.empty() ? plan.model : model_in_container;
  RouterProcessOptions router = of.Router();
  router.http = RouterProcessOptions().http;
  plan.router_flags = FlagsOf(router, RouterProcessOptions());
  if (!options.splits_phases() && options.inference_ranks > 0) {
    plan.groups.push_back(InferenceGroup(of, 0, options.part.first_inference, options.inference_ranks));
  }
  if (options.prefill_ranks > 0) {
    plan.groups.push_back(InferenceGroup(of, 0, options.part.first_prefill, options.prefill_ranks));
  }
  if (options.decode_ranks > 0) {
    plan.groups.push_back(InferenceGroup(of, options.prefill_ranks, options.part.first_decode, options.decode_ranks));
  }
  if (!options.hosts_cache() && options.cache_ranks > 0) plan.groups.push_back(CacheGroup(of));
  plan.http_port = options.http.port;
  plan.grpc_port = options.grpc.port;
  plan.metrics_port = options.metrics.port;
  plan.stop_seconds =
      static_cast<int>(std::chrono::ceil<std::chrono::seconds>(options.drain_delay + options.stop_grace).count()) + 10;
  return plan;
}

absl::StatusOr<DeployPlan> PlanCluster(const Manifest& manifest, const std::string& model_in_container) {
  if (manifest.nodes.empty()) return PlanPart(manifest.options, manifest.deploy, model_in_container);
  DeployPlan whole;
  for (const ManifestNode& node : manifest.nodes) {
    WINNOW_ASSIGN_OR_RETURN(UpOptions options, manifest.OptionsOf(node.name));
    DeployPlan part = PlanPart(options, manifest.deploy, model_in_container);
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
    whole = std::move(part);
    whole.groups = std::move(groups);
    whole.has_router = true;
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

absl::Status CheckNeedsNoFiles(const Manifest& manifest) {
  if (!manifest.options.selection.head_profile.empty()) {
    return absl::UnimplementedError("selection.head_profile is a file, which containers would not have");
  }
  if (!manifest.options.api_keys.empty()) {
    return absl::UnimplementedError("router.api_keys is a file, which containers would not have");
  }
  if (!manifest.options.security.tls_cert.empty() || !manifest.options.http_tls.files.certificate.empty()) {
    return absl::UnimplementedError(
        "security.tls_cert and security.http_tls_cert are files, which containers would not have");
  }
  return absl::OkStatus();
}

std::string RenderedHeader(std::string_view kind, std::string_view source) {
  return absl::StrCat("# Written by `winnow deploy render ", AbslSv(kind), " ", AbslSv(source),
                      "`: change that file instead.\n");
}

}  // namespace winnow
