#include "router/membership/membership_service.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

#include "absl/strings/strip.h"
#include "common/config/host_address.h"
#include "common/rpc/caller_roles.h"
#include "common/rpc/grpc_status.h"

namespace winnow {
namespace {

// Reads and answers in turn. A process that dies closes its socket: the read fails at once, long before the lease is
// over.
class HeartbeatCall final : public grpc::ServerBidiReactor<v1::HeartbeatRequest, v1::HeartbeatResponse> {
 public:
  explicit HeartbeatCall(Registry* registry) : registry_(registry), stream_(registry->NewStream()) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      registry_->StreamEnded(stream_);
      Finish(grpc::Status::OK);
      return;
    }
    response_ = registry_->Heartbeat(stream_, request_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool) override { StartRead(&request_); }
  void OnDone() override { delete this; }

 private:
  Registry* const registry_;
  const Registry::StreamId stream_;
  v1::HeartbeatRequest request_;
  v1::HeartbeatResponse response_;
};

v1::WatchResponse ToWatchResponse(const MembershipSnapshot& snapshot) {
  v1::WatchResponse response;
  response.set_membership_version(snapshot.version);
  for (const RankRecord& record : snapshot.ranks) {
    v1::Member* member = response.add_members();
    *member->mutable_identity() = record.identity;
    member->set_metrics_address(record.metrics_address);
    *member->mutable_load() = record.load;
  }
  return response;
}

// Sends the table whenever it has changed since the last time it was sent; a slow watcher misses versions in between.
class WatchCall final : public grpc::ServerWriteReactor<v1::WatchResponse> {
 public:
  explicit WatchCall(Registry* registry) {
    subscription_ = registry->Subscribe([this](const MembershipSnapshot& snapshot) { OnChange(snapshot); });
    OnChange(registry->Snapshot());
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) return End();
    if (next_) Write();
  }
  void OnCancel() override {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (!writing_) End();
  }
  void OnDone() override {
    subscription_.reset();
    delete this;
  }

 private:
  void OnChange(const MembershipSnapshot& snapshot) {
    std::lock_guard lock(mutex_);
    if (ended_ || snapshot.version < newest_version_) return;
    newest_version_ = snapshot.version;
    next_ = ToWatchResponse(snapshot);
    if (!writing_) Write();
  }
  void Write() {  // mutex_ held
    if (cancelled_) return End();
    response_ = std::move(*next_);
    next_.reset();
    writing_ = true;
    StartWrite(&response_);
  }
  void End() {  // mutex_ held
    if (ended_) return;
    ended_ = true;
    Finish(grpc::Status::CANCELLED);
  }

  std::unique_ptr<Registry::Subscription> subscription_;
  std::mutex mutex_;
  uint64_t newest_version_ = 0;
  bool writing_ = false;
  bool cancelled_ = false;
  bool ended_ = false;
  std::optional<v1::WatchResponse> next_;
  v1::WatchResponse response_;  // unchanged while writing_
};

constexpr std::chrono::milliseconds kLeastDial{10};

// The host of "ipv4:10.0.0.2:40112" or "ipv6:[::1]:40112", with the escapes of a URI; empty for other sockets.
std::string HostOfPeer(std::string_view peer) {
  absl::string_view rest = AbslSv(peer);
  if (!absl::ConsumePrefix(&rest, "ipv4:") && !absl::ConsumePrefix(&rest, "ipv6:")) return "";
  std::string text(rest);
  for (const auto& [escaped, plain] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    if (const size_t at = text.find(escaped); at != std::string::npos) text.replace(at, 3, plain);
  }
  const absl::StatusOr<HostPort> parsed = ParseHostPort(text);
  return parsed.ok() ? parsed->host : "";
}

// INVALID_ARGUMENT for an address at which other machines cannot reach the rank that is at `peer`.
absl::Status CheckAddress(const v1::Identity& identity, const std::string& peer) {
  const absl::StatusOr<HostPort> address = ParseHostPort(identity.address());
  if (!address.ok()) return Annotate(address.status(), "identity.address");
  const std::string from = HostOfPeer(peer);
  const bool is_wildcard = IsWildcardHost(address->host);
  if (!is_wildcard && (!IsLoopbackHost(address->host) || from.empty() || IsLoopbackHost(from))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      identity.rank(), " advertises ", identity.address(), ", where ",
      is_wildcard ? "nobody can connect to" : absl::StrCat("only its own machine reaches it, and it comes from ", from),
      ": it needs --advertise with an address that the router and the other ranks reach"));
}

// Where there are certificates, a rank registers as what its own says; inference ranks also the cache ranks they host.
absl::Status CheckRole(const grpc::AuthContext* peer, v1::Role claimed) {
  const std::optional<std::vector<PeerRole>> roles = RolesOfPeer(peer);
  const auto has = [&](PeerRole role) { return std::find(roles->begin(), roles->end(), role) != roles->end(); };
  if (!roles || has(PeerRole::kInferenceRank)) return absl::OkStatus();
  if (has(PeerRole::kCacheRank) && claimed == v1::ROLE_CACHE_RANK) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("identity.role: the caller's certificate is not of ",
                                                  AbslSv(PeerRoleUri(PeerRole::kInferenceRank))));
}

grpc::ServerUnaryReactor* FinishUnary(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* MembershipService::Register(grpc::CallbackServerContext* context,
                                                      const v1::RegisterRequest* request,
                                                      v1::RegisterResponse* response) {
  const absl::Status named = CheckRole(context->auth_context().get(), request->identity().role());
  if (!named.ok()) return FinishUnary(context, ToGrpc(named));
  const absl::Status usable = CheckAddress(request->identity(), context->peer());
  if (!usable.ok()) return FinishUnary(context, ToGrpc(usable));
  if (reachability_ == nullptr) {
    const absl::StatusOr<v1::RegisterResponse> registered = registry_->Register(*request);
    if (registered.ok()) *response = *registered;
    return FinishUnary(context, ToGrpc(registered.status()));
  }
  registry_->Knocked(request->identity());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  // The rank is to learn the reason before its own time is over.
  const auto left = context->deadline() - std::chrono::system_clock::now();
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(left) * 3 / 4;
  reachability_->DialBack(*request, std::max(limit, kLeastDial),
                          [this, reactor, request, response](const absl::Status& reached) {
                            absl::Status status = reached;
                            if (status.ok()) {
                              absl::StatusOr<v1::RegisterResponse> registered = registry_->Register(*request);
                              status = registered.status();
                              if (registered.ok()) *response = *std::move(registered);
                            }
                            reactor->Finish(ToGrpc(status));
                          });
  return reactor;
}

grpc::ServerBidiReactor<v1::HeartbeatRequest, v1::HeartbeatResponse>* MembershipService::Heartbeat(
    grpc::CallbackServerContext*) {
  return new HeartbeatCall(registry_);
}

grpc::ServerWriteReactor<v1::WatchResponse>* MembershipService::Watch(grpc::CallbackServerContext*,
                                                                      const v1::WatchRequest*) {
  return new WatchCall(registry_);
}

grpc::ServerUnaryReactor* MembershipService::Leave(grpc::CallbackServerContext* context,
                                                   const v1::LeaveRequest* request, v1::LeaveResponse*) {
  registry_->Leave(request->identity());
  return FinishUnary(context, grpc::Status::OK);
}

}  // namespace winnow
