#include "cmd/status/cluster_status.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cmd/up/http_probe.h"
#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;
using Figure = std::optional<double>;

Figure Known(double value) {
  return std::isfinite(value) ? Figure(value) : std::nullopt;
}

// A process at two moments; what is asked of it is absent unless both are there.
struct Moments {
  const MetricsText* before;
  const MetricsText* after;
  double seconds;

  Figure Now(const char* name, const MetricsText::Labels& labels = {}) const {
    return after == nullptr ? std::nullopt : Known(after->Value(name, labels));
  }
  Figure Grown(const char* name) const {
    if (before == nullptr || after == nullptr) return std::nullopt;
    const double grown = after->Value(name) - before->Value(name);
    return grown >= 0 ? Known(grown) : std::nullopt;  // less than before: another process took its place
  }
  Figure Rate(const char* name) const {
    const Figure grown = Grown(name);
    return grown ? Known(*grown / seconds) : std::nullopt;
  }
  Figure Ratio(const char* part, const char* whole) const {
    const Figure a = Grown(part), b = Grown(whole);
    return a && b ? Known(*a / *b) : std::nullopt;
  }
  Figure Quantile(const char* name, double quantile) const {
    if (before == nullptr || after == nullptr) return std::nullopt;
    return Known(QuantileBetween(before->Buckets(name), after->Buckets(name), quantile));
  }
  // The share of a gauge's states that is not `free`.
  Figure Used(const char* name) const {
    const Figure free = Now(name, {{"state", "free"}}), all = Now(name);
    return free && all ? Known(1 - *free / *all) : std::nullopt;
  }
};

const MetricsText* MetricsOf(const ClusterScrape& scrape, const ProcessScrape& process) {
  for (const ProcessScrape& each : scrape.processes) {
    if (each.role == process.role && each.rank == process.rank) return each.metrics ? &*each.metrics : nullptr;
  }
  return nullptr;
}

ProcessStatus StatusOf(const ProcessScrape& process, const Moments& moments) {
  ProcessStatus status;
  status.role = process.role;
  status.rank = process.rank;
  status.address = process.address;
  status.answers = process.metrics.has_value();
  if (process.role == "cache-rank") {
    status.running = moments.Now("winnow_sequences", {{"state", "active"}});
    status.waiting = moments.Now("winnow_sequences", {{"state", "detached"}});
    status.steps_per_s = moments.Rate("winnow_plans_total");
    status.memory_share = moments.Used("winnow_kv_blocks");
  } else {
    status.running = moments.Now("winnow_num_requests_running");
    status.waiting = moments.Now("winnow_num_requests_waiting");
    status.memory_share =
        process.role == "router" ? moments.Now("winnow_kv_cache_usage_ratio") : moments.Used("winnow_slot_pages");
  }
  if (process.role == "inference-rank") {
    status.tokens_per_s = moments.Rate("winnow_rank_generation_tokens_total");
    status.prompt_tokens_per_s = moments.Rate("winnow_rank_prompt_tokens_total");
    status.steps_per_s = moments.Rate("winnow_decode_steps_total");
  }
  status.resident_share = moments.Ratio("winnow_selection_hits_total", "winnow_selection_lookups_total");
  status.process_bytes = moments.Now("process_resident_memory_bytes");
  if (const Figure start = moments.Now("process_start_time_seconds")) {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    status.up_s = std::max(0.0, now.count() - *start);
  }
  return status;
}

std::optional<RegistryStatus> RegistryOf(const std::string& metrics_address, std::chrono::milliseconds timeout) {
  const absl::StatusOr<HttpAnswer> answer = HttpGet(metrics_address, "/ranks", timeout);
  if (!answer.ok()) return std::nullopt;
  const Json list = Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  if (!list.is_object() || !list.contains("registry") || !list["registry"].is_object()) return std::nullopt;
  const Json& registry = list["registry"];
  return RegistryStatus{.connected = registry.value("connected", false),
                        .away_s = registry.value("away_s", 0.0),
                        .routers = registry.value("routers", std::vector<std::string>())};
}

Json Number(const Figure& figure) {
  return figure ? Json(*figure) : Json(nullptr);
}

std::string Plain(const Figure& figure, int decimals = 0) {
  return figure ? absl::StrFormat("%.*f", decimals, *figure) : "-";
}

std::string Share(const Figure& figure) {
  return figure ? absl::StrFormat("%.0f %%", 100 * *figure) : "-";
}

std::string Bytes(const Figure& figure) {
  if (!figure) return "-";
  return *figure >= 1 << 30 ? absl::StrFormat("%.1f GiB", *figure / (1 << 30))
                            : absl::StrFormat("%.0f MiB", *figure / (1 << 20));
}

std::string Time(const Figure& seconds) {
  if (!seconds) return "-";
  if (*seconds < 0.001) return absl::StrFormat("%.2f ms", 1e3 * *seconds);
  if (*seconds < 1) return absl::StrFormat("%.1f ms", 1e3 * *seconds);
  if (*seconds < 600) return absl::StrFormat("%.1f s", *seconds);
  if (*seconds < 36'000) return absl::StrFormat("%.0f min", *seconds / 60);
  return absl::StrFormat("%.0f h", *seconds / 3600);
}

std::string RegistryText(const RegistryStatus& registry) {
  const std::string state =
      registry.connected ? "connected" : absl::StrCat("away for ", Time(registry.away_s), "; what was known holds");
  return absl::StrCat("registry      ", state, "; routers: ", absl::StrJoin(registry.routers, ", "), "\n");
}

}  // namespace

absl::StatusOr<ClusterScrape> ScrapeCluster(const std::string& metrics_address, std::chrono::milliseconds timeout) {
  WINNOW_ASSIGN_OR_RETURN(const HttpAnswer list, HttpGet(metrics_address, "/targets", timeout));
  const Json targets = Json::parse(list.body, nullptr, /*allow_exceptions=*/false);
  if (list.status != 200 || !targets.is_array()) {
    return absl::UnavailableError(absl::StrCat("http://", metrics_address, "/targets lists no processes (HTTP ",
                                               list.status, "): is it the metrics address of a router?"));
  }
  ClusterScrape scrape{.at = std::chrono::steady_clock::now(),
                       .not_ready = "",
                       .processes = {},
                       .registry = RegistryOf(metrics_address, timeout)};
  WINNOW_ASSIGN_OR_RETURN(const HttpAnswer ready, HttpGet(metrics_address, "/ready", timeout));
  if (ready.status != 200) {
    const Json verdict = Json::parse(ready.body, nullptr, /*allow_exceptions=*/false);
    scrape.not_ready = verdict.is_object() ? verdict.value("reason", ready.body) : ready.body;
  }
  for (const Json& target : targets) {
    ProcessScrape process{.role = target["labels"].value("role", ""),
                          .rank = target["labels"].value("rank", ""),
                          .address = target["targets"][0].get<std::string>(),
                          .metrics = std::nullopt};
    const absl::StatusOr<HttpAnswer> answer = HttpGet(process.address, "/metrics", timeout);
    if (answer.ok() && answer->status == 200) process.metrics.emplace(answer->body);
    scrape.processes.push_back(std::move(process));
  }
  return scrape;
}

ClusterStatus StatusBetween(const ClusterScrape& before, const ClusterScrape& after) {
  ClusterStatus status;
  status.not_ready = after.not_ready;
  status.registry = after.registry;
  const double seconds = std::chrono::duration<double>(after.at - before.at).count();
  double masses = 0, mass = 0;
  for (const ProcessScrape& process : after.processes) {
    const Moments moments{MetricsOf(before, process), process.metrics ? &*process.metrics : nullptr, seconds};
    status.processes.push_back(StatusOf(process, moments));
    masses += moments.Grown("winnow_captured_attention_mass_count").value_or(0);
    mass += moments.Grown("winnow_captured_attention_mass_sum").value_or(0);
    if (process.role != "router") continue;
    status.running = moments.Now("winnow_num_requests_running");
    status.waiting = moments.Now("winnow_num_requests_waiting");
    status.tokens_per_s = moments.Rate("winnow_generation_tokens_total");
    status.prompt_tokens_per_s = moments.Rate("winnow_prompt_tokens_total");
    status.requests_per_s = moments.Rate("winnow_requests_total");
    status.first_token_p50_s = moments.Quantile("winnow_time_to_first_token_seconds", 0.5);
    status.first_token_p99_s = moments.Quantile("winnow_time_to_first_token_seconds", 0.99);
    status.between_tokens_p50_s = moments.Quantile("winnow_inter_token_latency_seconds", 0.5);
    status.between_tokens_p99_s = moments.Quantile("winnow_inter_token_latency_seconds", 0.99);
  }
  status.captured_mass = Known(mass / masses);
  return status;
}

Json ToJson(const ClusterStatus& status) {
  Json processes = Json::array();
  for (const ProcessStatus& each : status.processes) {
    processes.push_back({{"role", each.role},
                         {"rank", each.rank},
                         {"metrics", each.address},
                         {"answers", each.answers},
                         {"running", Number(each.running)},
                         {"waiting", Number(each.waiting)},
                         {"tokens_per_s", Number(each.tokens_per_s)},
                         {"prompt_tokens_per_s", Number(each.prompt_tokens_per_s)},
                         {"steps_per_s", Number(each.steps_per_s)},
                         {"memory_share", Number(each.memory_share)},
                         {"resident_share", Number(each.resident_share)},
                         {"process_bytes", Number(each.process_bytes)},
                         {"up_s", Number(each.up_s)}});
  }
  Json registry;
  if (status.registry) {
    registry = {{"connected", status.registry->connected},
                {"away_s", status.registry->away_s},
                {"routers", status.registry->routers}};
  }
  return {{"ready", status.not_ready.empty()},
          {"reason", status.not_ready},
          {"running", Number(status.running)},
          {"waiting", Number(status.waiting)},
          {"requests_per_s", Number(status.requests_per_s)},
          {"tokens_per_s", Number(status.tokens_per_s)},
          {"prompt_tokens_per_s", Number(status.prompt_tokens_per_s)},
          {"first_token_p50_s", Number(status.first_token_p50_s)},
          {"first_token_p99_s", Number(status.first_token_p99_s)},
          {"between_tokens_p50_s", Number(status.between_tokens_p50_s)},
          {"between_tokens_p99_s", Number(status.between_tokens_p99_s)},
          {"captured_mass", Number(status.captured_mass)},
          {"registry", std::move(registry)},
          {"processes", std::move(processes)}};
}

std::string ToText(const ClusterStatus& status) {
  std::string text = status.not_ready.empty() ? "ready" : absl::StrCat("not ready: ", status.not_ready);
  absl::StrAppendFormat(&text, "\nrequests      %s running, %s waiting, %s/s answered\n", Plain(status.running),
                        Plain(status.waiting), Plain(status.requests_per_s, 1));
  absl::StrAppendFormat(&text, "tokens        %s/s generated, %s/s of prompts\n", Plain(status.tokens_per_s),
                        Plain(status.prompt_tokens_per_s));
  absl::StrAppendFormat(&text, "first token   p50 %s, p99 %s     between tokens   p50 %s, p99 %s\n",
                        Time(status.first_token_p50_s), Time(status.first_token_p99_s),
                        Time(status.between_tokens_p50_s), Time(status.between_tokens_p99_s));
  absl::StrAppendFormat(&text, "captured      %s of the attention\n",
                        status.captured_mass ? absl::StrFormat("%.1f %%", 100 * *status.captured_mass) : "-");
  absl::StrAppend(&text, status.registry ? RegistryText(*status.registry) : "", "\n");
  const auto row = [&text](const std::array<std::string, 9>& c) {
    absl::StrAppendFormat(&text, "%-16s %8s %8s %8s %9s %10s %8s %9s %9s\n", c[0], c[1], c[2], c[3], c[4], c[5], c[6],
                          c[7], c[8]);
  };
  row({"rank", "running", "waiting", "steps/s", "tokens/s", "prompt/s", "KV used", "resident", "memory"});
  for (const ProcessStatus& each : status.processes) {
    if (!each.answers) {
      absl::StrAppendFormat(&text, "%-16s does not answer at %s\n", each.rank, each.address);
      continue;
    }
    row({each.rank, Plain(each.running), Plain(each.waiting), Plain(each.steps_per_s), Plain(each.tokens_per_s),
         Plain(each.prompt_tokens_per_s), Share(each.memory_share), Share(each.resident_share),
         Bytes(each.process_bytes)});
  }
  return text;
}

}  // namespace winnow
