#include "router/openai/openai_service.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/metrics/version.h"
#include "router/generation/caller_model.h"
#include "router/keys/tenant.h"
#include "router/openai/generation_session.h"
#include "router/openai/json/api_error.h"
#include "router/openai/json/json_reader.h"
#include "router/openai/request/chat_request.h"
#include "router/openai/request/completion_request.h"
#include "router/openai/request/responses_request.h"
#include "router/openai/response/model_list.h"
#include "router/openai/response/selection_list.h"
#include "router/openai/tokenize.h"

namespace winnow {
namespace {

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const char* IdPrefix(Endpoint endpoint) {
  if (endpoint == Endpoint::kResponses) return "resp_";
  return endpoint == Endpoint::kChatCompletions ? "chatcmpl-" : "cmpl-";
}

std::string JsonReason(const absl::Status& status) {
  JsonWriter json;
  json.BeginObject().Key("status").String("not ready").Key("reason").String(StdSv(status.message())).EndObject();
  return json.Take();
}

std::string VersionJson() {
  JsonWriter json;
  json.BeginObject().Key("version").String(Version()).EndObject();
  return json.Take();
}

absl::StatusOr<std::chrono::milliseconds> RequestTimeout(const HttpRequest& request, const OpenAiOptions& options) {
  const std::string* header = request.FindHeader("x-request-timeout-ms");
  if (header == nullptr) return options.default_timeout;
  int64_t ms = 0;
  if (!absl::SimpleAtoi(*header, &ms) || ms <= 0) {
    return InvalidField("x-request-timeout-ms",
                        "The header x-request-timeout-ms must be a positive number of milliseconds.");
  }
  return std::min(std::chrono::milliseconds(ms), options.max_timeout);
}

// Sets what of `config` the headers Winnow-Resume and Last-Event-ID say.
absl::Status ReadResume(const HttpRequest& request, GenerationSession::Config* config) {
  const std::string* token = request.FindHeader("winnow-resume");
  if (token == nullptr) return absl::OkStatus();
  const CommonFields& fields = config->request.fields;
  if (!fields.resumable) {
    return InvalidField("winnow-resume",
                        "The header Winnow-Resume asks for the rest of a resumable stream: send the request as it was, "
                        "with \"winnow\": {\"resumable\": true}.");
  }
  config->resume_token = *token;
  const std::string* last_event = request.FindHeader("last-event-id");
  if (last_event == nullptr) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(config->client_has, ParseEventId(*last_event, fields.n));
  return absl::OkStatus();
}

}  // namespace

class OpenAiService::Impl {
 public:
  Impl(std::function<ServedModel()> model, const TextCodec* codec, Generation* generation, OpenAiCallbacks callbacks,
       OpenAiOptions options)
      : model_(std::move(model)),
        codec_(*codec),
        generation_(*generation),
        callbacks_(std::move(callbacks)),
        options_(options),
        started_unix_s_(UnixSeconds()),
        workers_(static_cast<size_t>(std::max(1, options.num_workers))),
        keep_alive_(options.stream_keep_alive) {}

  ~Impl() { workers_.join(); }

  void AddRoutes(RouteTable* routes);

 private:
  using Exchange = std::shared_ptr<HttpExchange>;

  // Runs `work` here or, when it may take long, on a worker; then `finish` with its result on the connection's thread.
  // The request has no body any more in `finish`.
  template <typename Work, typename Finish>
  void Prepare(Exchange exchange, bool may_take_long, Work work, Finish finish) {
    if (!may_take_long) {
      auto result = work(exchange->request());
      exchange->ReleaseBody();
      return finish(exchange, std::move(result));
    }
    boost::asio::post(workers_, [exchange = std::move(exchange), work = std::move(work), finish = std::move(finish)] {
      auto result = std::make_shared<decltype(work(exchange->request()))>(work(exchange->request()));
      exchange->Post([exchange, finish, result] {
        exchange->ReleaseBody();
        if (exchange->open()) finish(exchange, std::move(*result));
      });
    });
  }

  bool IsLong(const Exchange& exchange) const { return exchange->request().body.size() > options_.inline_body_bytes; }

  absl::StatusOr<Caller> CallerOf(const HttpRequest& request) const;

  struct Admitted {
    Caller caller;
    GenerationRequest request;
  };
  void Generate(Exchange exchange, Endpoint endpoint);
  absl::StatusOr<Admitted> Parse(const HttpRequest& request, Endpoint endpoint) const;
  std::unique_ptr<ResponseFormat> FormatFor(Endpoint endpoint, ResponseIdentity identity, Json echoed) const;
  void StartSession(const Exchange& exchange, absl::StatusOr<Admitted> admitted);
  void Refuse(const Exchange& exchange, const absl::Status& status);
  void Answer(Exchange exchange,
              absl::StatusOr<std::string> (*answer)(const Json&, const ServedModel&, const TextCodec&));
  void Abort(const Exchange& exchange);
  void ShowModel(const Exchange& exchange);
  void ShowReady(const Exchange& exchange);
  void ShowMetrics(Exchange exchange);

  const std::function<ServedModel()> model_;
  const TextCodec& codec_;
  Generation& generation_;
  const OpenAiCallbacks callbacks_;
  const OpenAiOptions options_;
  const int64_t started_unix_s_;
  boost::asio::thread_pool workers_;
  StreamKeepAlive keep_alive_;
};

void OpenAiService::Impl::AddRoutes(RouteTable* routes) {
  routes->Add(HttpMethod::kPost, "/v1/completions",
              [this](Exchange exchange) { Generate(std::move(exchange), Endpoint::kCompletions); });
  routes->Add(HttpMethod::kPost, "/v1/chat/completions",
              [this](Exchange exchange) { Generate(std::move(exchange), Endpoint::kChatCompletions); });
  routes->Add(HttpMethod::kPost, "/v1/responses",
              [this](Exchange exchange) { Generate(std::move(exchange), Endpoint::kResponses); });
  routes->Add(HttpMethod::kGet, "/v1/models",
              [this](Exchange exchange) { exchange->Respond({.body = ModelListJson(model_(), started_unix_s_)}); });
  routes->Add(HttpMethod::kGet, "/v1/models/*", [this](Exchange exchange) { ShowModel(exchange); });
  routes->Add(HttpMethod::kGet, "/selection",
              [this](Exchange exchange) { exchange->Respond({.body = SelectionListJson(model_())}); });
  routes->Add(HttpMethod::kPost, "/tokenize",
              [this](Exchange exchange) { Answer(std::move(exchange), &TokenizeJson); });
  routes->Add(HttpMethod::kPost, "/detokenize",
              [this](Exchange exchange) { Answer(std::move(exchange), &DetokenizeJson); });
  routes->Add(HttpMethod::kPost, "/abort", [this](Exchange exchange) { Abort(exchange); });
  routes->Add(HttpMethod::kGet, "/health",
              [](Exchange exchange) { exchange->Respond({.body = R"({"status":"ok"})"}); });
  // What SageMaker asks.
  for (const HttpMethod method : {HttpMethod::kGet, HttpMethod::kPost}) {
    routes->Add(method, "/ping", [](Exchange exchange) { exchange->Respond({.content_type = "", .body = ""}); });
  }
  routes->Add(HttpMethod::kGet, "/version", [](Exchange exchange) { exchange->Respond({.body = VersionJson()}); });
  routes->Add(HttpMethod::kGet, "/ready", [this](Exchange exchange) { ShowReady(exchange); });
  routes->Add(HttpMethod::kGet, "/metrics", [this](Exchange exchange) { ShowMetrics(std::move(exchange)); });
}

void OpenAiService::Impl::Generate(Exchange exchange, Endpoint endpoint) {
  const bool may_take_long = IsLong(exchange);
  Prepare(
      std::move(exchange), may_take_long,
      [this, endpoint](const HttpRequest& request) { return Parse(request, endpoint); },
      [this](const Exchange& ready, absl::StatusOr<Admitted> admitted) { StartSession(ready, std::move(admitted)); });
}

absl::StatusOr<Caller> OpenAiService::Impl::CallerOf(const HttpRequest& request) const {
  const std::string* header = request.FindHeader("authorization");
  const std::string_view credentials = header == nullptr ? std::string_view() : *header;
  if (callbacks_.authenticate) return callbacks_.authenticate(credentials);
  return Caller{.tenant = TenantOf(credentials)};
}

absl::StatusOr<OpenAiService::Impl::Admitted> OpenAiService::Impl::Parse(const HttpRequest& request,
                                                                         Endpoint endpoint) const {
  WINNOW_ASSIGN_OR_RETURN(Caller caller, CallerOf(request));
  WINNOW_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(request.body));
  const ServedModel model = ModelFor(caller, model_());
  WINNOW_ASSIGN_OR_RETURN(GenerationRequest parsed,
                          endpoint == Endpoint::kCompletions ? ParseCompletionRequest(body, model, codec_)
                          : endpoint == Endpoint::kResponses ? ParseResponsesRequest(body, model, codec_)
                                                             : ParseChatRequest(body, model, codec_));
  if (caller.account != nullptr) WINNOW_RETURN_IF_ERROR(caller.account->CheckModel(parsed.fields.model));
  return Admitted{std::move(caller), std::move(parsed)};
}

std::unique_ptr<ResponseFormat> OpenAiService::Impl::FormatFor(Endpoint endpoint, ResponseIdentity identity,
                                                               Json echoed) const {
  switch (endpoint) {
    case Endpoint::kChatCompletions:
      return MakeChatFormat(std::move(identity), &codec_);
    case Endpoint::kResponses:
      return MakeResponsesFormat(std::move(identity), std::move(echoed), &codec_);
    default:
      return MakeCompletionFormat(std::move(identity), &codec_);
  }
}

void OpenAiService::Impl::StartSession(const Exchange& exchange, absl::StatusOr<Admitted> admitted) {
  if (!admitted.ok()) return Refuse(exchange, admitted.status());
  const absl::StatusOr<std::chrono::milliseconds> timeout = RequestTimeout(exchange->request(), options_);
  if (!timeout.ok()) return Refuse(exchange, timeout.status());

  GenerationRequest& request = admitted->request;
  const Endpoint endpoint = request.endpoint;
  ResponseIdentity identity{.id = absl::StrCat(IdPrefix(endpoint), exchange->request().request_id),
                            .created_unix_s = UnixSeconds(),
                            .model = request.fields.model,
                            .top_logprobs = request.top_logprobs,
                            .echoes_logprobs = request.echoes_logprobs,
                            .prompt_logprobs = request.prompt_logprobs,
                            .tokens_as_ids = request.fields.tokens_as_ids,
                            .return_token_ids = request.fields.return_token_ids,
                            .include_usage = request.fields.include_usage};
  std::unique_ptr<ResponseFormat> format = FormatFor(endpoint, std::move(identity), std::move(request.echoed));
  GenerationSession::Config config{.request = std::move(request),
                                   .caller = std::move(admitted->caller),
                                   .format = std::move(format),
                                   .deadline = std::chrono::system_clock::now() + *timeout,
                                   .hooks = &callbacks_.hooks,
                                   .keep_alive = options_.stream_keep_alive};
  if (const absl::Status read = ReadResume(exchange->request(), &config); !read.ok()) return Refuse(exchange, read);
  const bool stream = config.request.fields.stream;
  const auto session = std::make_shared<GenerationSession>(exchange, std::move(config));
  session->Start(&generation_);
  if (stream) keep_alive_.Watch(session);
}

void OpenAiService::Impl::Refuse(const Exchange& exchange, const absl::Status& status) {
  HttpResponse response = ErrorResponse(status);
  if (callbacks_.hooks.on_answer) callbacks_.hooks.on_answer(response.status);
  exchange->Respond(std::move(response));
}

void OpenAiService::Impl::Answer(Exchange exchange,
                                 absl::StatusOr<std::string> (*answer)(const Json&, const ServedModel&,
                                                                       const TextCodec&)) {
  const bool may_take_long = IsLong(exchange);
  Prepare(
      std::move(exchange), may_take_long,
      [this, answer](const HttpRequest& request) -> absl::StatusOr<std::string> {
        WINNOW_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(request.body));
        return answer(body, model_(), codec_);
      },
      [](const Exchange& ready, absl::StatusOr<std::string> json) {
        ready->Respond(json.ok() ? HttpResponse{.body = *std::move(json)} : ErrorResponse(json.status()));
      });
}

void OpenAiService::Impl::Abort(const Exchange& exchange) {
  const auto abort = [&]() -> absl::Status {
    WINNOW_ASSIGN_OR_RETURN(const Caller caller, CallerOf(exchange->request()));
    WINNOW_ASSIGN_OR_RETURN(const Json body, ParseJsonObject(exchange->request().body));
    JsonReader reader(body);
    const std::optional<std::string> token = reader.String("resume_token");
    if (!token) reader.Fail("resume_token", "is needed: what the header Winnow-Resume of the answer says.");
    WINNOW_RETURN_IF_ERROR(reader.status());
    return generation_.Abort(*token, caller);
  };
  const absl::Status status = abort();
  exchange->Respond(status.ok() ? HttpResponse{.body = "{}"} : ErrorResponse(status));
}

void OpenAiService::Impl::ShowModel(const Exchange& exchange) {
  const std::string id = PathTail(exchange->request(), "/v1/models/");
  const ServedModel model = model_();
  if (!model.HasName(id)) return exchange->Respond(ErrorResponse(ModelNotFound(id, model)));
  exchange->Respond({.body = ModelJson(model, id, started_unix_s_)});
}

void OpenAiService::Impl::ShowReady(const Exchange& exchange) {
  const absl::Status status = callbacks_.ready ? callbacks_.ready() : absl::OkStatus();
  if (status.ok()) return exchange->Respond({.body = R"({"status":"ready"})"});
  exchange->Respond({.status = 503, .body = JsonReason(status), .headers = {{"Retry-After", "1"}}});
}

void OpenAiService::Impl::ShowMetrics(Exchange exchange) {
  Prepare(
      std::move(exchange), true,
      [this](const HttpRequest&) -> absl::StatusOr<std::string> {
        return callbacks_.metrics ? callbacks_.metrics() : std::string();
      },
      [](const Exchange& ready, absl::StatusOr<std::string> text) {
        ready->Respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = *std::move(text)});
      });
}

OpenAiService::OpenAiService(std::function<ServedModel()> model, const TextCodec* codec, Generation* generation,
                             OpenAiCallbacks callbacks, OpenAiOptions options)
    : impl_(std::make_unique<Impl>(std::move(model), codec, generation, std::move(callbacks), options)) {}

OpenAiService::OpenAiService(ServedModel model, const TextCodec* codec, Generation* generation,
                             OpenAiCallbacks callbacks, OpenAiOptions options)
    : OpenAiService([model = std::move(model)] { return model; }, codec, generation, std::move(callbacks), options) {}

OpenAiService::~OpenAiService() = default;

void OpenAiService::AddRoutes(RouteTable* routes) {
  impl_->AddRoutes(routes);
}

}  // namespace winnow
