#include "cmd/role/options/router_options.h"

#include "absl/strings/numbers.h"

namespace winnow {
namespace {

constexpr uint32_t kMaxCacheShards = 64;  // as `winnow up` starts no more cache ranks

}  // namespace

void RequestReportFlags::Declare(Fields& fields) {
  fields.Bool("log-requests", &log_requests,
              "A line in the router's log for each request that has ended: its id, tokens, times, ranks, and how it "
              "ended. No text of prompts or answers.");
  fields.Enum("metrics-aliases", &metrics_aliases, {{"none", MetricsAliases::kNone}, {"vllm", MetricsAliases::kVllm}},
              "vllm: the router's /metrics has its figures under vLLM's names, too, for autoscalers, dashboards and "
              "gateways that look for these.");
}

void PlacementFlags::Declare(Fields& fields) {
  fields.Custom(
      "cache-shards", "N|auto",
      "Cache ranks that the KV of each sequence is spread over, by kv head and, "
      "beyond their number, by ranges of layers: each holds that part, selects in it "
      "and streams its rows. auto = the fewest on whose free memory the sequence fits.",
      [this](std::string_view text) -> absl::Status {
        if (text == "auto") {
          cache_shards = 0;
          return absl::OkStatus();
        }
        int64_t shards = 0;
        if (!absl::SimpleAtoi(AbslSv(text), &shards) || shards < 1 || shards > kMaxCacheShards) {
          return absl::InvalidArgumentError(absl::StrCat("a number from 1 to ", kMaxCacheShards, ", or auto"));
        }
        cache_shards = static_cast<uint32_t>(shards);
        return absl::OkStatus();
      },
      [this] { return cache_shards == 0 ? std::string("auto") : std::to_string(cache_shards); });
  fields.Integer(
      "replicas", &replicas,
      "Cache ranks that hold the KV of each sequence: with 2, a second one gets a copy behind the steps, with which "
      "requests go on when the first is lost, and nothing is computed again. A copy takes as much memory. Not with "
      "--cache-shards.",
      1u, 2u);
  fields.Duration("slow-start", &slow_start,
                  "How long a cache rank that joins gets less than its share of new sequences, a tenth at first and "
                  "then more and more; 0s = its share at once.");
}

absl::Status PlacementFlags::Check() const {
  if (replicas == 1 || cache_shards == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--replicas=2 and --cache-shards exclude each other: sequences that are spread over cache ranks have no "
      "replicas");
}

void HttpTlsFlags::Declare(Fields& fields) {
  fields.File("http-tls-cert", &files.certificate,
              "Certificate (PEM) of the HTTP API, with those that it was signed with behind it. Changed files are read "
              "within seconds. Empty = HTTP without TLS.");
  fields.File("http-tls-key", &files.key, "Key (PEM) of --http-tls-cert.");
}

void HttpApiFlags::Declare(Fields& fields) {
  fields.Text("cors-origins", &cors_origins,
              "Origins whose pages may use the HTTP API from a browser, separated by commas "
              "(https://example.org,http://localhost:3000); * = all. Empty = none. Without --api-keys whoever "
              "opens such a page uses the server.");
  fields.Duration(
      "stream-keep-alive", &stream_keep_alive,
      "A stream that has had nothing to say for so long sends a comment, so that proxies do not close it. An "
      "error that comes after one is an event of the stream and no HTTP status. 0s = never.");
  fields.Bool(
      "page", &page,
      "Serve a page at / from which a browser talks to the model and sees how its answers are made; it uses the "
      "HTTP API alone.");
}

void ChatFlags::Declare(Fields& fields) {
  fields.Enum<std::optional<ToolFormat>>(
      "tool-format", &tool_format,
      {{"auto", std::nullopt},
       {"hermes", ToolFormat::kHermes},
       {"llama", ToolFormat::kLlama},
       {"mistral", ToolFormat::kMistral},
       {"harmony", ToolFormat::kHarmony},
       {"none", ToolFormat::kNone}},
      "How the model writes tool calls: hermes is <tool_call>{...}</tool_call> (Qwen too), llama the JSON of "
      "Llama 3.x, mistral what follows [TOOL_CALLS], harmony the channels of gpt-oss. auto = what its chat template or "
      "vocabulary shows; none = requests with tools are refused.");
  fields.Enum<std::optional<ReasoningFormat>>(
      "reasoning-format", &reasoning_format,
      {{"auto", std::nullopt},
       {"think", ReasoningFormat::kThink},
       {"harmony", ReasoningFormat::kHarmony},
       {"none", ReasoningFormat::kNone}},
      "How the model sets its reasoning apart, which answers then have in reasoning_content: think is "
      "<think>...</think>. auto = what its chat template or vocabulary shows; none = it stays in the content.");
}

RouterProcessOptions::RouterProcessOptions() {
  process.rank = "router-0";
  process.grpc.port = 8001;
}

void RouterProcessOptions::Declare(Fields& fields) {
  process.Declare(fields);
  discovery.Declare(fields);
  DeclareAdvertise(fields, &advertise);
  fields.Folder("model", &model, "Folder of the model: its tokenizer and chat template are read here.");
  fields.Text(
      "model-id", &model_id,
      "Names of the model in the APIs, separated by commas; answers to requests that name none have the first. Empty = "
      "the folder's name.");
  fields.Address("http", &http, "Where the OpenAI-compatible HTTP server listens.");
  http_tls.Declare(fields);
  http_api.Declare(fields);
  chat.Declare(fields);
  selection.Declare(fields);
  DeclareApiKeys(fields, &api_keys);
  placement.Declare(fields);
  DeclareMaxQueue(fields, &max_queue);
  fields.Integer("http-threads", &http_threads, "Event loops of the HTTP server; each serves thousands of streams.", 1,
                 256);
  fields.Bytes("http-body-memory", &http_body_memory_bytes,
               "Bytes of HTTP request bodies held at a time, of up to 16 MiB each; requests beyond get 503.",
               int64_t{16} << 20);
  fields.Duration("request-timeout", &request_timeout, "Longest life of a request whose client names no deadline.");
  DeclareDrainDelay(fields, &drain_delay);
  DeclareStopGrace(fields, &stop_grace);
  reports.Declare(fields);
}

void DeclareApiKeys(Fields& fields, std::string* api_keys) {
  fields.File("api-keys", api_keys,
              "File of API keys (`winnow keys`): requests then need one of them and are held to its limits. Changes of "
              "the file are in force within seconds. Empty = anybody may send requests.");
}

void DeclareStopGrace(Fields& fields, std::chrono::microseconds* stop_grace) {
  fields.Duration("stop-grace", stop_grace,
                  "How long answers under way may go on after SIGTERM, while new requests are refused; those that are "
                  "not done then, or when a second signal comes, end with an error. Without any the router stops at "
                  "once.");
}

void DeclareDrainDelay(Fields& fields, std::chrono::microseconds* drain_delay) {
  fields.Duration("drain-delay", drain_delay,
                  "How long the router goes on as before after SIGTERM while /ready already answers 503, so that load "
                  "balancers turn away from it first; then --stop-grace begins. A second signal ends it.");
}

void DeclareMaxQueue(Fields& fields, uint32_t* max_queue) {
  fields.Integer("max-queue", max_queue, "Requests under way or waiting at once; more are refused with 429.", 1u,
                 1u << 20);
}

}  // namespace winnow
