#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/config/device_choice.h"
#include "common/config/fields.h"
#include "common/log/log.h"
#include "common/metrics/metric_aliases.h"
#include "common/selection/selection_spec.h"
#include "common/tls/tls_files.h"
#include "inference_rank/memory/prefill_mode.h"
#include "inference_rank/scheduler/scheduling_options.h"
#include "inference_rank/sequence/prefix_attention.h"
#include "router/chat_output/chat_formats.h"

namespace winnow {

// The options of the three role processes, in the order in which --help shows them. `winnow up` fills the same structs.

inline constexpr std::chrono::microseconds kStopGrace{2'000'000};

// Of ranks: the routers that they belong to, and where others reach them.
struct JoinOptions {
  std::vector<HostPort> routers{{"127.0.0.1", 8001}};
  std::string advertise;

  void Declare(Fields& fields);
};

// Whom a process takes calls from, and what it encrypts.
struct SecurityOptions {
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;
  bool insecure = false;

  void Declare(Fields& fields);
  // With "{role}" in the paths replaced. INVALID_ARGUMENT, where some are given and others are missing.
  absl::StatusOr<TlsFiles> FilesFor(std::string_view role) const;
  // FAILED_PRECONDITION for an address that other machines reach while `encrypted` is false and nothing allows it;
  // `option` is the one that says where to listen.
  absl::Status CheckExposure(std::string_view option, const HostPort& listen, bool encrypted) const;
};

// What a process logs, and how.
struct LogFlags {
  std::string level = "info";
  LogFormat format = LogFormat::kText;

  // `whose`: what the help says that they are for.
  void Declare(Fields& fields, const std::string& whose);
};

// What the router tells of requests, beside its metrics.
struct RequestReportFlags {
  bool log_requests = true;
  MetricsAliases metrics_aliases = MetricsAliases::kNone;

  void Declare(Fields& fields);
};

// Of every process.
struct ProcessOptions {
  std::string cluster = "local";
  std::string rank;
  HostPort grpc{"127.0.0.1", 0};
  HostPort metrics{"127.0.0.1", 0};
  SecurityOptions security;
  LogFlags log;
  int report_fd = -1;

  void Declare(Fields& fields);
};

// A specification, and the options that override fields of it.
struct SelectionOptions {
  std::string specification = "auto";  // "preset[,field=value...]", or by the model
  uint32_t budget = 0;
  int64_t sinks = -1;
  int64_t recent = -1;
  float pool_factor = 0;
  std::string head_profile;

  void Declare(Fields& fields);
  // Checked as a whole, and that this version can do it. `model` decides where nothing else does.
  absl::StatusOr<SelectionSpec> Resolve(const std::string& model) const;
};

// How an inference rank fills its iterations.
struct SchedulingFlags : SchedulingOptions {
  void Declare(Fields& fields);
};

enum class TransportKind { kAuto, kInproc, kUcx, kP2p, kNccl };

// Memory and threads of a cache rank, alone or hosted.
struct CacheOptions {
  std::string model;
  std::string lane_model;
  Dtype compute = Dtype::kBf16;
  int64_t memory_bytes = 0;
  int64_t fast_memory_bytes = 0;
  int threads = 0;
  std::chrono::microseconds detached_ttl{60'000'000};
  bool prefix_cache = true;
  int64_t prefix_cache_memory_bytes = 0;
  DeviceChoice device{DeviceChoice::Kind::kCpu, 0};
  int64_t device_memory_bytes = 0;
  int64_t device_host_memory_bytes = 0;

  void Declare(Fields& fields);
};

void DeclareDeviceHostMemory(Fields& fields, const char* name, int64_t* memory_bytes);

// Where the KV of a sequence goes.
struct PlacementFlags {
  uint32_t cache_shards = 1;  // 0: auto
  std::chrono::microseconds slow_start{30'000'000};

  void Declare(Fields& fields);
};

// TLS of the HTTP API.
struct HttpTlsFlags {
  TlsFiles files;

  void Declare(Fields& fields);
};

// What the HTTP API lets clients do, and how it keeps them waiting.
struct HttpApiFlags {
  std::string cors_origins;
  std::chrono::microseconds stream_keep_alive{15'000'000};
  bool page = true;

  void Declare(Fields& fields);
};

// How answers of chats are read.
struct ChatFlags {
  std::optional<ToolFormat> tool_format;  // absent: as the model's files show it
  std::optional<ReasoningFormat> reasoning_format;

  void Declare(Fields& fields);
};

struct RouterProcessOptions {
  ProcessOptions process;
  std::string model;
  std::string model_id;
  HostPort http{"127.0.0.1", 8000};
  HttpTlsFlags http_tls;
  HttpApiFlags http_api;
  ChatFlags chat;
  SelectionOptions selection;
  std::string api_keys;
  PlacementFlags placement;
  uint32_t max_queue = 1024;
  int http_threads = 2;
  int64_t http_body_memory_bytes = int64_t{256} << 20;
  std::chrono::microseconds request_timeout{600'000'000};
  std::chrono::microseconds drain_delay{0};
  std::chrono::microseconds stop_grace = kStopGrace;
  RequestReportFlags reports;

  RouterProcessOptions();
  void Declare(Fields& fields);
};

// How inference ranks compute prompts.
struct PrefillFlags {
  PrefillMode mode = PrefillMode::kAuto;
  PrefixAttention prefix_attention = PrefixAttention::kAuto;
  uint32_t chunk = 0;
  int64_t memory_bytes = 0;

  void Declare(Fields& fields);
};

// What of a request an inference rank is there for.
enum class InferenceRole { kPrefill, kDecode, kBoth };
enum class SelectInPlace { kAuto, kOn, kOff };

struct InferenceProcessOptions {
  ProcessOptions process;
  JoinOptions join;
  std::string model;
  InferenceRole role = InferenceRole::kBoth;
  uint32_t decode_prefill_tokens = 256;
  TransportKind transport = TransportKind::kAuto;
  SelectInPlace select_in_place = SelectInPlace::kAuto;
  DeviceChoice device;
  int tensor_parallel = 0;
  Dtype compute = Dtype::kBf16;
  Dtype kv_dtype = Dtype::kBf16;
  std::string isa = "auto";
  int threads = 0;
  uint32_t max_context = 0;
  uint32_t max_running = 64;
  PrefillFlags prefill;
  SchedulingFlags scheduling;
  std::chrono::microseconds resume_grace{30'000'000};
  int64_t slot_memory_bytes = 0;
  SelectionOptions selection;
  CacheOptions cache;  // of the hosted cache rank, with transport inproc

  InferenceProcessOptions();
  void Declare(Fields& fields);
};

struct CacheProcessOptions {
  ProcessOptions process;
  JoinOptions join;
  CacheOptions cache;

  CacheProcessOptions();
  void Declare(Fields& fields);
};

// Fields shared with `winnow up`.
void DeclareTransport(Fields& fields, TransportKind* transport);
void DeclareSelectInPlace(Fields& fields, SelectInPlace* select_in_place);
void DeclareDecodePrefillTokens(Fields& fields, uint32_t* decode_prefill_tokens);
void DeclareDevice(Fields& fields, DeviceChoice* device, int* tensor_parallel);
void DeclareCompute(Fields& fields, Dtype* compute);
void DeclareKvDtype(Fields& fields, Dtype* kv_dtype);
void DeclareMaxContext(Fields& fields, uint32_t* max_context);
void DeclareMaxRunning(Fields& fields, uint32_t* max_running);
void DeclareResumeGrace(Fields& fields, std::chrono::microseconds* resume_grace);
void DeclarePrefixCache(Fields& fields, bool* prefix_cache, int64_t* memory_bytes);
void DeclareFastMemory(Fields& fields, int64_t* memory_bytes);
void DeclareSlotMemory(Fields& fields, int64_t* memory_bytes);
void DeclareApiKeys(Fields& fields, std::string* api_keys);
void DeclareStopGrace(Fields& fields, std::chrono::microseconds* stop_grace);
void DeclareDrainDelay(Fields& fields, std::chrono::microseconds* drain_delay);
void DeclareMaxQueue(Fields& fields, uint32_t* max_queue);

// INVALID_ARGUMENT when --max-context leaves no room for a prompt and a token.
absl::Status CheckMaxContext(uint32_t max_context);

// What --model must be: a folder with a config.json, or a synthetic model. INVALID_ARGUMENT names the option.
absl::Status CheckModelOption(const std::string& model);

// `threads`, or for 0 the cores that this process may use.
int ResolveThreads(int threads);

}  // namespace winnow
