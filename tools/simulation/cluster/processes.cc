#include "tools/simulation/cluster/processes.h"

#include "kernels/kernel_table.h"
#include "tools/simulation/network/blocking_stream.h"

namespace winnow::simulation {
namespace {

constexpr std::chrono::milliseconds kLeaseCheckInterval{100};
const std::chrono::milliseconds kSweepInterval = Reachability::Options{}.sweep;
constexpr uint32_t kMaxContext = 1024;

v1::Identity IdentityOf(const RankPlace& place, v1::Role role) {
  v1::Identity identity;
  identity.set_cluster("simulation");
  identity.set_role(role);
  identity.set_rank(place.name);
  identity.set_incarnation(place.incarnation);
  identity.set_address(place.address.ToString());
  return identity;
}

std::unique_ptr<AdminServiceImpl> NewAdmin(const v1::Identity& identity, std::function<v1::RankLoad()> load) {
  v1::GetServerInfoResponse info;
  *info.mutable_identity() = identity;
  return std::make_unique<AdminServiceImpl>(info, std::move(load));
}

void ServeAdmin(Services& services, AdminServiceImpl* admin) {
  services.AddBlocking("GetServerInfo", admin, &AdminServiceImpl::GetServerInfo);
  services.AddBlocking("Reach", admin, &AdminServiceImpl::Reach);
}

Memberships Join(const RankPlace& place, const v1::RegisterRequest& registration,
                 const std::function<v1::RankLoad()>& load,
                 const std::function<void(const std::vector<v1::Identity>&)>& on_expired = nullptr) {
  Memberships memberships;
  for (const HostPort& router : place.routers) {
    MembershipClient::Options options;
    options.router = router;
    options.registration = registration;
    options.load = load;
    options.on_expired = on_expired;
    options.on_refused = [name = place.name](const absl::Status& status) {
      Runtime::current()->Trace(name, absl::StrCat("is refused by a router: ", status.message()));
    };
    memberships.push_back(std::make_unique<MembershipClient>(std::move(options)));
  }
  return memberships;
}

}  // namespace

InferenceProcess::InferenceProcess(Rpc* rpc, FrameNetwork* frames, const RankPlace& place, const InferenceShape& shape)
    : metrics_(ToyModel::Layout().num_layers),
      model_([shape, process = rpc->runtime().running()->process](int rows, int prompt_tokens) {
        const Nanos time = shape.step + rows * 200 * kMicrosecond + prompt_tokens * shape.prompt_token;
        Runtime::current()->Sleep(static_cast<Nanos>(static_cast<double>(time) * process->slowness));
      }) {
  const v1::Identity identity = IdentityOf(place, v1::ROLE_INFERENCE_RANK);
  const KvLayout layout = ToyModel::Layout();
  SlotPool slots = SlotPool::Create(layout.row_bytes(), shape.slot_pages).value();
  model_.set_slots(slots.rows());
  Engine::Options options;
  options.limits = {.max_running = shape.max_running,
                    .prefill = {.mode = PrefillMode::kChunked, .memory_bytes = size_t{1} << 20},
                    .prefill_chunk_tokens = 64};
  options.kernel_set = "toy";
  options.num_threads = 1;
  options.waits.timeout = shape.wait_timeout;
  const v1::Fingerprint fingerprint = ToyModel::Fingerprint();
  engine_ = std::make_unique<Engine>(std::move(options), layout, model_, std::move(slots),
                                     frames->NewTransport(place.incarnation),
                                     LinkTable::Options{.identity = identity, .fingerprint = fingerprint}, metrics_);
  service_ = std::make_unique<RankServiceImpl>(*engine_, metrics_,
                                               SubmitLimits{.vocab_size = ToyModel::kVocab,
                                                            .max_context_tokens = kMaxContext,
                                                            .max_budget_tokens = kUnlimitedBudget,
                                                            .lookahead = 1,
                                                            .layout = layout,
                                                            .slot_pages = shape.slot_pages},
                                               ResumeLimits{.grace = shape.resume_grace});
  admin_ = NewAdmin(identity, [this] { return Load(); });
  engine_->Start();

  auto services = std::make_unique<Services>();
  ServeAdmin(*services, admin_.get());
  services->bidi["Dispatch"] = BidiHandler<v1::DispatchRequest, v1::DispatchResponse>(
      [this](grpc::CallbackServerContext* context) { return service_->Dispatch(context); });
  rpc->Serve(rpc->runtime().running()->process, std::move(services));

  v1::RegisterRequest registration;
  *registration.mutable_identity() = identity;
  *registration.mutable_fingerprint() = fingerprint;
  registration.mutable_limits()->set_max_context_tokens(kMaxContext);
  registration.mutable_limits()->set_vocab_size(ToyModel::kVocab);
  registration.mutable_limits()->set_max_budget_tokens(kUnlimitedBudget);
  registration.mutable_limits()->set_max_running(shape.max_running);
  registration.set_phases(shape.phases);
  memberships_ = Join(
      place, registration, [this] { return Load(); },
      [this](const std::vector<v1::Identity>& cache_ranks) { engine_->NoteExpired(cache_ranks); });
}

v1::RankLoad InferenceProcess::Load() const {
  v1::RankLoad load;
  load.set_running_sequences(static_cast<uint32_t>(metrics_.running_sequences));
  load.set_waiting_sequences(static_cast<uint32_t>(metrics_.waiting_sequences));
  const uint64_t page_bytes = kSlotPageTokens * ToyModel::Layout().row_bytes();
  load.set_total_bytes(metrics_.slot_pages_total * page_bytes);
  load.set_free_bytes((metrics_.slot_pages_total - metrics_.slot_pages_used) * page_bytes);
  load.set_progress_count(metrics_.progress);
  load.set_queued_prompt_tokens(metrics_.queued_prompt_tokens);
  return load;
}

CacheProcess::CacheProcess(Rpc* rpc, FrameNetwork* frames, const RankPlace& place, const CacheShape& shape) {
  CacheRank::Options options;
  options.identity = IdentityOf(place, v1::ROLE_CACHE_RANK);
  options.data_plane.memory_bytes = shape.memory_bytes;
  options.data_plane.detach_ttl = shape.detach_ttl;
  rank_ = std::make_unique<CacheRank>(options, CpuKernels("portable").value(), frames->NewTransport(place.incarnation));
  cache_service_ = std::make_unique<CacheServiceImpl>(rank_.get());
  transport_service_ = std::make_unique<TransportServiceImpl>(rank_.get());
  replication_service_ = std::make_unique<ReplicationServiceImpl>(rank_.get());
  admin_ = NewAdmin(options.identity, [this] { return rank_->Load(); });
  rank_->Start();

  auto services = std::make_unique<Services>();
  ServeAdmin(*services, admin_.get());
  services->AddBlocking("OpenSequence", cache_service_.get(), &CacheServiceImpl::OpenSequence);
  services->AddBlocking("AttachSequence", cache_service_.get(), &CacheServiceImpl::AttachSequence);
  services->AddBlocking("PushPrefix", cache_service_.get(), &CacheServiceImpl::PushPrefix);
  services->AddBlocking("ForkSequence", cache_service_.get(), &CacheServiceImpl::ForkSequence);
  services->AddBlocking("ReleaseSequence", cache_service_.get(), &CacheServiceImpl::ReleaseSequence);
  services->bidi["Exchange"] = BidiHandler<v1::ExchangeRequest, v1::ExchangeResponse>(
      [this](grpc::CallbackServerContext* context) { return transport_service_->Exchange(context); });
  services->AddBlocking("KeepReplica", replication_service_.get(), &ReplicationServiceImpl::KeepReplica);
  services->bidi["Feed"] = BlockingBidiHandler<v1::FeedRequest, v1::FeedResponse>(
      [this](grpc::ServerContext* context, auto& stream) { return replication_service_->TakeFeed(context, stream); });
  rpc->Serve(rpc->runtime().running()->process, std::move(services));

  v1::RegisterRequest registration;
  *registration.mutable_identity() = options.identity;
  *registration.mutable_fingerprint() = rank_->Fingerprint();
  memberships_ = Join(place, registration, [this] { return rank_->Load(); });
}

RouterProcess::RouterProcess(Rpc* rpc, const std::string& name, uint64_t incarnation, const HostPort& address,
                             const ShardRange& shards, uint32_t replicas)
    : registry_({.cluster = "simulation",
                 .lease_check = kLeaseCheckInterval,
                 .reachability_is_checked = true,
                 .on_departure =
                     [this, name](const v1::Identity& rank, Departure why) {
                       expired_leases_ += why == Departure::kExpired;
                       const char* const what = why == Departure::kLeft      ? " has left"
                                                : why == Departure::kExpired ? " is lost: its lease ran out"
                                                                             : " is lost: its connection broke";
                       Runtime::current()->Trace(name, rank.rank() + what);
                     }}),
      reachability_({}, &registry_),
      membership_service_(&registry_, &reachability_) {
  DispatcherOptions options;
  options.identity.set_cluster("simulation");
  options.identity.set_role(v1::ROLE_ROUTER);
  options.identity.set_rank(name);
  options.identity.set_incarnation(incarnation);
  options.identity.set_address(address.ToString());
  options.shards = shards;
  options.replicas = replicas;
  dispatcher_ = std::make_unique<Dispatcher>(std::move(options), &registry_, &timers_);
  CheckLeases();
  CheckLinks();

  auto services = std::make_unique<Services>();
  services->unary["Register"] = UnaryHandler<v1::RegisterRequest, v1::RegisterResponse>(
      [this](auto... arguments) { return membership_service_.Register(arguments...); });
  services->unary["Leave"] = UnaryHandler<v1::LeaveRequest, v1::LeaveResponse>(
      [this](auto... arguments) { return membership_service_.Leave(arguments...); });
  services->bidi["Heartbeat"] = BidiHandler<v1::HeartbeatRequest, v1::HeartbeatResponse>(
      [this](grpc::CallbackServerContext* context) { return membership_service_.Heartbeat(context); });
  rpc->Serve(rpc->runtime().running()->process, std::move(services));
}

void RouterProcess::CheckLeases() {
  registry_.ExpireLeases();
  timers_.After(kLeaseCheckInterval, [this] { CheckLeases(); });
}

void RouterProcess::CheckLinks() {
  reachability_.Sweep();
  timers_.After(kSweepInterval, [this] { CheckLinks(); });
}

}  // namespace winnow::simulation
