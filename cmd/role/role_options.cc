#include "cmd/role/role_options.h"

#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "cmd/role/machine.h"
#include "cmd/role/own_address.h"
#include "common/config/host_address.h"
#include "common/log/log.h"
#include "common/model/synthetic_models.h"
#include "common/selection/head_profile.h"
#include "common/selection/presets.h"
#include "common/selection/spec_text.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

constexpr uint32_t kMaxCacheShards = 64;  // as `winnow up` starts no more cache ranks
constexpr std::string_view kByModel = "auto";

}  // namespace

absl::Status CheckModelOption(const std::string& model) {
  if (model.empty()) return absl::InvalidArgumentError("--model DIR is required");
  std::error_code error;
  if (IsSyntheticModel(model)) return Annotate(SyntheticModelConfig(model).status(), "--model");
  if (!std::filesystem::is_directory(model, error)) {
    return absl::InvalidArgumentError(absl::StrCat("--model: there is no folder ", model));
  }
  if (!std::filesystem::exists(std::filesystem::path(model) / "config.json", error)) {
    return absl::InvalidArgumentError(absl::StrCat("--model: no config.json in ", model));
  }
  return absl::OkStatus();
}

absl::Status CheckMaxContext(uint32_t max_context) {
  if (max_context != 1) return absl::OkStatus();
  return absl::InvalidArgumentError("--max-context=1 leaves no token for the answer: at least 2, or 0");
}

void ProcessOptions::Declare(Fields& fields) {
  fields.Text("cluster", &cluster, "Name that all processes of a cluster share; others are refused.");
  fields.Text("rank", &rank, "Name of this process, unique among those of its role.");
  fields.Address(
      "grpc", &grpc,
      "Where the gRPC server listens. Port 0 takes a free one. Of ranks, the host auto is the address of this "
      "machine towards the router: loopback where the router is on this machine, too.");
  fields.Address("metrics", &metrics,
                 "Where HTTP answers /metrics, and the probes /ready, /live and /health; hosts as for --grpc.");
  security.Declare(fields);
  log.Declare(fields, "Of this process");
  fields.Integer("report-fd", &report_fd, "Descriptor on which to tell a parent process the addresses and readiness.",
                 -1, 1 << 20);
}

void SecurityOptions::Declare(Fields& fields) {
  fields.Text(
      "tls-cert", &tls_cert,
      "Certificate (PEM) of the process for gRPC, with the URI name spiffe://winnow/ROLE; \"{role}\" in the path, "
      "here and below, stands for router, inference-rank or cache-rank. Changed files are read within seconds. "
      "Empty = nothing is encrypted, and whoever reaches a port may use it.");
  fields.Text("tls-key", &tls_key, "Key (PEM) of --tls-cert.");
  fields.Text("tls-ca", &tls_ca, "Certificates (PEM) of those who sign the certificates of the cluster.");
  fields.Bool("insecure", &insecure,
              "Listen without TLS on addresses that other machines reach: for private networks alone. Without it such "
              "addresses are refused, but for --metrics.");
}

absl::StatusOr<TlsFiles> SecurityOptions::FilesFor(std::string_view role) const {
  const auto path = [&](const std::string& text) { return absl::StrReplaceAll(text, {{"{role}", AbslSv(role)}}); };
  TlsFiles files{.certificate = path(tls_cert), .key = path(tls_key), .authorities = path(tls_ca)};
  if (!files.empty() && (tls_cert.empty() || tls_key.empty() || tls_ca.empty())) {
    return absl::InvalidArgumentError("--tls-cert, --tls-key and --tls-ca need each other");
  }
  return files;
}

absl::Status SecurityOptions::CheckExposure(std::string_view option, const HostPort& listen, bool encrypted) const {
  if (encrypted || insecure || IsLoopbackHost(listen.host) || listen.host == kAutoHost) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--", AbslSv(option), "=", listen.ToString(), " is reached from other machines, and without TLS: set ",
      option == "http" ? "--http-tls-cert" : "--tls-cert, --tls-key and --tls-ca",
      ", or --insecure where the network is private"));
}

void JoinOptions::Declare(Fields& fields) {
  fields.Custom(
      "router", "HOST:PORT[,...]",
      "gRPC addresses of routers. The first that answers is taken; when it is lost, the next. A name with several "
      "addresses stands for all of them.",
      [this](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(routers, ParseHostPorts(text));
        return absl::OkStatus();
      },
      [this] { return ToString(routers); });
  fields.Custom(
      "advertise", "HOST[:PORT]",
      "Where the router and other ranks reach this process, if not where it listens (--grpc); without a port, the one "
      "of --grpc. Empty = the address that it listens on, or, where that is all of them, the one towards the router.",
      [this](std::string_view text) {
        advertise = std::string(text);
        return CheckAdvertise(advertise);
      },
      [this] { return advertise; });
}

void SelectionOptions::Declare(Fields& fields) {
  std::string names;
  for (const SelectionPreset& preset : SelectionPresets()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", preset.spec.preset);
  }
  fields.Custom(
      "selection", "PRESET[,FIELD=VALUE...]",
      "Selection of requests that ask for none: auto, which is native for models that bring an indexer and winnow for "
      "all others, or a preset and what is changed of it, for example "
      "winnow,lookahead=2,budget=512. `winnow selection list` describes the presets, `winnow selection explain` the "
      "fields. Presets: " +
          names + ".",
      [this](std::string_view text) {
        specification = std::string(text);
        return text == kByModel ? absl::OkStatus() : ParseSpec(text).status();
      },
      [this] { return specification; });
  fields.Integer(
      "budget", &budget,
      "Selected rows per head, sinks and recent rows not counted; also the most that a request may ask for. More rows "
      "mean more resident memory and more bytes per step, and a larger share of the attention. 0 = that of "
      "--selection.");
  fields.Integer<int64_t>("sinks", &sinks, "First positions that are always attended; -1 = that of --selection.", -1,
                          4096);
  fields.Integer<int64_t>("recent", &recent, "Newest positions that are always attended; -1 = that of --selection.", -1,
                          65536);
  fields.Number("pool-factor", &pool_factor,
                "Rows kept resident around the selection, as a multiple of the budget. More memory, fewer bytes per "
                "step; never another result. 0 = that of --selection.",
                0, 64);
  fields.Text(
      "head-profile", &head_profile,
      "File of `winnow profile-heads` for this model. Selections with profile_use=budgets share out their budget "
      "among the heads by it; with profile_use=streaming its streaming heads keep sinks and recent rows only. "
      "A selection that uses one, such as lserve, is refused without it.");
}

absl::StatusOr<SelectionSpec> SelectionOptions::Resolve(const std::string& model) const {
  std::string_view text = specification;
  if (text == kByModel) {
    const absl::StatusOr<ModelConfig> config = ModelConfigOf(model);  // whose errors others report
    text = config.ok() && config->latent && config->latent->indexer.num_heads > 0 ? "native" : "winnow";
  }
  WINNOW_ASSIGN_OR_RETURN(SelectionSpec spec, ParseSpec(text));
  if (budget > 0) spec.budget_tokens = budget;
  if (sinks >= 0) spec.sink_tokens = static_cast<uint32_t>(sinks);
  if (recent >= 0) spec.recent_tokens = static_cast<uint32_t>(recent);
  if (pool_factor > 0) spec.pool_factor = pool_factor;
  if (head_profile.empty()) WINNOW_RETURN_IF_ERROR(CheckNeedsNoHeadProfile(spec));
  WINNOW_RETURN_IF_ERROR(ValidateSelection(spec));
  return spec;
}

void SchedulingFlags::Declare(Fields& fields) {
  fields.Integer(
      "max-batch-tokens", &max_batch_tokens,
      "The most decode rows and prompt tokens that an iteration computes together. Rows beyond it take turns, and "
      "a quarter of it is kept for prompts that wait. 0 = no limit beside --max-running and prefill chunks.",
      0u, 1u << 20);
  fields.Integer("max-inject-tokens", &max_inject_tokens,
                 "The most prompt tokens that an iteration computes beside running answers: fewer let them stream more "
                 "evenly, more let new ones start sooner. 0 = as many as a prefill chunk.",
                 0u, 65536u);
  fields.Duration(
      "tpot-target", &tpot_target,
      "Time between the tokens of an answer that prompts beside it must respect, for example 50ms: injected "
      "tokens are found from it, up to --max-inject-tokens, by measuring steps. Prompts get a fifth of the time "
      "even where nothing fits. 0s = none.");
  fields.Duration("age-bound", &age_bound,
                  "A sequence that has waited for so long goes before all others, and may take the place of one that "
                  "has run for so long, which resumes later with the same output. 0s = never.");
  fields.Bool(
      "working-set-control", &working_set_control,
      "Decode as many sequences at once as have room for what their selections read in the fast memory of their cache "
      "ranks; others wait for their turn, which comes after --age-bound at the latest. off = all at once.");
}

void CacheOptions::Declare(Fields& fields) {
  fields.Text("model", &model,
              "Folder of the model whose KV is held, for selections with projection on the cache rank: norms and query "
              "projections are loaded, and other models are refused. Empty = such selections are refused.");
  fields.Text("lane-model", &lane_model,
              "Folder of the model, or synthetic model, whose query projections the GPU holds for lanes that select "
              "with queries predicted in depth; empty = --model.");
  DeclareCompute(fields, &compute);
  fields.Bytes("memory", &memory_bytes,
               "Memory for KV blocks, all sequences together; a request whose context does not fit beside others "
               "waits, one that can never fit is refused. 0 = 30 % of what is free.");
  DeclareFastMemory(fields, &fast_memory_bytes);
  fields.Integer("threads", &threads, "Threads that score keys; 0 = one per core.", 0, 1024);
  fields.Duration("detached-ttl", &detached_ttl,
                  "How long the KV of a sequence outlives its inference rank, so that another can take it over.");
  DeclarePrefixCache(fields, &prefix_cache, &prefix_cache_memory_bytes);
  fields.Custom(
      "device", "auto|cpu|cuda[:N]",
      "Where keys are scored and rows selected. cuda: on GPU N, which keeps an 8-bit copy of the keys, while rows stay "
      "in host memory; auto: there if it answers and can, otherwise on the CPU, and the log says why not.",
      [this](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(device, ParseDeviceChoice(text));
        return device.more.empty() ? absl::OkStatus() : absl::InvalidArgumentError("a cache rank has one GPU");
      },
      [this] { return ToString(device); });
  fields.Bytes("device-memory", &device_memory_bytes,
               "Memory of the GPU: for the index of keys, and where there are lanes, three quarters for mirrors of "
               "sequences. 0 = nine tenths of what is free.");
  DeclareDeviceHostMemory(fields, "device-host-memory", &device_host_memory_bytes);
}

RouterProcessOptions::RouterProcessOptions() {
  process.rank = "router-0";
  process.grpc.port = 8001;
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
  fields.Duration("slow-start", &slow_start,
                  "How long a cache rank that joins gets less than its share of new sequences, a tenth at first and "
                  "then more and more; 0s = its share at once.");
}

void HttpTlsFlags::Declare(Fields& fields) {
  fields.Text("http-tls-cert", &files.certificate,
              "Certificate (PEM) of the HTTP API, with those that it was signed with behind it. Changed files are read "
              "within seconds. Empty = HTTP without TLS.");
  fields.Text("http-tls-key", &files.key, "Key (PEM) of --http-tls-cert.");
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

void RouterProcessOptions::Declare(Fields& fields) {
  process.Declare(fields);
  fields.Text("model", &model, "Folder of the model: its tokenizer and chat template are read here.");
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

InferenceProcessOptions::InferenceProcessOptions() {
  process.rank = "inference-0";
  process.grpc.host = process.metrics.host = kAutoHost;
}

CacheProcessOptions::CacheProcessOptions() {
  process.rank = "cache-0";
  process.grpc.host = process.metrics.host = kAutoHost;
}

void InferenceProcessOptions::Declare(Fields& fields) {
  process.Declare(fields);
  join.Declare(fields);
  fields.Text("model", &model, "Folder of the model (config.json, tokenizer.json, safetensors).");
  fields.Enum(
      "role", &role,
      {{"prefill", InferenceRole::kPrefill}, {"decode", InferenceRole::kDecode}, {"both", InferenceRole::kBoth}},
      "What the router gives this rank, while there are others for the rest: prefill computes prompts and hands "
      "them over after the first token, decode goes on from there with what is on the cache rank.");
  DeclareDecodePrefillTokens(fields, &decode_prefill_tokens);
  DeclareTransport(fields, &transport);
  DeclareSelectInPlace(fields, &select_in_place);
  DeclareDevice(fields, &device, &tensor_parallel);
  DeclareCompute(fields, &compute);
  DeclareKvDtype(fields, &kv_dtype);
  fields.Text("isa", &isa, "CPU kernels: auto, or the name of a set (portable, avx512bf16).");
  fields.Integer("threads", &threads,
                 "Threads of the compute team; 0 = one per core. More than cores makes every step slower.", 0, 1024);
  DeclareMaxContext(fields, &max_context);
  DeclareMaxRunning(fields, &max_running);
  prefill.Declare(fields);
  scheduling.Declare(fields);
  DeclareResumeGrace(fields, &resume_grace);
  DeclareSlotMemory(fields, &slot_memory_bytes);
  selection.Declare(fields);
  fields.Nested("cache", &cache);
}

void CacheProcessOptions::Declare(Fields& fields) {
  process.Declare(fields);
  join.Declare(fields);
  cache.Declare(fields);
}

void DeclareTransport(Fields& fields, TransportKind* transport) {
  fields.Enum(
      "transport", transport,
      {{"auto", TransportKind::kAuto},
       {"inproc", TransportKind::kInproc},
       {"ucx", TransportKind::kUcx},
       {"p2p", TransportKind::kP2p},
       {"nccl", TransportKind::kNccl}},
      "How KV rows travel to cache ranks in processes of their own. ucx: by UCX. p2p: within a host, prompts and "
      "frames in memory that both processes map, and decode steps from GPU to GPU where both ranks have one (--device, "
      "--cache-device) that reach each other. nccl: prompts and frames from GPU to GPU by NCCL, also between hosts. "
      "What cannot be goes by ucx, and the log says why. inproc hosts a cache rank inside the inference process, so "
      "that a crash loses both. auto = p2p.");
}

void DeclareSelectInPlace(Fields& fields, SelectInPlace* select_in_place) {
  fields.Enum(
      "select-in-place", select_in_place,
      {{"auto", SelectInPlace::kAuto}, {"on", SelectInPlace::kOn}, {"off", SelectInPlace::kOff}},
      "Where an inference rank on one GPU selects the rows that its steps attend to: on, on that GPU, which then holds "
      "all rows of its sequences and an index of their keys; cache ranks keep a copy, from which sequences go on after "
      "a failure. off, on the cache ranks. What cannot be selected in place (predictors that look back, streaming "
      "heads, corrections, lists for each query head) goes by the cache ranks all the same. auto = on where no cache "
      "rank's GPU can be reached (--transport).");
}

void PrefillFlags::Declare(Fields& fields) {
  fields.Enum("prefill", &mode,
              {{"auto", PrefillMode::kAuto}, {"chunked", PrefillMode::kChunked}, {"layered", PrefillMode::kLayered}},
              "How prompts are computed: chunked keeps the KV of the whole prompt until it is done; layered goes layer "
              "by layer over all of it and keeps one layer's KV and the residual of each token. auto = layered where a "
              "prompt's KV would not fit --prefill-memory, and on a GPU with --tpot-target.");
  fields.Enum(
      "prefix-attention", &prefix_attention,
      {{"auto", PrefixAttention::kAuto},
       {"stream-back", PrefixAttention::kStreamBack},
       {"remote", PrefixAttention::kRemote}},
      "How the rest of a prompt attends to a cached prefix: stream-back has all rows of the prefix sent; remote "
      "sends the queries to the cache ranks, layer by layer, and gets states of attention back. auto = whichever is "
      "expected to be faster: remote where little follows a long prefix. Answers are the same. Always stream-back "
      "on a GPU, where decoding begins with all rows, and where a cache rank has other kernels (isa).");
  fields.Integer(
      "prefill-chunk", &chunk,
      "Prompt tokens computed at a time. Larger chunks are faster and hold up running sequences for longer. 0 = "
      "512 on a CPU, 2048 on a GPU.",
      0u, 65536u);
  fields.Bytes(
      "prefill-memory", &memory_bytes,
      "Memory for prompts in prefill: their KV, or, layer by layer, one layer's and the residuals; of each GPU "
      "where several hold a model. 0 = two of the longest.");
}

void DeclareDecodePrefillTokens(Fields& fields, uint32_t* decode_prefill_tokens) {
  fields.Integer("decode-prefill-tokens", decode_prefill_tokens,
                 "Longest prompt that a rank for decoding computes itself. Longer ones hold up its running sequences; "
                 "shorter ones are not worth a hand-over. 0 = none.",
                 0u, 1u << 24);
}

void DeclareDevice(Fields& fields, DeviceChoice* device, int* tensor_parallel) {
  fields.Custom(
      "device", "auto|cpu|cuda[:N[,M...]]",
      "Where inference ranks compute. auto: on the GPU if one answers and can, otherwise on the CPU, and the log says "
      "why not; cuda: on the GPU or not at all. :N names GPU N instead of 0, :N,M several; `winnow up` gives each "
      "inference rank the next, or the next --tensor-parallel.",
      [device](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(*device, ParseDeviceChoice(text));
        return absl::OkStatus();
      },
      [device] { return ToString(*device); });
  fields.Integer(
      "tensor-parallel", tensor_parallel,
      "GPUs that hold a model together and compute each token together, 1, 2 or 4: each has its part of the heads and "
      "of the MLP, of the weights and of resident KV. For models that do not fit one GPU, and for shorter times "
      "between tokens. The model's kv heads must be divisible by it. 0 = as many as --device names, of one process.",
      0, 4);
}

void DeclareCompute(Fields& fields, Dtype* compute) {
  fields.Enum(
      "compute", compute, {{"auto", Dtype::kBf16}, {"bf16", Dtype::kBf16}, {"f32", Dtype::kF32}, {"fp8", Dtype::kF8}},
      "Type of weights and matrix inputs: auto = bf16; f32, on CPUs, doubles the memory and the time of a step; "
      "fp8, on GPUs, halves the memory of the weights, which are rounded to e4m3 with a scale per output. Weights that "
      "a checkpoint quantises stay as they are on CPUs, whatever this says.");
}

void DeclareKvDtype(Fields& fields, Dtype* kv_dtype) {
  fields.Enum("kv-dtype", kv_dtype, {{"bf16", Dtype::kBf16}, {"f32", Dtype::kF32}},
              "Type of KV rows; f32 doubles them.");
}

void DeclareMaxContext(Fields& fields, uint32_t* max_context) {
  fields.Integer(
      "max-context", max_context,
      "Longest prompt and answer together, in tokens, at least 2; 0 = the model's. Resident memory grows with it.", 0u,
      1u << 24);
}

void DeclareMaxRunning(Fields& fields, uint32_t* max_running) {
  fields.Integer("max-running", max_running,
                 "Sequences in a decode batch of one inference rank; each needs "
                 "resident rows. More run slower each and faster together.",
                 1u, 4096u);
}

void DeclareResumeGrace(Fields& fields, std::chrono::microseconds* resume_grace) {
  fields.Duration("resume-grace", resume_grace,
                  "How long an inference rank goes on with a resumable request that nobody listens to, and keeps the "
                  "tokens of one that has ended, so that its client can resume it.");
}

void DeclarePrefixCache(Fields& fields, bool* prefix_cache, int64_t* memory_bytes) {
  fields.Bool("prefix-cache", prefix_cache,
              "Keep the KV of prompts, in blocks of 32 tokens, for later prompts of the same tenant that begin alike; "
              "answers are the same without.");
  fields.Bytes("prefix-cache-memory", memory_bytes,
               "Most memory, of that for KV blocks, which kept prompts may take while no request uses them; they give "
               "way to requests in any case. 0 = all of it.");
}

void DeclareFastMemory(Fields& fields, int64_t* memory_bytes) {
  fields.Bytes(
      "fast-memory", memory_bytes,
      "Memory of a fast tier before that for KV blocks: it holds the index of all keys, and copies of the blocks of "
      "rows that were read last, while all rows are kept in the other. Answers are the same. 0 = one tier.");
}

void DeclareDeviceHostMemory(Fields& fields, const char* name, int64_t* memory_bytes) {
  fields.Bytes(name, memory_bytes,
               "Host memory, pinned, from which a lane pushes rows of sequences whose mirror has no room in the cache "
               "rank's GPU; their keys stay in the GPU's memory. It comes on top of the memory for KV blocks and of "
               "--fast-memory. 0 = none: such sequences go by frames.");
}

void DeclareSlotMemory(Fields& fields, int64_t* memory_bytes) {
  fields.Bytes(
      "slot-memory", memory_bytes,
      "Memory for resident KV rows, of each GPU where several hold a model; 0 = what the running sequences can need.");
}

void DeclareApiKeys(Fields& fields, std::string* api_keys) {
  fields.Text("api-keys", api_keys,
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

void LogFlags::Declare(Fields& fields, const std::string& whose) {
  fields.Custom(
      "log-level", "LEVEL", absl::StrCat(whose, ": trace, debug, info, warning, error or off."),
      [this](std::string_view text) {
        level = std::string(text);
        return CheckLogLevel(level);
      },
      [this] { return level; });
  fields.Enum("log-format", &format, {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
              "Lines for people, or a JSON object each, with time (UTC), level, role, rank and message.");
}

void RequestReportFlags::Declare(Fields& fields) {
  fields.Bool("log-requests", &log_requests,
              "A line in the router's log for each request that has ended: its id, tokens, times, ranks, and how it "
              "ended. No text of prompts or answers.");
  fields.Enum("metrics-aliases", &metrics_aliases, {{"none", MetricsAliases::kNone}, {"vllm", MetricsAliases::kVllm}},
              "vllm: the router's /metrics has its figures under vLLM's names, too, for autoscalers, dashboards and "
              "gateways that look for these.");
}

void DeclareMaxQueue(Fields& fields, uint32_t* max_queue) {
  fields.Integer("max-queue", max_queue, "Requests under way or waiting at once; more are refused with 429.", 1u,
                 1u << 20);
}

int ResolveThreads(int threads) {
  return threads > 0 ? threads : UsableCores();
}

}  // namespace winnow
