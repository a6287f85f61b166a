#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_split.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/role/options/model_options.h"
#include "cmd/role/options/opentelemetry.h"
#include "cmd/role/options/router_options.h"
#include "cmd/role/role_process.h"
#include "common/base/logging.h"
#include "router/router.h"
#include "winnow/v1/generation.grpc.pb.h"

namespace winnow {
namespace {

// Kept from HTTP connections, so that however many there are, ranks can connect and files be read.
constexpr uint64_t kReservedDescriptors = 192;

// Blocks of this size and more go back to the system when they are freed.
constexpr int kLargeBlockBytes = 256 << 10;

absl::Status Run(const RouterProcessOptions& options, std::string options_yaml) {
  WINNOW_ASSIGN_OR_RETURN(
      const std::unique_ptr<RoleProcess> process,
      RoleProcess::Begin("router", v1::ROLE_ROUTER, options.process, std::move(options_yaml),
                         {.routers = {}, .discovery = options.discovery, .advertise = options.advertise}));
  WINNOW_RETURN_IF_ERROR(options.process.security.CheckExposure("http", options.http, !options.http_tls.files.empty()));
  RouterOptions router_options;
  router_options.model_dir = options.model;
  router_options.model_ids = absl::StrSplit(options.model_id, ',', absl::SkipEmpty());
  router_options.cors.origins = absl::StrSplit(options.http_api.cors_origins, ',', absl::SkipEmpty());
  router_options.stream_keep_alive =
      std::chrono::duration_cast<std::chrono::milliseconds>(options.http_api.stream_keep_alive);
  router_options.serves_page = options.http_api.page;
  router_options.tool_format = options.chat.tool_format;
  router_options.reasoning_format = options.chat.reasoning_format;
  router_options.identity = process->identity();
  router_options.credentials = process->credentials();
  WINNOW_ASSIGN_OR_RETURN(router_options.tls, options.process.security.FilesFor("router"));
  WINNOW_ASSIGN_OR_RETURN(router_options.selection, options.selection.Resolve(options.model));
  router_options.head_profile = options.selection.head_profile;
  router_options.http.host = options.http.host;
  router_options.http.port = options.http.port;
  router_options.http.tls = options.http_tls.files;
  router_options.http.num_threads = options.http_threads;
  const uint64_t connections = process->descriptor_limit() - kReservedDescriptors;
  if (connections < router_options.http.max_connections) {
    spdlog::warn("at most {} HTTP connections are taken instead of {}: the process may open {} files", connections,
                 router_options.http.max_connections, process->descriptor_limit());
    router_options.http.max_connections = connections;
  }
  router_options.http.max_bodies_bytes = static_cast<size_t>(options.http_body_memory_bytes);
  router_options.api_keys = options.api_keys;
  router_options.registry = options.discovery.registry;
  router_options.registry_state = [&process] { return process->registry_state(); };
  router_options.spans = process->spans();
  router_options.trace_sample = options.process.tracing.sample;
  router_options.log_requests = options.reports.log_requests;
  router_options.metrics_aliases = options.reports.metrics_aliases;
  WINNOW_RETURN_IF_ERROR(options.placement.Check());
  const uint32_t shards = options.placement.cache_shards;
  router_options.shards = {.least = std::max(shards, 1u),
                           .most = shards == 0 ? std::numeric_limits<uint32_t>::max() : shards};
  router_options.replicas = options.placement.replicas;
  router_options.slow_start = std::chrono::duration_cast<std::chrono::milliseconds>(options.placement.slow_start);
  router_options.max_queue = options.max_queue;
  router_options.request_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(options.request_timeout);
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<Router> router, Router::Create(router_options, &process->metrics()));

  const absl::Cleanup stop = [&] {
    process->StopServing();
    router->StopBeingReady();
    process->Leave();
    const auto drain_from = std::chrono::steady_clock::now() + options.drain_delay;
    bool hurry = false;
    while (!hurry && std::chrono::steady_clock::now() < drain_from) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      hurry = process->ToldAgainToStop();
    }
    router->Drain(std::chrono::duration_cast<std::chrono::milliseconds>(options.stop_grace),
                  [&process, hurry] { return hurry || process->ToldAgainToStop(); });
    process->report().Drained();
    process->Shutdown();
  };

  std::vector<NamedService> services = router->services();
  std::vector<std::string> always_served;
  for (const NamedService& service : services) {
    if (service.name != v1::GenerationService::service_full_name()) always_served.push_back(service.name);
  }
  WINNOW_RETURN_IF_ERROR(process->Serve(
      std::move(services), router->fingerprint(), [&router] { return router->load(); }, {},
      {.ready = [&router] { return router->Ready(); },
       .targets = [&router](const std::string& own_address) { return router->ScrapeTargets(own_address); },
       .ranks = [&router] { return router->RankList(); }}));
  for (const std::string& name : always_served) process->server().SetServing(name, true);
  WINNOW_RETURN_IF_ERROR(router->StartHttp());
  process->report().Address("http", router->http_address());
  process->PublishRouter(router->http_address());
  process->report().Ready();
  spdlog::info("HTTP on {}", router->http_address());

  return process->WaitForStop([&] {
    const bool ready = router->Ready().ok();
    process->server().SetServing("", ready);
    process->server().SetServing(v1::GenerationService::service_full_name(), ready);
  });
}

int RouterMain(const Arguments& arguments) {
  // Bodies and prompts of megabytes come and go. Left alone, malloc takes the largest block that was ever freed for
  // what is common, and from then on keeps blocks up to that size in the heaps of its threads.
  mallopt(M_MMAP_THRESHOLD, kLargeBlockBytes);
  mallopt(M_TRIM_THRESHOLD, 4 * kLargeBlockBytes);
  RouterProcessOptions options;
  options.process.tracing = OpenTelemetryDefaults::Read().tracing;
  if (const auto code = ParseCommandLine(kRouterCommand, arguments, options)) return *code;
  if (const absl::Status model = CheckModelOption(options.model); !model.ok()) return Fail(kRouterCommand, model, 2);
  const absl::Status status = Run(options, DumpYaml(Fields::Of(options)));
  return status.ok() ? 0 : Fail(kRouterCommand, status);
}

}  // namespace

const Command kRouterCommand = {.name = "router",
                                .summary = "run a router",
                                .synopsis = "--model DIR [--option=value ...]",
                                .environment = Environment::kRead,
                                .options = Declared<RouterProcessOptions>,
                                .run = RouterMain};

}  // namespace winnow
