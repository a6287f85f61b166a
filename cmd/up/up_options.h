#pragma once
#include <string>
#include <vector>

#include "cmd/role/options/cache_options.h"
#include "cmd/role/options/inference_options.h"
#include "cmd/role/options/router_options.h"
#include "cmd/up/cluster_part.h"

namespace winnow {

// Between the ports of one router and those of the next one on the same machine.
inline constexpr int kRouterPortStep = 10;

// The options of `winnow up`, and what they mean for each process.
struct UpOptions {
  std::string file;
  std::string node;
  ClusterPart part;  // as file and node say

  std::string cluster = "local";
  DiscoveryOptions discovery;
  std::string model;
  std::string model_id;
  HostPort http{"127.0.0.1", 8000};
  HostPort grpc{"127.0.0.1", 8001};
  HostPort metrics{"127.0.0.1", 9100};
  HttpTlsFlags http_tls;
  HttpApiFlags http_api;
  ChatFlags chat;
  int routers = 1;
  int inference_ranks = 1;
  int prefill_ranks = 0;
  int decode_ranks = 0;
  uint32_t decode_prefill_tokens = 256;
  int cache_ranks = 1;
  SelectionOptions selection;
  TransportKind transport = TransportKind::kAuto;
  SelectInPlace select_in_place = SelectInPlace::kAuto;
  DeviceChoice device;
  int tensor_parallel = 0;
  DeviceChoice cache_device{DeviceChoice::Kind::kCpu, 0};
  Dtype compute = Dtype::kBf16;
  Dtype kv_dtype = Dtype::kBf16;
  uint32_t max_context = 0;
  uint32_t max_running = 64;
  PrefillFlags prefill;
  SchedulingFlags scheduling;
  std::chrono::microseconds resume_grace{30'000'000};
  std::string api_keys;
  SecurityOptions security;
  DataPlaneMode data_plane = DataPlaneMode::kAuto;
  PlacementFlags placement;
  uint32_t max_queue = 1024;
  int threads = 0;
  int64_t slot_memory_bytes = 0;
  int64_t slot_host_memory_bytes = 0;
  int64_t cache_memory_bytes = 0;
  int64_t fast_memory_bytes = 0;
  int64_t scrub_bytes_per_s = CacheOptions().scrub_bytes_per_s;
  int64_t cache_device_memory_bytes = 0;
  int64_t cache_device_host_memory_bytes = 0;
  bool prefix_cache = true;
  int64_t prefix_cache_memory_bytes = 0;
  std::chrono::microseconds drain_delay{0};
  std::chrono::microseconds stop_grace = kStopGrace;
  LogFlags log;
  TracingFlags tracing;
  RequestReportFlags reports;

  void Declare(Fields& fields);

  bool hosts_cache() const { return transport == TransportKind::kInproc; }
  // INVALID_ARGUMENT for what can be seen to be wrong without starting anything: no such model folder, an unknown
  // preset, ports that do not fit, memory of cache ranks that holds no sequence.
  absl::Status Validate() const;
  // The part of it that needs no file: contradictions between options.
  absl::Status CheckConsistency() const;

  // Ranks for prefill come first, then those that decode.
  bool splits_phases() const { return prefill_ranks > 0 || decode_ranks > 0; }
  int num_inference_ranks() const { return splits_phases() ? prefill_ranks + decode_ranks : inference_ranks; }
  std::string RouterName(int index) const;
  std::string InferenceRankName(int index) const;
  std::string CacheRankName(int index) const;

  // Every process has its number: the routers from 0 on, then the inference ranks, then the cache ranks. Its metrics
  // port is the first one plus the number.
  HostPort MetricsAddress(int process) const;
  int num_processes() const { return routers + num_inference_ranks() + (hosts_cache() ? 0 : cache_ranks); }
  // Of router `index`: the first one's, with kRouterPortStep ports on for each further one.
  HostPort HttpAddress(int index) const;
  HostPort GrpcAddress(int index) const;

  RouterProcessOptions Router(int index = 0) const;
  // `known_routers`: gRPC addresses that the rank is told. Routers in a registry it finds there.
  InferenceProcessOptions InferenceRank(int index, const std::vector<HostPort>& known_routers) const;
  CacheProcessOptions CacheRank(int index, const std::vector<HostPort>& known_routers) const;

 private:
  absl::Status CheckCacheMemory() const;
  absl::Status CheckKvDtype() const;
  absl::Status CheckPortsDiffer() const;
  absl::Status CheckExposure() const;
};

}  // namespace winnow
