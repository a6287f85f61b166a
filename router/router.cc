#include "router/router.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <set>
#include <thread>

#include "common/base/logging.h"
#include "common/metrics/request_metrics.h"
#include "common/model/synthetic_models.h"
#include "common/rpc/channel.h"
#include "router/admin/cluster_admin_service.h"
#include "router/admin/reload.h"
#include "router/admin/shared_orders.h"
#include "router/dispatch/dispatcher.h"
#include "router/dispatch/routing_policy.h"
#include "router/generation/generation_service.h"
#include "router/generation/limited_generation.h"
#include "router/generation/model_services.h"
#include "router/generation/model_text.h"
#include "router/generation/text_generation.h"
#include "router/http/http_server.h"
#include "router/keys/key_metrics.h"
#include "router/keys/key_ring.h"
#include "router/membership/membership_service.h"
#include "router/membership/rank_list.h"
#include "router/membership/reachability.h"
#include "router/membership/scrape_targets.h"
#include "router/openai/api_key_gate.h"
#include "router/openai/json/api_error.h"
#include "router/openai/openai_service.h"
#include "router/page/page_routes.h"
#include "router/router_metrics.h"

namespace winnow {
namespace {

// A fraction of the lease: a silent rank is found dead up to two of these after its end.
constexpr std::chrono::milliseconds kLeaseCheckInterval{100};

// How soon changed API keys are in force.
constexpr std::chrono::milliseconds kKeysCheckInterval{1000};

constexpr std::chrono::milliseconds kDrainPoll{10};

// For clients to take the last of their answers.
constexpr std::chrono::milliseconds kLastWords{1000};

constexpr std::string_view kStopping = "the router is stopping";

// "model" of ".../model/" and ".../model".
std::string DirectoryName(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::absolute(directory).lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

void LogDeparture(const v1::Identity& rank, Departure why) {
  switch (why) {
    case Departure::kLeft:
      return spdlog::info("{} has left", rank.rank());
    case Departure::kLost:
      return spdlog::warn("{} is lost: its connection broke", rank.rank());
    case Departure::kExpired:
      return spdlog::warn("{} is lost: no sign of life for longer than it is waited for", rank.rank());
  }
}

}  // namespace

// In the order of construction; destroyed in reverse, users before what they use.
struct Router::Parts {
  Parts(RouterOptions o, ServedModel configured_model, TextGenerationOptions generation_options,
        std::unique_ptr<KeyRing> k, std::unique_ptr<ModelText> t, MetricsRegistry* m)
      : options(std::move(o)),
        configured(std::move(configured_model)),
        keys(std::move(k)),
        text(std::move(t)),
        metrics(m),
        request_metrics(*m, configured.id),
        registry({.cluster = options.identity.cluster(),
                  .lease_check = kLeaseCheckInterval,
                  .reachability_is_checked = true,
                  .on_departure =
                      [this](const v1::Identity& rank, Departure why) {
                        // A router that stops takes no goodbyes any more.
                        LogDeparture(rank, stopping ? Departure::kLeft : why);
                      }}),
        reachability({.credentials = options.credentials}, &registry),
        dispatcher({.identity = options.identity,
                    .max_queue = options.max_queue,
                    .why_no_rank = [this] { return reachability.Reasons(); },
                    .shards = options.shards,
                    .replicas = options.replicas,
                    .slow_start = options.slow_start,
                    .channels = [credentials = options.credentials](
                                    const std::string& address) { return NewChannel(address, credentials); }},
                   &registry, &timers),
        text_generation(WithReports(std::move(generation_options)), &dispatcher, text.get(), &timers),
        generation(&text_generation),
        membership_service(&registry, &reachability),
        generation_service({.default_timeout = options.request_timeout,
                            .max_timeout = std::max(options.request_timeout, kMaxTimeout),
                            .model = [this]() -> absl::StatusOr<ServedModel> {
                              WINNOW_RETURN_IF_ERROR(Accepts());
                              return Model();
                            },
                            .authenticate = Authenticate(),
                            .on_end = [this](absl::StatusCode code) { request_metrics.OnGrpcAnswer(code); }},
                           &generation, text.get()),
        tokenizer_service(text.get(), configured.vocab_size, Authenticate()),
        model_service([this] { return Model(); }, Authenticate()),
        shared_orders(!options.registry ? nullptr
                                        : std::make_unique<SharedOrders>(*options.registry, options.tls,
                                                                         options.identity.cluster(), &registry)),
        cluster_admin_service({.self = options.identity,
                               .ranks = &registry,
                               .dispatcher = &dispatcher,
                               .shared_orders = shared_orders.get(),
                               .reload =
                                   [this] {
                                     return winnow::Reload(keys.get(), {options.tls, options.http.tls});
                                   },
                               .routers = [this] { return RegistryRouters(); }}) {
    metrics->AddSource([this](FamilyWriter& writer) {
      WriteDispatcherMetrics(dispatcher.counters(), writer);
      WriteMembershipMetrics(registry.Snapshot(), writer);
      if (keys) WriteKeyMetrics(*keys, writer);
    });
    if (options.metrics_aliases == MetricsAliases::kVllm) metrics->SetVllmAliases(configured.id);
    log_changes = registry.Subscribe([this](const MembershipSnapshot& snapshot) { LogChanges(snapshot); });
    CheckLeases();
    CheckLinks();
    if (keys) CheckKeys();
  }

  // Absent where there are no keys.
  Authenticator Authenticate() {
    if (!keys) return nullptr;
    return [this](std::string_view credentials) { return keys->Authenticate(credentials); };
  }

  void CheckKeys() {
    const absl::StatusOr<bool> reloaded = keys->ReloadIfChanged();
    if (!reloaded.ok()) spdlog::error("the API keys stay as they were: {}", std::string(reloaded.status().message()));
    if (reloaded.ok() && *reloaded) spdlog::info("API keys read again: {}", keys->accounts().size());
    timers.After(kKeysCheckInterval, [this] { CheckKeys(); });
  }

  TextGenerationOptions WithReports(TextGenerationOptions generation_options) {
    generation_options.cluster = options.identity.cluster();
    generation_options.metrics = &request_metrics;
    generation_options.tracing = {.sink = options.spans, .sample = options.trace_sample, .model_id = configured.id};
    if (options.log_requests) {
      generation_options.on_end = [](const RequestRecord& record) { spdlog::info("{}", LogLine(record)); };
    }
    return generation_options;
  }

  void CheckLeases() {
    registry.ExpireLeases();
    timers.After(kLeaseCheckInterval, [this] { CheckLeases(); });
  }

  void CheckLinks() {
    reachability.Sweep();
    timers.After(Reachability::Options().sweep, [this] { CheckLinks(); });
  }

  void LogChanges(const MembershipSnapshot& snapshot) {
    for (const RankRecord& record : snapshot.ranks) {
      const RankRecord* before = logged.Find(record.identity.role(), KeyOf(record.identity));
      if (!before) {
        spdlog::info("{} joined from {}", record.identity.rank(), record.identity.address());
      } else if (record.suspect && !before->suspect) {
        spdlog::warn("{} cannot be reached", record.identity.rank());
      }
    }
    logged = snapshot;
  }

  std::vector<std::string> RegistryRouters() const {
    std::vector<std::string> addresses;
    const std::optional<RegistryPresence::State> state = options.registry_state();
    if (!state) return addresses;
    for (const HostPort& router : state->routers) addresses.push_back(router.ToString());
    return addresses;
  }

  // A request would be served now, and should come here.
  absl::Status Ready() const {
    if (leaving) return absl::UnavailableError(AbslSv(kStopping));
    WINNOW_RETURN_IF_ERROR(Accepts());
    if (shared_orders && !shared_orders->IsSettled()) {
      return absl::UnavailableError("what operators have ordered has not been read from the registry yet");
    }
    absl::Status route = ChooseRoute(registry.Snapshot(), {}, {.shards = options.shards}).status();
    const std::string reasons = route.ok() ? "" : reachability.Reasons();
    if (reasons.empty()) return route;
    return absl::UnavailableError(absl::StrCat(route.message(), " (", reasons, ")"));
  }

  // A request would be served as soon as there are ranks.
  absl::Status Accepts() const {
    if (stopping) return absl::UnavailableError(AbslSv(kStopping));
    const std::optional<v1::ModelLimits> limits = registry.Limits();
    if (limits && limits->vocab_size() != configured.vocab_size) {
      return absl::UnavailableError(absl::StrCat("the ranks' model has a vocabulary of ", limits->vocab_size(),
                                                 ", the router's model directory one of ", configured.vocab_size));
    }
    return absl::OkStatus();
  }

  ServedModel Model() const {
    ServedModel model = configured;
    if (const std::optional<v1::ModelLimits> limits = registry.Limits()) {
      model.max_context_tokens = std::min(model.max_context_tokens, limits->max_context_tokens());
      if (limits->max_budget_tokens() != 0) model.max_budget_tokens = limits->max_budget_tokens();
    }
    model.max_stored_positions = dispatcher.MostPositions();
    return model;
  }

  static constexpr std::chrono::milliseconds kMaxTimeout{std::chrono::hours(1)};

  const RouterOptions options;
  const ServedModel configured;
  const std::unique_ptr<KeyRing> keys;  // null: anybody may send requests
  const std::unique_ptr<ModelText> text;
  MetricsRegistry* const metrics;
  RequestMetrics request_metrics;
  std::atomic<bool> leaving{false};
  std::atomic<bool> stopping{false};
  Registry registry;
  Reachability reachability;
  MembershipSnapshot logged;  // touched by log_changes alone
  TimerQueue timers;
  Dispatcher dispatcher;
  TextGeneration text_generation;
  LimitedGeneration generation;
  MembershipService membership_service;
  GenerationService generation_service;
  TokenizerService tokenizer_service;
  ModelService model_service;
  const std::unique_ptr<SharedOrders> shared_orders;  // null without a registry
  ClusterAdminServiceImpl cluster_admin_service;
  std::unique_ptr<Registry::Subscription> log_changes;
  std::unique_ptr<OpenAiService> openai;
  RouteTable routes{HttpErrorResponse};
  std::unique_ptr<HttpServer> http;
};

absl::StatusOr<std::unique_ptr<Router>> Router::Create(RouterOptions options, MetricsRegistry* metrics) {
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOf(options.model_dir));
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<ModelText> text, ModelText::Load(options.model_dir));
  const auto vocab_size = static_cast<uint32_t>(config.vocab_size);
  if (text->tokenizer() != nullptr && text->tokenizer()->VocabSize() > vocab_size) {
    return absl::FailedPreconditionError(absl::StrCat(options.model_dir, ": the tokenizer has ids up to ",
                                                      text->tokenizer()->VocabSize() - 1,
                                                      ", but config.json's vocab_size is ", vocab_size));
  }
  const int num_lists = config.num_kv_heads * config.num_kv_layers();
  if (options.shards.least > static_cast<uint32_t>(num_lists)) {
    return absl::InvalidArgumentError(absl::StrCat("--cache-shards=", options.shards.least, ": the KV of ",
                                                   config.num_kv_heads, " kv heads x ", config.num_kv_layers(),
                                                   " layers has at most ", num_lists, " shards"));
  }
  ServedModel model;
  std::vector<std::string> names = options.model_ids;
  if (names.empty()) names.push_back(DirectoryName(options.model_dir));
  model.id = names.front();
  model.aliases.assign(names.begin() + 1, names.end());
  model.max_context_tokens =
      static_cast<uint32_t>(std::min<int64_t>(config.max_context_tokens, std::numeric_limits<int32_t>::max()));
  model.vocab_size = vocab_size;
  model.max_budget_tokens = options.selection.budget_tokens;
  model.max_queue = options.max_queue;
  model.default_selection = options.selection;
  const ChatFormats detected = text->DetectFormats();
  model.chat_formats = {.tools = options.tool_format.value_or(detected.tools),
                        .reasoning = options.reasoning_format.value_or(detected.reasoning)};
  if (model.chat_formats.tools != ToolFormat::kNone) {
    spdlog::info("tool calls are read in the format {}", ToolFormatName(model.chat_formats.tools));
  }
  TextGenerationOptions generation;
  generation.eos_token_ids.insert(config.eos_token_ids.begin(), config.eos_token_ids.end());
  generation.windows = config.windows;
  generation.num_kv_heads = config.num_kv_heads;
  if (config.latent) generation.index_top_k = static_cast<uint32_t>(config.latent->indexer.top_k);
  if (!options.head_profile.empty()) {
    WINNOW_ASSIGN_OR_RETURN(HeadProfile profile, HeadProfile::Load(options.head_profile));
    WINNOW_RETURN_IF_ERROR(profile.CheckShape(config.num_kv_layers(), config.num_kv_heads, options.head_profile));
    model.has_head_profile = true;
    generation.head_profile = std::make_shared<const HeadProfile>(std::move(profile));
  }
  std::unique_ptr<KeyRing> keys;
  if (!options.api_keys.empty()) {
    absl::StatusOr<std::unique_ptr<KeyRing>> loaded = KeyRing::Load(options.api_keys);
    if (!loaded.ok()) return Annotate(loaded.status(), "--api-keys");
    keys = *std::move(loaded);
  }
  return std::unique_ptr<Router>(new Router(std::make_unique<Parts>(
      std::move(options), std::move(model), std::move(generation), std::move(keys), std::move(text), metrics)));
}

Router::Router(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Router::~Router() {
  if (parts_->http) parts_->http->Stop(std::chrono::milliseconds(0));
}

std::vector<NamedService> Router::services() {
  return {Named<v1::MembershipService>(&parts_->membership_service),
          Named<v1::GenerationService>(&parts_->generation_service),
          Named<v1::TokenizerService>(&parts_->tokenizer_service), Named<v1::ModelService>(&parts_->model_service),
          Named<v1::ClusterAdminService>(&parts_->cluster_admin_service)};
}

absl::Status Router::StartHttp() {
  Parts& parts = *parts_;
  OpenAiCallbacks callbacks;
  callbacks.ready = [&parts] { return parts.Ready(); };
  callbacks.hooks.on_answer = [&parts](int status) { parts.request_metrics.OnHttpAnswer(status); };
  callbacks.metrics = [&parts] { return parts.metrics->RenderText(); };
  callbacks.authenticate = parts.Authenticate();
  OpenAiOptions openai;
  openai.default_timeout = parts.options.request_timeout;
  openai.max_timeout = std::max(parts.options.request_timeout, Parts::kMaxTimeout);
  openai.stream_keep_alive = parts.options.stream_keep_alive;
  parts.openai = std::make_unique<OpenAiService>([&parts] { return parts.Model(); }, parts.text.get(),
                                                 &parts.generation, std::move(callbacks), openai);
  parts.openai->AddRoutes(&parts.routes);
  parts.routes.Add(HttpMethod::kGet, "/ranks",
                   [this](const std::shared_ptr<HttpExchange>& exchange) { exchange->Respond({.body = RankList()}); });
  if (parts.options.serves_page) AddPageRoutes(&parts.routes);
  HttpHandler handler = WithApiKeys(parts.Authenticate(), [&parts](std::shared_ptr<HttpExchange> exchange) {
    parts.routes.Dispatch(std::move(exchange));
  });
  HttpHooks hooks;
  hooks.on_warning = [](std::string_view message) { spdlog::warn("http: {}", message); };
  WINNOW_ASSIGN_OR_RETURN(parts.http,
                          HttpServer::Start(parts.options.http, WithCors(parts.options.cors, std::move(handler)),
                                            std::move(hooks), HttpErrorResponse));
  return absl::OkStatus();
}

std::string Router::http_address() const {
  if (!parts_->http) return "";
  const std::string& host = parts_->options.http.host;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return absl::StrCat(is_ipv6 ? "[" : "", host, is_ipv6 ? "]:" : ":", parts_->http->port());
}

void Router::StopBeingReady() {
  parts_->leaving = true;
}

void Router::Drain(std::chrono::milliseconds grace, const std::function<bool()>& hurry) {
  Parts& parts = *parts_;
  const auto limit = std::chrono::steady_clock::now() + grace;
  parts.stopping = true;
  parts.leaving = true;
  const absl::Status stopping = parts.Ready();
  parts.dispatcher.StopAdmitting(stopping);
  const size_t requests = parts.dispatcher.num_requests();
  if (requests > 0) spdlog::info("{} requests are under way and may go on for {} ms", requests, grace.count());
  while (parts.dispatcher.num_requests() > 0 && std::chrono::steady_clock::now() < limit && !(hurry && hurry())) {
    std::this_thread::sleep_for(kDrainPoll);
  }
  if (const size_t left = parts.dispatcher.num_requests(); left > 0) {
    spdlog::warn("{} requests are still under way: they end with an error", left);
    parts.dispatcher.FailAll(stopping);
  }
  if (parts.http) parts.http->Stop(kLastWords);
}

std::string Router::ScrapeTargets(const std::string& own_address) const {
  return ScrapeTargetsJson(parts_->registry.Snapshot(), parts_->options.identity.rank(), own_address);
}

std::string Router::RankList() const {
  return RankListJson(parts_->registry.Snapshot(), parts_->reachability.unreachable(),
                      parts_->options.registry_state());
}

absl::Status Router::Ready() const {
  return parts_->Ready();
}

ServedModel Router::model() const {
  return parts_->Model();
}

v1::RankLoad Router::load() const {
  const DispatcherCounters& counters = parts_->dispatcher.counters();
  v1::RankLoad load;
  load.set_running_sequences(static_cast<uint32_t>(std::max<int64_t>(0, counters.running)));
  load.set_waiting_sequences(static_cast<uint32_t>(std::max<int64_t>(0, counters.waiting)));
  load.set_progress_count(counters.tokens);
  return load;
}

v1::Fingerprint Router::fingerprint() const {
  if (std::optional<v1::Fingerprint> fingerprint = parts_->registry.ModelFingerprint()) return *fingerprint;
  v1::Fingerprint fingerprint;
  if (const Tokenizer* tokenizer = parts_->text->tokenizer()) fingerprint.set_tokenizer_digest(tokenizer->Digest());
  return fingerprint;
}

}  // namespace winnow
