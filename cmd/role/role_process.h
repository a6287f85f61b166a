#pragma once
#include <pthread.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cmd/role/liveness.h"
#include "cmd/role/options/process_options.h"
#include "cmd/role/parent_report.h"
#include "cmd/role/process_http.h"
#include "common/base/status.h"
#include "common/discovery/registry_presence.h"
#include "common/metrics/metrics_registry.h"
#include "common/rpc/admin_service.h"
#include "common/rpc/credentials.h"
#include "common/rpc/router_memberships.h"
#include "common/rpc/rpc_server.h"
#include "common/tracing/span_exporter.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// What every role process has: log, identity, reserved gRPC port, metrics, servers, orderly stop.
class RoleProcess {
 public:
  // Call it first in main, before other threads exist: it starts the log and blocks the stop signals in all threads to
  // come. Until Serve they end the process at once. FAILED_PRECONDITION where the process may open fewer files than a
  // role needs, or would listen where other machines reach it without TLS.
  static absl::StatusOr<std::unique_ptr<RoleProcess>> Begin(const char* role_name, v1::Role role,
                                                            const ProcessOptions& options, std::string options_yaml,
                                                            JoinOptions join = {});
  ~RoleProcess();

  // With the address at which the gRPC server will listen.
  const v1::Identity& identity() const { return identity_; }
  // Of this process, for its server and for channels to others.
  const Credentials& credentials() const { return credentials_; }
  MetricsRegistry& metrics() { return *metrics_; }
  // Where spans of traced requests go; null without --otlp-endpoint. It lives as long as the process.
  SpanSink* spans() { return spans_.get(); }
  std::string metrics_address() const { return http_->address(); }
  RpcServer& server() { return *server_; }
  ParentReport& report() { return report_; }
  // Files that the process may have open, connections included.
  uint64_t descriptor_limit() const { return descriptor_limit_; }

  // What a router's ProcessHttp answers otherwise than a rank's, which is ready while every membership stands.
  struct RouterAnswers {
    std::function<absl::Status()> ready;
    std::function<std::string(const std::string& own_address)> targets;
    std::function<std::string()> ranks;
  };
  // Starts the gRPC server with these services and the AdminService, and ProcessHttp, and reports the addresses. `load`
  // is asked until Shutdown; `timelines` are what `winnow timeline` records, and live as long.
  absl::Status Serve(std::vector<NamedService> services, const v1::Fingerprint& fingerprint,
                     std::function<v1::RankLoad()> load, std::vector<NamedTimeline> timelines = {},
                     RouterAnswers router = {});

  struct Membership {
    v1::RegisterRequest registration;
    std::function<v1::RankLoad()> load;
    // See MembershipClient::Options.
    std::function<void(const std::vector<v1::Identity>& cache_ranks)> on_expired = nullptr;
  };
  // Registers with the routers, those in the registry among them, and stays registered. While every membership stands,
  // the server's health is SERVING, unless nothing comes of what it is asked for (RankLoad.failing); the first time is
  // reported as readiness. A refusal is a Fail, and so is it when a
  // later start of the process has taken its place in the registry.
  void Join(std::vector<Membership> memberships);
  // Of a router: lets ranks find it in the registry, where there is one.
  void PublishRouter(const std::string& http_address);
  // Absent where there is no registry, and before the process is published there. Any thread.
  std::optional<RegistryPresence::State> registry_state() const;
  // Health is NOT_SERVING, and /ready 503, from now on, whatever the memberships say. Any thread.
  void StopServing();
  // Tells registry and routers goodbye, so that no new work comes.
  void Leave();

  // Until SIGINT or SIGTERM (OK) or Fail (its status). `tick`, if there is one, is called every 100 ms. On the thread
  // that called Begin.
  absl::Status WaitForStop(const std::function<void()>& tick = nullptr);
  // Whether another such signal has come since WaitForStop or the last such question: there is a hurry.
  bool ToldAgainToStop();
  // Ends WaitForStop. Any thread.
  void Fail(const absl::Status& status);

  // Stops both servers; handlers have returned and no metric source is asked any more when this returns.
  void Shutdown();

 private:
  RoleProcess(const char* role_name, const ProcessOptions& options, std::string options_yaml, JoinOptions join);
  absl::Status Ready();
  // Why the process is of no use by its own words; OK: it is not.
  absl::Status Usable() const;
  // Whether it is registered everywhere. mutex_ held.
  bool Stands() const;
  // Health as the memberships and Usable have it. mutex_ held.
  void ShowHealth();
  // Says so where Usable is another than before.
  void NoteUsable();
  // Completes a registration with the addresses at which the router reaches this process.
  absl::Status Localize(const HostPort& router, v1::RegisterRequest& registration) const;
  using RecordMaker = std::function<absl::StatusOr<RegistryRecord>(const HostPort& endpoint)>;
  void Publish(std::vector<RecordMaker> records);

  ProcessOptions options_;  // with the hosts that it listens on
  const JoinOptions join_;
  const std::string options_yaml_;
  v1::Identity identity_;
  Credentials credentials_;
  TlsFiles tls_;  // of the credentials
  uint64_t descriptor_limit_ = 0;
  ParentReport report_;
  std::unique_ptr<SpanExporter> spans_;  // may be null
  const std::shared_ptr<MetricsRegistry> metrics_;
  std::unique_ptr<class ReservedAddress> reserved_;
  const pthread_t main_thread_ = pthread_self();
  std::unique_ptr<class InterruptibleStart> start_;  // until Serve
  std::unique_ptr<AdminServiceImpl> admin_;
  std::unique_ptr<RpcServer> server_;
  std::function<absl::Status()> ready_;
  std::function<v1::RankLoad()> load_;
  Liveness liveness_;
  std::unique_ptr<ProcessHttp> http_;

  std::mutex mutex_;
  // Guarded by mutex_.
  absl::Status failure_;
  std::vector<bool> standing_;  // by membership
  bool stopped_serving_ = false;
  bool usable_ = true;

  std::vector<std::unique_ptr<RouterMemberships>> memberships_;     // their threads use what is above
  std::unique_ptr<RegistryPresence> presence_;                      // its thread uses the memberships
  std::atomic<const RegistryPresence*> joined_registry_ = nullptr;  // the same, for the memberships' threads
};

}  // namespace winnow
