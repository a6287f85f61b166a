#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cmd/role/options/process_options.h"
#include "cmd/role/options/selection_options.h"
#include "common/config/fields.h"
#include "common/metrics/metric_aliases.h"
#include "common/tls/tls_files.h"
#include "router/chat_output/chat_formats.h"

namespace winnow {

inline constexpr std::chrono::microseconds kStopGrace{2'000'000};

// What the router tells of requests, beside its metrics.
struct RequestReportFlags {
  bool log_requests = true;
  MetricsAliases metrics_aliases = MetricsAliases::kNone;

  void Declare(Fields& fields);
};

// Where the KV of a sequence goes.
struct PlacementFlags {
  uint32_t cache_shards = 1;  // 0: auto
  uint32_t replicas = 1;
  std::chrono::microseconds slow_start{30'000'000};

  void Declare(Fields& fields);
  // INVALID_ARGUMENT for what contradicts each other.
  absl::Status Check() const;
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
  DiscoveryOptions discovery;
  std::string advertise;
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

// Shared with `winnow up`.
void DeclareApiKeys(Fields& fields, std::string* api_keys);
void DeclareStopGrace(Fields& fields, std::chrono::microseconds* stop_grace);
void DeclareDrainDelay(Fields& fields, std::chrono::microseconds* drain_delay);
void DeclareMaxQueue(Fields& fields, uint32_t* max_queue);

}  // namespace winnow
