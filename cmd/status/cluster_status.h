#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/metrics/metrics_text.h"

namespace winnow {

// A process as the router lists it, and what its /metrics said; absent: it did not answer.
struct ProcessScrape {
  std::string role, rank, address;
  std::optional<MetricsText> metrics;
};

// How the router stands with the registry of its cluster.
struct RegistryStatus {
  bool connected = false;
  double away_s = 0;
  std::vector<std::string> routers;  // their gRPC addresses, as known last
};

// All of a cluster at one moment.
struct ClusterScrape {
  std::chrono::steady_clock::time_point at;
  std::string not_ready;  // why the router is not; empty: it is
  std::vector<ProcessScrape> processes;
  std::optional<RegistryStatus> registry = {};  // absent: there is none
};

// Asks the router at `metrics_address` who there is, and each of them. UNAVAILABLE when no router answers there.
absl::StatusOr<ClusterScrape> ScrapeCluster(const std::string& metrics_address, std::chrono::milliseconds timeout);

// What a person wants to know of it. Rates and quantiles are of the time between two scrapes; what cannot be told is
// absent.
struct ProcessStatus {
  std::string role, rank, address;
  bool answers = false;
  std::optional<double> running, waiting;     // sequences; of cache ranks, those held and those detached
  std::optional<double> tokens_per_s;         // generated
  std::optional<double> prompt_tokens_per_s;  // computed
  std::optional<double> steps_per_s;          // decode steps; of cache ranks, plans
  std::optional<double> memory_share;         // of the memory for KV or slots, 0 to 1
  std::optional<double> resident_share;       // of the selected rows, 0 to 1
  std::optional<double> process_bytes, up_s;
};
struct ClusterStatus {
  std::string not_ready;
  std::optional<double> running, waiting, tokens_per_s, prompt_tokens_per_s, requests_per_s;
  std::optional<double> first_token_p50_s, first_token_p99_s, between_tokens_p50_s, between_tokens_p99_s;
  std::optional<double> captured_mass;  // mean
  std::optional<RegistryStatus> registry;
  std::vector<ProcessStatus> processes;
};
ClusterStatus StatusBetween(const ClusterScrape& before, const ClusterScrape& after);

// Absent figures are null.
nlohmann::ordered_json ToJson(const ClusterStatus& status);
// Lines for a terminal.
std::string ToText(const ClusterStatus& status);

}  // namespace winnow
