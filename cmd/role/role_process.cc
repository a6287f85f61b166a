#include "cmd/role/role_process.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "cmd/role/interruptible_start.h"
#include "cmd/role/own_address.h"
#include "cmd/role/registry_metrics.h"
#include "cmd/role/span_export.h"
#include "cmd/role/spare_descriptor.h"
#include "common/base/descriptor_limit.h"
#include "common/base/stop_signals.h"
#include "common/config/host_address.h"
#include "common/config/listen_address.h"
#include "common/log/log.h"
#include "common/metrics/version.h"
#include "common/rpc/caller_policy.h"
#include "common/rpc/grpc_log.h"
#include "common/rpc/identity.h"

namespace winnow {
namespace {

constexpr std::chrono::milliseconds kShutdownGrace{500};

// Listeners, logs, event loops, the model's files, and the connections of some dozens of ranks.
constexpr uint64_t kLeastDescriptors = 256;

// UNAVAILABLE says why a process is of no use by its own words.
absl::Status UsableBy(const v1::RankLoad& load) {
  return load.failing().empty() ? absl::OkStatus() : absl::UnavailableError(load.failing());
}

PeerRole PeerRoleOf(v1::Role role) {
  switch (role) {
    case v1::ROLE_INFERENCE_RANK:
      return PeerRole::kInferenceRank;
    case v1::ROLE_CACHE_RANK:
      return PeerRole::kCacheRank;
    default:
      return PeerRole::kRouter;
  }
}

absl::StatusOr<Credentials> LoadCredentials(const TlsFiles& files, v1::Role role) {
  if (files.empty()) return Credentials();
  absl::StatusOr<Credentials> credentials = Credentials::Load(files);
  if (!credentials.ok()) return Annotate(credentials.status(), "--tls-cert, --tls-key, --tls-ca");
  WINNOW_ASSIGN_OR_RETURN(const std::vector<std::string> names, UriNamesOf(files.certificate));
  const std::vector<PeerRole> roles = PeerRolesOf(names);
  if (std::find(roles.begin(), roles.end(), PeerRoleOf(role)) == roles.end()) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-cert: ", files.certificate, " has no URI name ",
                                                   AbslSv(PeerRoleUri(PeerRoleOf(role))),
                                                   ": other processes would refuse this one"));
  }
  return credentials;
}

}  // namespace

RoleProcess::RoleProcess(const char* role_name, const ProcessOptions& options, std::string options_yaml,
                         JoinOptions join)
    : options_(options),
      join_(std::move(join)),
      options_yaml_(std::move(options_yaml)),
      report_(options.report_fd),
      metrics_(std::make_shared<MetricsRegistry>(MetricLabels{{"role", role_name}, {"rank", options.rank}})) {}

RoleProcess::~RoleProcess() {
  Shutdown();
}

absl::StatusOr<std::unique_ptr<RoleProcess>> RoleProcess::Begin(const char* role_name, v1::Role role,
                                                                const ProcessOptions& options, std::string options_yaml,
                                                                JoinOptions join) {
  sigset_t set = StopSignals();
  sigaddset(&set, SIGUSR1);  // of InterruptibleStart
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  WINNOW_RETURN_IF_ERROR(
      StartLog({.role = role_name, .rank = options.rank, .level = options.log.level, .format = options.log.format}));
  LogForGrpc();
  auto process =
      std::unique_ptr<RoleProcess>(new RoleProcess(role_name, options, std::move(options_yaml), std::move(join)));
  WINNOW_ASSIGN_OR_RETURN(process->descriptor_limit_, RaiseDescriptorLimit(kLeastDescriptors));
  KeepSpareDescriptor();
  process->start_ = std::make_unique<InterruptibleStart>();
  ProcessOptions& listen = process->options_;
  WINNOW_ASSIGN_OR_RETURN(listen.grpc, ListenAddress(options.grpc, process->join_.Landmarks()));
  WINNOW_ASSIGN_OR_RETURN(listen.metrics, ListenAddress(options.metrics, process->join_.Landmarks()));
  WINNOW_ASSIGN_OR_RETURN(process->tls_, options.security.FilesFor(role_name));
  WINNOW_ASSIGN_OR_RETURN(process->credentials_, LoadCredentials(process->tls_, role));
  if (const auto& registry = process->join_.discovery.registry;
      registry && registry->encrypted && process->tls_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--registry=", registry->ToString(), " needs --tls-cert, --tls-key and --tls-ca"));
  }
  WINNOW_RETURN_IF_ERROR(options.security.CheckExposure("grpc", listen.grpc, process->credentials_.encrypted()));
  WINNOW_ASSIGN_OR_RETURN(ReservedAddress reserved, ReservedAddress::Reserve(listen.grpc.ToString()));
  process->reserved_ = std::make_unique<ReservedAddress>(std::move(reserved));
  process->identity_ = MakeIdentity(options.cluster, role, options.rank);
  process->identity_.set_address(process->reserved_->address());
  process->metrics_->AddProcessMetrics();
  WINNOW_ASSIGN_OR_RETURN(process->spans_, NewSpanExporter(options.tracing, role_name, process->identity_));
  if (process->spans_ != nullptr) {
    process->metrics_->AddSource(
        [spans = process->spans_.get()](FamilyWriter& writer) { WriteMetrics(spans->counters(), writer); });
  }
  spdlog::info("winnow {} starts as {} with {{{}}}", Version(), ToString(process->identity_),
               absl::StrReplaceAll(absl::StripSuffix(process->options_yaml_, "\n"), {{"\n", ", "}}));
  return process;
}

absl::Status RoleProcess::Serve(std::vector<NamedService> services, const v1::Fingerprint& fingerprint,
                                std::function<v1::RankLoad()> load, std::vector<NamedTimeline> timelines,
                                RouterAnswers router) {
  start_ = nullptr;
  ready_ = std::move(router.ready);
  load_ = load;
  v1::GetServerInfoResponse info;
  *info.mutable_identity() = identity_;
  *info.mutable_fingerprint() = fingerprint;
  info.set_version(std::string(Version()));
  info.set_start_unix_nanos(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  info.set_options_yaml(options_yaml_);
  ProcessHttp::Sources probes;
  probes.ready = [this] { return Ready(); };
  probes.targets = std::move(router.targets);
  probes.ranks = std::move(router.ranks);
  // A router's requests may rightly wait for long, for ranks and for prompts to be computed.
  const bool computes = identity_.role() != v1::ROLE_ROUTER;
  probes.live = [this, load, computes] {
    if (!computes) return absl::OkStatus();
    const v1::RankLoad now = load();
    WINNOW_RETURN_IF_ERROR(UsableBy(now));
    return liveness_.Observe(now, Liveness::Clock::now());
  };
  admin_ = std::make_unique<AdminServiceImpl>(std::move(info), std::move(load), std::move(timelines), credentials_);
  services.push_back(Named<v1::AdminService>(admin_.get()));
  WINNOW_ASSIGN_OR_RETURN(http_, ProcessHttp::Start(options_.metrics, metrics_, std::move(probes)));
  WINNOW_ASSIGN_OR_RETURN(server_, RpcServer::Start(identity_.address(), services, credentials_));
  reserved_ = nullptr;
  report_.Address("grpc", server_->address());
  report_.Address("metrics", http_->address());
  spdlog::info("gRPC on {}, metrics on {}", server_->address(), http_->address());
  return absl::OkStatus();
}

absl::Status RoleProcess::Usable() const {
  return load_ ? UsableBy(load_()) : absl::OkStatus();
}

bool RoleProcess::Stands() const {
  return !standing_.empty() && std::find(standing_.begin(), standing_.end(), false) == standing_.end();
}

void RoleProcess::ShowHealth() {
  if (server_ != nullptr) server_->SetServing(Stands() && usable_ && !stopped_serving_);
}

void RoleProcess::NoteUsable() {
  const absl::Status usable = Usable();
  const std::lock_guard lock(mutex_);
  if (std::exchange(usable_, usable.ok()) == usable.ok()) return;
  if (!usable.ok()) spdlog::error("of no use, and not serving: {}", std::string(usable.message()));
  if (usable.ok()) spdlog::info("of use again");
  ShowHealth();
}

absl::Status RoleProcess::Ready() {
  WINNOW_RETURN_IF_ERROR(Usable());
  {
    const std::lock_guard lock(mutex_);
    if (stopped_serving_) return absl::UnavailableError("the process is stopping");
    if (ready_ == nullptr) {
      const bool stands = !standing_.empty() && std::find(standing_.begin(), standing_.end(), false) == standing_.end();
      return stands ? absl::OkStatus() : absl::UnavailableError("not registered with a router, or it is silent");
    }
  }
  return ready_();
}

absl::Status RoleProcess::Localize(const HostPort& router, v1::RegisterRequest& registration) const {
  // A router takes whoever comes last for the latest start.
  if (const RegistryPresence* registry = joined_registry_; registry != nullptr && !registry->Holds()) {
    return absl::UnavailableError("the registry has not said yet whether this start still has its name");
  }
  WINNOW_ASSIGN_OR_RETURN(const HostPort grpc, ParseHostPort(identity_.address()));
  WINNOW_ASSIGN_OR_RETURN(std::string address, AdvertisedAddress(join_.advertise, grpc, router));
  WINNOW_ASSIGN_OR_RETURN(const HostPort advertised, ParseHostPort(address));
  WINNOW_ASSIGN_OR_RETURN(HostPort metrics, ParseHostPort(http_->address()));
  // Whoever reaches the process at another address finds its metrics there, too.
  if (IsWildcardHost(metrics.host)) metrics.host = advertised.host;
  registration.mutable_identity()->set_address(std::move(address));
  registration.set_metrics_address(metrics.ToString());
  return absl::OkStatus();
}

void RoleProcess::Publish(std::vector<RecordMaker> records) {
  if (!join_.discovery.registry) return;
  RegistryPresence::Options options;
  options.registry = *join_.discovery.registry;
  options.tls = tls_;
  options.cluster = options_.cluster;
  options.lease = std::chrono::duration_cast<std::chrono::seconds>(join_.discovery.lease);
  options.records = [records =
                         std::move(records)](const HostPort& endpoint) -> absl::StatusOr<std::vector<RegistryRecord>> {
    std::vector<RegistryRecord> made;
    for (const RecordMaker& make : records) {
      WINNOW_ASSIGN_OR_RETURN(made.emplace_back(), make(endpoint));
    }
    return made;
  };
  options.on_routers = [this](const std::vector<HostPort>& routers) {
    for (const auto& membership : memberships_) membership->SetDiscovered(routers);
  };
  options.on_refused = [this](const absl::Status& status) { Fail(status); };
  presence_ = std::make_unique<RegistryPresence>(std::move(options));
  joined_registry_ = presence_.get();
  metrics_->AddSource([this](FamilyWriter& writer) { WriteMetrics(presence_->state(), writer); });
}

std::optional<RegistryPresence::State> RoleProcess::registry_state() const {
  const RegistryPresence* const registry = joined_registry_;
  return registry == nullptr ? std::nullopt : std::optional(registry->state());
}

void RoleProcess::PublishRouter(const std::string& http_address) {
  Publish({[this, http_address](const HostPort& endpoint) -> absl::StatusOr<RegistryRecord> {
    WINNOW_ASSIGN_OR_RETURN(const HostPort grpc, ParseHostPort(identity_.address()));
    WINNOW_ASSIGN_OR_RETURN(const std::string address, PublishedAddress(join_.advertise, grpc, endpoint));
    WINNOW_ASSIGN_OR_RETURN(const HostPort published, ParseHostPort(address));
    WINNOW_ASSIGN_OR_RETURN(HostPort http, ParseHostPort(http_address));
    if (IsWildcardHost(http.host)) http.host = published.host;
    return RegistryRecord{v1::ROLE_ROUTER, identity_.rank(), identity_.incarnation(), address, http.ToString()};
  }});
}

void RoleProcess::Join(std::vector<Membership> memberships) {
  std::vector<RecordMaker> records;
  for (const Membership& membership : memberships) {
    records.push_back([this, identity = membership.registration.identity()](
                          const HostPort& endpoint) -> absl::StatusOr<RegistryRecord> {
      WINNOW_ASSIGN_OR_RETURN(const HostPort grpc, ParseHostPort(identity_.address()));
      const absl::StatusOr<std::string> address = AdvertisedAddress(join_.advertise, grpc, endpoint);
      if (absl::IsUnavailable(address.status())) return address.status();
      // Each router is told where it reaches the rank; here it is for people to read.
      return RegistryRecord{identity.role(), identity.rank(), identity.incarnation(), address.value_or(grpc.ToString()),
                            ""};
    });
  }
  {
    const std::lock_guard lock(mutex_);
    standing_.assign(memberships.size(), false);
  }
  for (size_t i = 0; i < memberships.size(); ++i) {
    MembershipClient::Options options;
    options.credentials = credentials_;
    options.localize = [this](const HostPort& router, v1::RegisterRequest& registration) {
      return Localize(router, registration);
    };
    options.registration = std::move(memberships[i].registration);
    options.load = std::move(memberships[i].load);
    options.on_expired = std::move(memberships[i].on_expired);
    options.on_refused = [this](const absl::Status& status) { Fail(status); };
    options.on_serving = [this, i](bool serving) {
      const std::lock_guard lock(mutex_);
      standing_[i] = serving;
      ShowHealth();
      if (Stands()) report_.Ready();
    };
    memberships_.push_back(std::make_unique<RouterMemberships>(join_.Routers(), std::move(options)));
  }
  Publish(std::move(records));
}

void RoleProcess::StopServing() {
  const std::lock_guard lock(mutex_);
  stopped_serving_ = true;
  ShowHealth();
}

void RoleProcess::Leave() {
  if (presence_ != nullptr) presence_->Leave();
  memberships_.clear();
}

absl::Status RoleProcess::WaitForStop(const std::function<void()>& tick) {
  int signal_number = 0;
  while (signal_number == 0) {
    if (tick) tick();
    NoteUsable();
    signal_number = StopSignalWithin(std::chrono::milliseconds(100));
  }
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) spdlog::info("stopping: {}", strsignal(signal_number));
  return failure_;
}

bool RoleProcess::ToldAgainToStop() {
  return StopSignalWithin(std::chrono::milliseconds(0)) != 0;
}

void RoleProcess::Fail(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    failure_.Update(status);
  }
  // It ends no thread: WaitForStop waits for it.
  pthread_kill(main_thread_, SIGTERM);  // NOLINT(bugprone-bad-signal-to-kill-thread)
}

void RoleProcess::Shutdown() {
  Leave();
  if (server_ != nullptr) server_->Shutdown(kShutdownGrace);
  metrics_->ClearSources();
  http_ = nullptr;
  server_ = nullptr;
}

}  // namespace winnow
