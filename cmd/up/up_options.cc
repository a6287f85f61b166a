#include "cmd/up/up_options.h"

#include <algorithm>
#include <map>
#include <string>

#include "cache_rank/store/kv_block_pool.h"
#include "cache_rank/store/row_tiers.h"
#include "cmd/role/machine.h"
#include "cmd/role/options/model_options.h"
#include "cmd/up/child_process.h"
#include "common/base/gpu_kv_rows.h"
#include "common/base/kv_shard.h"
#include "common/model/synthetic_models.h"
#include "common/selection/head_profile.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

// Port 0 stays: it takes a free one.
HostPort PortsOn(HostPort address, int ports) {
  if (address.port != 0) address.port = static_cast<uint16_t>(address.port + ports);
  return address;
}

}  // namespace

void UpOptions::Declare(Fields& fields) {
  fields.Text("cluster", &cluster, "Name that all processes of a cluster share; others are refused.");
  discovery.Declare(fields);
  fields.Folder(
      "model", &model,
      absl::StrCat("Folder of the model: config.json, safetensors and a tokenizer (tokenizer.json, tokenizer.model, "
                   "*.tiktoken or vocab.txt); or, on GPUs, a shape with random weights, for measuring: ",
                   SyntheticModelNames(), ". Required."));
  fields.Text(
      "model-id", &model_id,
      "Names of the model in the APIs, separated by commas; answers to requests that name none have the first. Empty = "
      "the folder's name.");
  fields.File(
      "file", &file,
      "Manifest (YAML) of the cluster; -f FILE for short. Environment, --config and the command line win over it. "
      "`winnow config check FILE` checks one, `winnow config schema` describes them.");
  fields.Text("node", &node, "With a manifest that has nodes: the one that this machine is; its part is started.");
  fields.Address("http", &http, "OpenAI-compatible HTTP API. Port 0 takes a free one, here and below.");
  http_tls.Declare(fields);
  http_api.Declare(fields);
  chat.Declare(fields);
  fields.Address("grpc", &grpc, "gRPC API, and where the ranks register.");
  fields.Address("metrics", &metrics, "/metrics of the router; the other processes take the next ports, one each.");
  fields.Integer(
      "routers", &routers,
      absl::StrCat("Processes that clients connect to: each serves any request, and knows all ranks. Ports of "
                   "--http and --grpc are those of the first; each further one is ",
                   kRouterPortStep, " ports on."),
      1, 16);
  fields.Integer("inference-ranks", &inference_ranks,
                 "Processes that hold the weights and compute; each loads the model into memory of its own.", 1, 64);
  fields.Integer(
      "prefill-ranks", &prefill_ranks,
      "With --decode-ranks, instead of --inference-ranks: processes that compute prompts alone and hand them "
      "over, by way of the cache ranks, after the first token. Prompts then do not hold up running answers.",
      0, 64);
  fields.Integer("decode-ranks", &decode_ranks, "Processes that take over from --prefill-ranks and decode.", 0, 64);
  DeclareDecodePrefillTokens(fields, &decode_prefill_tokens);
  fields.Integer("cache-ranks", &cache_ranks, "Processes that hold the KV. Without effect with transport inproc.", 1,
                 64);
  selection.Declare(fields);
  DeclareTransport(fields, &transport);
  DeclareSelectInPlace(fields, &select_in_place);
  DeclareDevice(fields, &device, &tensor_parallel);
  fields.Custom(
      "cache-device", "auto|cpu|cuda[:N]",
      "Where cache ranks score keys and select rows: --device of "
      "`winnow cache-rank`. Each cache rank takes the next GPU.",
      [this](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(cache_device, ParseDeviceChoice(text));
        return cache_device.more.empty() ? absl::OkStatus() : absl::InvalidArgumentError("name the first GPU alone");
      },
      [this] { return ToString(cache_device); });
  DeclareCompute(fields, &compute);
  DeclareKvDtype(fields, &kv_dtype);
  DeclareMaxContext(fields, &max_context);
  DeclareMaxRunning(fields, &max_running);
  prefill.Declare(fields);
  scheduling.Declare(fields);
  DeclareResumeGrace(fields, &resume_grace);
  DeclareApiKeys(fields, &api_keys);
  security.Declare(fields);
  DeclareDataPlane(fields, &data_plane);
  placement.Declare(fields);
  DeclareMaxQueue(fields, &max_queue);
  fields.Integer("threads", &threads, "Compute threads of each rank; 0 = the machine's cores, shared out.", 0, 1024);
  DeclareSlotMemory(fields, &slot_memory_bytes, &slot_host_memory_bytes);
  fields.Bytes("cache-memory", &cache_memory_bytes,
               "Memory for KV of each cache rank; 0 = 30 % of what is free, shared out.");
  DeclareFastMemory(fields, &fast_memory_bytes);
  DeclareScrub(fields, &scrub_bytes_per_s);
  fields.Bytes("cache-device-memory", &cache_device_memory_bytes,
               "Memory of each cache rank's GPU (--device-memory of `winnow "
               "cache-rank`); 0 = nine tenths of what is free.");
  DeclareDeviceHostMemory(fields, "cache-device-host-memory", &cache_device_host_memory_bytes);
  DeclarePrefixCache(fields, &prefix_cache, &prefix_cache_memory_bytes);
  DeclareDrainDelay(fields, &drain_delay);
  DeclareStopGrace(fields, &stop_grace);
  log.Declare(fields, "Of all processes");
  tracing.Declare(fields);
  reports.Declare(fields);
}

absl::Status UpOptions::Validate() const {
  WINNOW_RETURN_IF_ERROR(CheckModelOption(model));
  WINNOW_RETURN_IF_ERROR(CheckConsistency());
  if (!selection.head_profile.empty()) WINNOW_RETURN_IF_ERROR(HeadProfile::Load(selection.head_profile).status());
  return CheckCacheMemory();
}

absl::Status UpOptions::CheckConsistency() const {
  WINNOW_RETURN_IF_ERROR(CheckMaxContext(max_context));
  const bool alone = part.host.empty();
  if (alone && (prefill_ranks > 0) != (decode_ranks > 0)) {
    return absl::InvalidArgumentError("--prefill-ranks and --decode-ranks need each other");
  }
  if (alone && splits_phases() && inference_ranks != UpOptions().inference_ranks) {
    return absl::InvalidArgumentError("--inference-ranks and --prefill-ranks with --decode-ranks exclude each other");
  }
  if (splits_phases() && hosts_cache()) {
    return absl::InvalidArgumentError(
        "--prefill-ranks needs cache ranks that all ranks reach: --transport=inproc has none");
  }
  if (placement.cache_shards != 1 && hosts_cache()) {
    return absl::InvalidArgumentError(
        "--cache-shards needs cache ranks that are processes of their own: --transport=inproc has none");
  }
  const int all_cache_ranks = alone ? cache_ranks : part.all_cache_ranks;
  WINNOW_RETURN_IF_ERROR(placement.Check());
  if (placement.replicas > 1 && hosts_cache()) {
    return absl::InvalidArgumentError(
        "--replicas=2 needs cache ranks that are processes of their own: --transport=inproc has none");
  }
  if (placement.replicas > static_cast<uint32_t>(all_cache_ranks)) {
    return absl::InvalidArgumentError(absl::StrCat("--replicas=", placement.replicas,
                                                   " needs as many cache ranks: --cache-ranks is ", all_cache_ranks));
  }
  if (placement.cache_shards > static_cast<uint32_t>(all_cache_ranks)) {
    return absl::InvalidArgumentError(absl::StrCat("--cache-shards=", placement.cache_shards,
                                                   " needs as many cache ranks: --cache-ranks is ", all_cache_ranks));
  }
  if (!alone && routers > 1) {
    return absl::InvalidArgumentError("--routers: of a cluster over several nodes each has one router, or none");
  }
  for (const auto& [option, address] : {std::pair("--http", http), std::pair("--grpc", grpc)}) {
    if (address.port != 0 && address.port + (routers - 1) * kRouterPortStep > 65535) {
      return absl::InvalidArgumentError(absl::StrCat(option, ": the ports of ", routers, " routers from ", address.port,
                                                     " on, ", kRouterPortStep, " apart, do not exist"));
    }
  }
  if (metrics.port != 0 && metrics.port + num_processes() - 1 > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics: ", num_processes(), " ports from ", metrics.port, " on do not exist"));
  }
  WINNOW_RETURN_IF_ERROR(CheckPortsDiffer());
  WINNOW_RETURN_IF_ERROR(CheckExposure());
  if (num_inference_ranks() > 0) {
    WINNOW_RETURN_IF_ERROR(GpusOfRank(device, tensor_parallel, 0, num_inference_ranks()).status());
  }
  WINNOW_RETURN_IF_ERROR(CheckKvDtype());
  return selection.Resolve(model).status();
}

absl::Status UpOptions::CheckKvDtype() const {
  if (kv_dtype == Dtype::kBf16) return absl::OkStatus();
  const absl::StatusOr<ModelConfig> config = ModelConfigOf(model);
  if (!config.ok()) return absl::OkStatus();  // it has an error of its own
  const bool must_compute_on_gpu = device.kind == DeviceChoice::Kind::kGpu || tensor_parallel > 1;
  if (must_compute_on_gpu || select_in_place == SelectInPlace::kOn) {
    const int gpus = std::max(static_cast<int>(tensor_parallel), static_cast<int>(device.more.size()) + 1);
    WINNOW_RETURN_IF_ERROR(
        CheckKvRowsOnGpus(kv_dtype, gpus, static_cast<uint64_t>(slot_host_memory_bytes), config->head_dim));
  }
  if (cache_device.kind == DeviceChoice::Kind::kGpu) return CheckKvRowsOnCacheGpu(kv_dtype);
  if (kv_dtype != Dtype::kI8) return absl::OkStatus();
  const absl::StatusOr<SelectionSpec> spec = selection.Resolve(model);
  if (!spec.ok()) return absl::OkStatus();
  // Budgets by head are none of this.
  SelectionSpec without_budgets = *spec;
  without_budgets.head_budgets.clear();
  return CheckFitsModel(without_budgets, config->kv_layout(kv_dtype));
}

absl::Status UpOptions::CheckExposure() const {
  WINNOW_ASSIGN_OR_RETURN(const TlsFiles files, security.FilesFor(""));
  WINNOW_RETURN_IF_ERROR(CheckDataPlane(data_plane, !files.empty()));
  if (part.has_router) {
    WINNOW_RETURN_IF_ERROR(security.CheckExposure("http", http, !http_tls.files.empty()));
    WINNOW_RETURN_IF_ERROR(security.CheckExposure("grpc", grpc, !files.empty()));
  }
  // Ranks of several machines listen where the others reach them.
  if (part.host.empty()) return absl::OkStatus();
  return security.CheckExposure("grpc", {part.host, grpc.port}, !files.empty());
}

// Each would find its port free before the others listen.
absl::Status UpOptions::CheckPortsDiffer() const {
  std::map<std::string, std::string> users;
  const auto use = [&users](const HostPort& address, const std::string& user) -> absl::Status {
    const auto [other, is_first] = users.try_emplace(address.ToString(), user);
    if (is_first || address.port == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(address.ToString(), " is wanted twice: by ", other->second, " and by ", user));
  };
  if (part.has_router) {
    for (int i = 0; i < routers; ++i) {
      const std::string of = routers > 1 ? " of " + RouterName(i) : "";
      WINNOW_RETURN_IF_ERROR(use(HttpAddress(i), "--http" + of));
      WINNOW_RETURN_IF_ERROR(use(GrpcAddress(i), "--grpc" + of));
    }
  }
  for (int process = 0; process < num_processes(); ++process) {
    WINNOW_RETURN_IF_ERROR(use(MetricsAddress(process), absl::StrCat("--metrics=", metrics.ToString(), ", from which ",
                                                                     num_processes(), " processes take one each")));
  }
  return absl::OkStatus();
}

absl::Status UpOptions::CheckCacheMemory() const {
  if (cache_memory_bytes == 0 && fast_memory_bytes == 0) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOf(model));
  const KvLayout layout = config.kv_layout(kv_dtype);
  if (fast_memory_bytes > 0) {
    RowTiers::Options tiers;
    tiers.fast.memory_bytes = static_cast<size_t>(fast_memory_bytes);
    WINNOW_RETURN_IF_ERROR(RowTiers::CheckMemory(tiers, layout));
  }
  if (cache_memory_bytes == 0) return absl::OkStatus();
  const int shards = placement.cache_shards > 0 ? static_cast<int>(placement.cache_shards) : cache_ranks;
  const int most = static_cast<int>(layout.num_lists());
  WINNOW_ASSIGN_OR_RETURN(const std::vector<KvShard> parts, CutIntoShards(layout, std::min(shards, most)));
  size_t num_lists = 0;
  for (const KvShard& part : parts) num_lists = std::max(num_lists, part.num_lists());
  return CheckPoolMemory(static_cast<size_t>(cache_memory_bytes), layout, num_lists);
}

std::string UpOptions::RouterName(int index) const {
  return absl::StrCat("router-", part.first_router + index);
}

std::string UpOptions::InferenceRankName(int index) const {
  if (!splits_phases()) return absl::StrCat("inference-", part.first_inference + index);
  return index < prefill_ranks ? absl::StrCat("prefill-", part.first_prefill + index)
                               : absl::StrCat("decode-", part.first_decode + index - prefill_ranks);
}

std::string UpOptions::CacheRankName(int index) const {
  return absl::StrCat("cache-", part.first_cache + index);
}

HostPort UpOptions::MetricsAddress(int process) const {
  return PortsOn(metrics, process);
}

HostPort UpOptions::HttpAddress(int index) const {
  return PortsOn(http, index * kRouterPortStep);
}

HostPort UpOptions::GrpcAddress(int index) const {
  return PortsOn(grpc, index * kRouterPortStep);
}

RouterProcessOptions UpOptions::Router(int index) const {
  RouterProcessOptions options;
  options.process.cluster = cluster;
  options.process.rank = RouterName(index);
  options.process.grpc = GrpcAddress(index);
  options.process.metrics = MetricsAddress(index);
  options.process.security = security;
  options.process.log = log;
  options.process.tracing = tracing;
  options.process.report_fd = kReportFd;
  options.discovery = discovery;
  options.model = model;
  options.model_id = model_id;
  options.http = HttpAddress(index);
  options.http_tls = http_tls;
  options.http_api = http_api;
  options.chat = chat;
  options.selection = selection;
  options.api_keys = api_keys;
  options.placement = placement;
  options.max_queue = max_queue;
  options.drain_delay = drain_delay;
  options.stop_grace = stop_grace;
  options.reports = reports;
  return options;
}

InferenceProcessOptions UpOptions::InferenceRank(int index, const std::vector<HostPort>& known_routers) const {
  InferenceProcessOptions options;
  options.process.cluster = cluster;
  options.process.rank = InferenceRankName(index);
  if (!part.host.empty()) options.process.grpc.host = part.host;
  options.process.metrics = MetricsAddress(routers + index);
  options.process.security = security;
  options.process.log = log;
  options.process.tracing = tracing;
  options.process.report_fd = kReportFd;
  options.join.routers = known_routers;
  options.join.discovery = discovery;
  options.model = model;
  if (splits_phases()) options.role = index < prefill_ranks ? InferenceRole::kPrefill : InferenceRole::kDecode;
  options.decode_prefill_tokens = decode_prefill_tokens;
  options.transport = transport;
  options.data_plane = data_plane;
  options.select_in_place = select_in_place;
  options.device = device;
  // GPUs of its own: two processes on one would take turns.
  const absl::StatusOr<std::vector<int>> gpus = GpusOfRank(device, tensor_parallel, index, num_inference_ranks());
  if (device.kind != DeviceChoice::Kind::kCpu && gpus.ok()) {
    options.device.ordinal = gpus->front();
    options.device.more.assign(gpus->begin() + 1, gpus->end());
  }
  options.compute = compute;
  options.kv_dtype = kv_dtype;
  options.threads = threads > 0 ? threads : std::max(1, UsableCores() / num_inference_ranks());
  options.max_context = max_context;
  options.max_running = max_running;
  options.prefill = prefill;
  options.scheduling = scheduling;
  options.resume_grace = resume_grace;
  options.slot_memory_bytes = slot_memory_bytes;
  options.slot_host_memory_bytes = slot_host_memory_bytes;
  options.selection = selection;
  options.cache = CacheRank(index, known_routers).cache;
  if (hosts_cache()) options.cache.threads = options.threads;
  return options;
}

CacheProcessOptions UpOptions::CacheRank(int index, const std::vector<HostPort>& known_routers) const {
  CacheProcessOptions options;
  options.process.cluster = cluster;
  options.process.rank = CacheRankName(index);
  if (!part.host.empty()) options.process.grpc.host = part.host;
  options.process.metrics = MetricsAddress(routers + num_inference_ranks() + index);
  options.process.security = security;
  options.process.log = log;
  options.process.tracing = tracing;
  options.process.report_fd = kReportFd;
  options.join.routers = known_routers;
  options.join.discovery = discovery;
  options.data_plane = data_plane;
  const int hosts = hosts_cache() ? num_inference_ranks() : cache_ranks;
  options.cache.memory_bytes = cache_memory_bytes;
  options.cache.fast_memory_bytes = fast_memory_bytes;
  options.cache.scrub_bytes_per_s = scrub_bytes_per_s;
  options.cache.device_memory_bytes = cache_device_memory_bytes;
  options.cache.device_host_memory_bytes = cache_device_host_memory_bytes;
  options.cache.prefix_cache = prefix_cache;
  options.cache.prefix_cache_memory_bytes = prefix_cache_memory_bytes;
  options.cache.device = cache_device;
  if (cache_device.kind != DeviceChoice::Kind::kCpu) options.cache.device.ordinal += index;
  if (cache_memory_bytes == 0 && hosts > 1) options.cache.memory_bytes = FreeMemoryBytes() * 3 / 10 / hosts;
  options.cache.threads = threads > 0 ? threads : std::max(1, UsableCores() / std::max(1, cache_ranks));
  const absl::StatusOr<SelectionSpec> spec = selection.Resolve(model);
  if (spec.ok() && spec->predictor == Predictor::kDepth && spec->projection == Projection::kCacheRank) {
    options.cache.model = model;
    options.cache.compute = compute == Dtype::kF8 ? Dtype::kBf16 : compute;
  }
  const bool may_have_peer_links = cache_device.kind != DeviceChoice::Kind::kCpu &&
                                   (transport == TransportKind::kAuto || transport == TransportKind::kP2p);
  if (spec.ok() && spec->predictor == Predictor::kDepth && may_have_peer_links) options.cache.peer_model = model;
  return options;
}

}  // namespace winnow
