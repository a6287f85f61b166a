#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/discovery/registry_presence.h"
#include "common/discovery/registry_url.h"
#include "common/metrics/metric_aliases.h"
#include "common/metrics/metrics_registry.h"
#include "common/rpc/credentials.h"
#include "common/rpc/rpc_server.h"
#include "common/tls/tls_files.h"
#include "common/tracing/trace_span.h"
#include "router/dispatch/routing_policy.h"
#include "router/generation/served_model.h"
#include "router/http/cors.h"
#include "router/http/http_options.h"
#include "winnow/v1/membership.pb.h"

namespace winnow {

struct RouterOptions {
  std::string model_dir;
  std::vector<std::string> model_ids;  // names in the APIs, the first one in answers; empty: the name of model_dir
  // How answers are read; absent: as the model's files show it.
  std::optional<ToolFormat> tool_format;
  std::optional<ReasoningFormat> reasoning_format;
  v1::Identity identity;                // of this process
  Credentials credentials;              // towards ranks
  SelectionSpec selection;              // of requests that name none
  std::string head_profile;             // file of a HeadProfile; empty: none
  TlsFiles tls;                         // of gRPC, which an operator may have looked at again; empty: none
  std::string api_keys;                 // KeyFile of clients; empty: anybody may send requests
  std::optional<RegistryUrl> registry;  // keeps the orders of operators for all routers
  // How this process stands with the registry; asked from any thread.
  std::function<std::optional<RegistryPresence::State>()> registry_state = [] { return std::nullopt; };
  HttpServerOptions http;
  CorsPolicy cors;
  std::chrono::milliseconds stream_keep_alive{15'000};  // of quiet streams; 0: none
  bool serves_page = true;                              // at "/"
  ShardRange shards;                                    // of a sequence's KV, over cache ranks
  uint32_t replicas = 1;                                // of a sequence's KV: 2 with one cache rank per sequence
  std::chrono::milliseconds slow_start{0};              // of cache ranks that join; 0: none
  uint32_t max_queue = 1024;                            // requests under way, each sample counted; more are refused
  std::chrono::milliseconds request_timeout{std::chrono::minutes(10)};  // of requests that name none
  bool log_requests = true;                                             // a line for each that has ended
  MetricsAliases metrics_aliases = MetricsAliases::kNone;
  SpanSink* spans = nullptr;  // of traces; null: none are made
  double trace_sample = 1;    // share of the requests that name no trace of their own
};

// The router of one model: takes requests over HTTP and gRPC and has ranks serve them. The owner runs the gRPC server.
//
//   Router::Create; serve services(); StartHttp; ...; Drain; shut the gRPC server down; destroy.
class Router {
 public:
  // Reads tokenizer, chat template and configuration of the model. Series go to `metrics`, which must outlive the
  // router; its sources must be cleared, and the gRPC server shut down, before the router is destroyed.
  static absl::StatusOr<std::unique_ptr<Router>> Create(RouterOptions options, MetricsRegistry* metrics);
  ~Router();

  // Membership, generation, tokenizer, model and operators' service.
  std::vector<NamedService> services();

  absl::Status StartHttp();
  // "host:port" with the port that was chosen; empty before StartHttp.
  std::string http_address() const;
  // From now on the router is not ready, but serves.
  void StopBeingReady();
  // From now on the router is not ready and answers new requests with UNAVAILABLE. Those under way may go on for
  // `grace`, or until `hurry`, asked every few milliseconds, says that there is no time; what is not done then ends
  // with UNAVAILABLE. Returns when HTTP is closed and no request is under way; gRPC calls may still be telling their
  // clients.
  void Drain(std::chrono::milliseconds grace, const std::function<bool()>& hurry = nullptr);

  // UNAVAILABLE with the reason while no request could be served: no rank of a kind, or ranks of another vocabulary.
  absl::Status Ready() const;
  // What Prometheus is to scrape; see router/membership/scrape_targets.h.
  std::string ScrapeTargets(const std::string& own_address) const;
  // The answer to GET /ranks.
  std::string RankList() const;
  // With the limits of the ranks that are there, or were last; before the first, those of the configuration.
  ServedModel model() const;
  v1::RankLoad load() const;
  // Of the model, as the ranks registered it; only the tokenizer's digest before.
  v1::Fingerprint fingerprint() const;

 private:
  struct Parts;
  explicit Router(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace winnow
