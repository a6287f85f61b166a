#include "engine/embedded_engine.h"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "clients/cpp/client.h"
#include "cmd/role/cache_host.h"
#include "cmd/role/machine.h"
#include "cmd/role/options/cache_options.h"
#include "cmd/role/options/selection_options.h"
#include "common/config/listen_address.h"
#include "common/metrics/metrics_registry.h"
#include "common/metrics/version.h"
#include "common/rpc/admin_service.h"
#include "common/rpc/channel.h"
#include "common/rpc/identity.h"
#include "common/rpc/membership_client.h"
#include "common/rpc/rpc_server.h"
#include "inference_rank/service/inference_rank.h"
#include "router/router.h"
#include "transport/inproc/inproc_transport.h"

namespace winnow {
namespace {

constexpr char kCluster[] = "engine";
// Joining takes milliseconds, on a machine that is busy seconds.
constexpr std::chrono::seconds kReadyLimit{60};
constexpr std::chrono::milliseconds kShutdownGrace{500};

absl::StatusOr<SelectionSpec> SelectionOf(const EmbeddedEngineOptions& options) {
  SelectionOptions selection;
  selection.specification = options.selection;
  selection.budget = options.budget_tokens;
  return selection.Resolve(options.model_dir);
}

TransportOptions TransportOf(const v1::Identity& identity) {
  TransportOptions options;
  options.incarnation = identity.incarnation();
  return options;
}

// A gRPC server with the services of one part of the cluster, and what tells other parts which one it is.
class PartServer {
 public:
  static absl::StatusOr<PartServer> Reserve(v1::Role role, const char* rank) {
    WINNOW_ASSIGN_OR_RETURN(ReservedAddress reserved, ReservedAddress::Reserve("127.0.0.1:0"));
    PartServer server;
    server.identity_ = MakeIdentity(kCluster, role, rank);
    server.identity_.set_address(reserved.address());
    server.reserved_ = std::make_unique<ReservedAddress>(std::move(reserved));
    return server;
  }

  absl::Status Serve(std::vector<NamedService> services, const v1::Fingerprint& fingerprint,
                     std::function<v1::RankLoad()> load) {
    v1::GetServerInfoResponse info;
    *info.mutable_identity() = identity_;
    *info.mutable_fingerprint() = fingerprint;
    info.set_version(std::string(Version()));
    admin_ = std::make_unique<AdminServiceImpl>(std::move(info), std::move(load));
    services.push_back(Named<v1::AdminService>(admin_.get()));
    WINNOW_ASSIGN_OR_RETURN(server_, RpcServer::Start(identity_.address(), services));
    reserved_ = nullptr;
    server_->SetServing(true);
    return absl::OkStatus();
  }
  void Shutdown() {
    if (server_ != nullptr) server_->Shutdown(kShutdownGrace);
  }
  const v1::Identity& identity() const { return identity_; }

 private:
  v1::Identity identity_;
  std::unique_ptr<ReservedAddress> reserved_;  // until Serve
  std::unique_ptr<AdminServiceImpl> admin_;
  std::unique_ptr<RpcServer> server_;
};

}  // namespace

struct EmbeddedEngine::RouterPart {
  static absl::StatusOr<std::unique_ptr<RouterPart>> Start(const EmbeddedEngineOptions& options) {
    auto part = std::make_unique<RouterPart>();
    WINNOW_ASSIGN_OR_RETURN(part->server, PartServer::Reserve(v1::ROLE_ROUTER, "router-0"));
    RouterOptions router;
    router.model_dir = options.model_dir;
    router.identity = part->server.identity();
    WINNOW_ASSIGN_OR_RETURN(router.selection, SelectionOf(options));
    router.log_requests = false;
    router.request_timeout = std::chrono::hours(1);
    WINNOW_ASSIGN_OR_RETURN(part->router, Router::Create(router, &part->metrics));
    Router& made = *part->router;
    WINNOW_RETURN_IF_ERROR(part->server.Serve(made.services(), made.fingerprint(), [&made] { return made.load(); }));
    return part;
  }
  ~RouterPart() {
    if (router != nullptr) router->Drain(std::chrono::milliseconds(0));
    server.Shutdown();
    metrics.ClearSources();
  }

  MetricsRegistry metrics;
  std::unique_ptr<Router> router;
  PartServer server;
};

// An inference rank and the cache rank that it hosts.
struct EmbeddedEngine::RankPart {
  static absl::StatusOr<std::unique_ptr<RankPart>> Start(const EmbeddedEngineOptions& options,
                                                         const v1::Identity& router) {
    auto part = std::make_unique<RankPart>();
    WINNOW_ASSIGN_OR_RETURN(part->server, PartServer::Reserve(v1::ROLE_INFERENCE_RANK, "inference-0"));
    const v1::Identity& identity = part->server.identity();

    v1::Identity cache_identity = MakeIdentity(kCluster, v1::ROLE_CACHE_RANK, "cache-of-inference-0");
    cache_identity.set_address(identity.address());
    CacheOptions cache_options;
    cache_options.memory_bytes = options.cache_memory_bytes;
    cache_options.threads = options.threads;
    WINNOW_ASSIGN_OR_RETURN(
        part->cache, CacheHost::Create(cache_options, cache_identity, NewInprocTransport(TransportOf(cache_identity))));

    InferenceRankOptions rank_options;
    rank_options.model_dir = options.model_dir;
    WINNOW_ASSIGN_OR_RETURN(rank_options.device, ParseDeviceChoice(options.device));
    rank_options.num_threads = ResolveThreads(options.threads);
    rank_options.max_context_tokens = options.max_context_tokens;
    WINNOW_ASSIGN_OR_RETURN(rank_options.selection, SelectionOf(options));
    WINNOW_ASSIGN_OR_RETURN(part->rank,
                            InferenceRank::Create(rank_options, NewInprocTransport(TransportOf(identity)), identity));

    InferenceRank& rank = *part->rank;
    CacheRank& cache = part->cache->rank();
    std::vector<NamedService> services = part->cache->services();
    for (grpc::Service* service : rank.services()) services.push_back(Named<v1::RankService>(service));
    cache.Start();
    rank.Start();
    WINNOW_RETURN_IF_ERROR(
        part->server.Serve(std::move(services), rank.fingerprint(), [&rank] { return rank.load(); }));

    WINNOW_ASSIGN_OR_RETURN(const HostPort router_address, ParseHostPort(router.address()));
    part->Join(router_address, part->cache->Registration(/*metrics_address=*/"", identity.rank()),
               [&cache] { return cache.Load(); });
    v1::RegisterRequest registration;
    *registration.mutable_identity() = identity;
    *registration.mutable_fingerprint() = rank.fingerprint();
    *registration.mutable_limits() = rank.limits();
    registration.set_phases(v1::PHASES_BOTH);
    part->Join(router_address, std::move(registration), [&rank] { return rank.load(); });
    return part;
  }
  // What is under way is failed at the router.
  ~RankPart() {
    memberships.clear();
    if (rank != nullptr) rank->Stop();
    if (cache != nullptr) cache->rank().Stop();
    server.Shutdown();
  }

  void Join(const HostPort& router, v1::RegisterRequest registration, std::function<v1::RankLoad()> load) {
    MembershipClient::Options options;
    options.router = router;
    options.registration = std::move(registration);
    options.load = std::move(load);
    options.on_serving = [](bool) {};
    options.on_refused = [this](const absl::Status& status) {
      const std::lock_guard lock(mutex);
      refusal.Update(status);
    };
    memberships.push_back(std::make_unique<MembershipClient>(std::move(options)));
  }
  absl::Status Refusal() {
    const std::lock_guard lock(mutex);
    return refusal;
  }

  std::unique_ptr<CacheHost> cache;
  std::unique_ptr<InferenceRank> rank;
  PartServer server;
  std::mutex mutex;
  absl::Status refusal;  // guarded by mutex
  std::vector<std::unique_ptr<MembershipClient>> memberships;
};

EmbeddedEngine::EmbeddedEngine() = default;

absl::StatusOr<std::unique_ptr<EmbeddedEngine>> EmbeddedEngine::Load(const EmbeddedEngineOptions& options) {
  std::unique_ptr<EmbeddedEngine> engine(new EmbeddedEngine);
  WINNOW_ASSIGN_OR_RETURN(engine->router_, RouterPart::Start(options));
  const v1::Identity& router = engine->router_->server.identity();
  WINNOW_ASSIGN_OR_RETURN(engine->rank_, RankPart::Start(options, router));
  const auto until = std::chrono::steady_clock::now() + kReadyLimit;
  for (absl::Status ready; !(ready = engine->router_->router->Ready()).ok();) {
    WINNOW_RETURN_IF_ERROR(engine->rank_->Refusal());
    if (std::chrono::steady_clock::now() > until) return Annotate(ready, "the engine has not become ready");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  engine->client_ = std::make_unique<Client>(NewChannel(router.address()), ClientOptions{.timeout = {}}, "the engine");
  return engine;
}

EmbeddedEngine::~EmbeddedEngine() {
  // No new answers first, then those under way.
  if (router_ != nullptr && router_->router != nullptr) router_->router->Drain(std::chrono::milliseconds(0));
  rank_ = nullptr;
}

}  // namespace winnow
