#include "absl/cleanup/cleanup.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/role/cache_host.h"
#include "cmd/role/cache_rank_metrics.h"
#include "cmd/role/inference_rank_metrics.h"
#include "cmd/role/link_reports.h"
#include "cmd/role/machine.h"
#include "cmd/role/options/inference_options.h"
#include "cmd/role/options/model_options.h"
#include "cmd/role/options/opentelemetry.h"
#include "cmd/role/payload_paths.h"
#include "cmd/role/rank_options.h"
#include "cmd/role/role_process.h"
#include "common/base/logging.h"
#include "common/rpc/identity.h"
#include "inference_rank/service/inference_rank.h"

namespace winnow {
namespace {

TransportOptions TransportOptionsOf(uint64_t incarnation) {
  TransportOptions options;
  options.incarnation = incarnation;
  return options;
}

void LogPeerLink(const std::string& cache_rank, const absl::Status& peer_link) {
  if (peer_link.ok()) {
    spdlog::info("decode steps with {} run from GPU to GPU (p2p)", cache_rank);
  } else if (peer_link.code() == absl::StatusCode::kUnavailable) {
    spdlog::error("decode steps with {} go by frames from now on: {}", cache_rank, std::string(peer_link.message()));
  } else {
    spdlog::info("steps that {} selects for go by frames: {}", cache_rank, std::string(peer_link.message()));
  }
}

v1::Phases PhasesOf(InferenceRole role) {
  switch (role) {
    case InferenceRole::kPrefill:
      return v1::PHASES_PREFILL;
    case InferenceRole::kDecode:
      return v1::PHASES_DECODE;
    case InferenceRole::kBoth:
      return v1::PHASES_BOTH;
  }
  return v1::PHASES_UNSPECIFIED;
}

// What an inference process is made of; with transport inproc it hosts a cache rank too.
struct Parts {
  std::unique_ptr<CacheHost> cache;
  std::unique_ptr<InferenceRank> rank;
  LinkReports links;
};

absl::StatusOr<Parts> MakeParts(const InferenceProcessOptions& options, RoleProcess& process) {
  Parts parts;
  const v1::Identity& identity = process.identity();
  WINNOW_ASSIGN_OR_RETURN(InferenceRankOptions rank_options, RankOptionsOf(options));
  rank_options.on_peer_link = LogPeerLink;
  rank_options.credentials = process.credentials();
  rank_options.spans = process.spans();
  rank_options.on_device_failure = [&process](const absl::Status& why, const std::string& dump) {
    spdlog::critical("{}", dump);
    process.StopServing();
    process.Fail(why);
  };
  rank_options.on_prefilled_by_layer = [](uint32_t tokens, size_t kv_bytes, size_t residual_bytes) {
    constexpr double kMib = 1 << 20;
    spdlog::info("prefilled {} tokens layer by layer: one layer's KV {:.1f} MiB + residuals {:.1f} MiB = {:.1f} MiB",
                 tokens, kv_bytes / kMib, residual_bytes / kMib, (kv_bytes + residual_bytes) / kMib);
  };
  std::unique_ptr<Transport> transport;
  if (options.transport == TransportKind::kInproc) {
    v1::Identity cache = MakeIdentity(identity.cluster(), v1::ROLE_CACHE_RANK, "cache-of-" + identity.rank());
    cache.set_address(identity.address());
    WINNOW_ASSIGN_OR_RETURN(
        parts.cache, CacheHost::Create(options.cache, cache,
                                       NewInprocTransport(TransportOptionsOf(cache.incarnation())), process.spans()));
    transport = NewInprocTransport(TransportOptionsOf(identity.incarnation()));
  } else {
    const bool has_tls = process.credentials().encrypted();
    WINNOW_RETURN_IF_ERROR(CheckDataPlane(options.data_plane, has_tls));
    TransportOptions transport_options = TransportOptionsOf(identity.incarnation());
    transport_options.data_plane_mode = options.data_plane;
    transport_options.keys_are_secret = has_tls;
    parts.links.Attach(transport_options);
    if (options.transport != TransportKind::kUcx) {
      const PayloadPaths paths(options.device);
      if (options.transport == TransportKind::kNccl) {
        paths.AddNccl(transport_options);
      } else {
        paths.AddP2p(transport_options);
      }
    }
    WINNOW_ASSIGN_OR_RETURN(transport, NewUcxTransport(transport_options));
  }
  WINNOW_ASSIGN_OR_RETURN(parts.rank, InferenceRank::Create(rank_options, std::move(transport), identity));
  return parts;
}

absl::Status Run(const InferenceProcessOptions& options, std::string options_yaml) {
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<RoleProcess> process,
                          RoleProcess::Begin("inference-rank", v1::ROLE_INFERENCE_RANK, options.process,
                                             std::move(options_yaml), options.join));
  WINNOW_ASSIGN_OR_RETURN(const Parts parts, MakeParts(options, *process));
  InferenceRank& rank = *parts.rank;
  for (const std::string& warning : rank.warnings()) spdlog::warn("{}", warning);
  spdlog::info("computes on {}", rank.device_description());
  spdlog::info("memory plan: {}", rank.memory_plan().ToString());
  process->metrics().AddSource([&rank, links = parts.links](FamilyWriter& writer) {
    WriteMetrics(rank.metrics(), writer);
    links.Write(writer);
  });
  std::vector<NamedService> services;
  std::vector<NamedTimeline> timelines = {{"engine", &rank.timeline()}};
  for (grpc::Service* service : rank.services()) services.push_back(Named<v1::RankService>(service));
  if (parts.cache != nullptr) {
    CacheRank& cache = parts.cache->rank();
    process->metrics().AddSource([&cache](FamilyWriter& writer) { WriteMetrics(cache.metrics().Snapshot(), writer); },
                                 {{"role", "cache-rank"}, {"rank", cache.options().identity.rank()}});
    for (NamedService& service : parts.cache->services()) services.push_back(std::move(service));
    timelines.push_back({"hosted data plane", &cache.timeline()});
    cache.Start();
  }
  rank.Start();
  const absl::Cleanup stop = [&] {
    // Out of the router's table first: no new work comes. What is under way is failed as retryable, and continued
    // elsewhere.
    process->Leave();
    rank.Stop();
    if (parts.cache != nullptr) parts.cache->rank().Stop();
    process->Shutdown();
  };
  WINNOW_RETURN_IF_ERROR(process->Serve(
      std::move(services), rank.fingerprint(), [&rank] { return rank.load(); }, std::move(timelines)));

  std::vector<RoleProcess::Membership> memberships;
  if (parts.cache != nullptr) {
    CacheRank& cache = parts.cache->rank();
    memberships.push_back({parts.cache->Registration(process->metrics_address(), process->identity().rank()),
                           [&cache] { return cache.Load(); }});
  }
  v1::RegisterRequest registration;
  *registration.mutable_identity() = process->identity();
  *registration.mutable_fingerprint() = rank.fingerprint();
  *registration.mutable_limits() = rank.limits();
  registration.set_phases(PhasesOf(options.role));
  registration.set_decode_prefill_tokens(options.decode_prefill_tokens);
  registration.set_metrics_address(process->metrics_address());
  memberships.push_back({std::move(registration), [&rank] { return rank.load(); },
                         [&rank](const std::vector<v1::Identity>& cache_ranks) { rank.NoteExpired(cache_ranks); }});
  process->Join(std::move(memberships));

  return process->WaitForStop();
}

int InferenceRankMain(const Arguments& arguments) {
  InferenceProcessOptions options;
  options.process.tracing = OpenTelemetryDefaults::Read().tracing;
  if (const auto code = ParseCommandLine(kInferenceRankCommand, arguments, options)) return *code;
  if (const absl::Status model = CheckModelOption(options.model); !model.ok())
    return Fail(kInferenceRankCommand, model, 2);
  if (const absl::Status context = CheckMaxContext(options.max_context); !context.ok()) {
    return Fail(kInferenceRankCommand, context, 2);
  }
  const absl::Status status = Run(options, DumpYaml(Fields::Of(options)));
  return status.ok() ? 0 : Fail(kInferenceRankCommand, status);
}

}  // namespace

const Command kInferenceRankCommand = {.name = "inference-rank",
                                       .summary = "run an inference rank",
                                       .synopsis = "--model DIR [--option=value ...]",
                                       .environment = Environment::kRead,
                                       .options = Declared<InferenceProcessOptions>,
                                       .run = InferenceRankMain};

}  // namespace winnow
