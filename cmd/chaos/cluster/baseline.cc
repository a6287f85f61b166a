#include "cmd/chaos/cluster/baseline.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kLost = "attempts lost: ";

struct HeldGauge {
  const char* role;
  const char* what;
  const char* metric;
  const char* state;  // label; null: none
};
constexpr HeldGauge kHeld[] = {
    {"router", "requests running", "winnow_num_requests_running", nullptr},
    {"router", "requests waiting", "winnow_num_requests_waiting", nullptr},
    {"inference-rank", "sequences running", "winnow_num_requests_running", nullptr},
    {"inference-rank", "sequences waiting", "winnow_num_requests_waiting", nullptr},
    {"inference-rank", "sequences parked", "winnow_parked_sequences", nullptr},
    {"inference-rank", "slot pages", "winnow_slot_pages", "used"},
    {"inference-rank", "bytes of KV in prefill", "winnow_prefill_kv_bytes", nullptr},
    {"cache-rank", "sequences attached", "winnow_sequences", "active"},
    {"cache-rank", "sequences detached", "winnow_sequences", "detached"},
    {"cache-rank", "blocks used", "winnow_kv_blocks", "used"},
    {"cache-rank", "blocks reserved", "winnow_kv_blocks", "reserved"},
};

constexpr milliseconds kLook{50};

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.0f MiB", static_cast<double>(bytes) / 1048576.0);
}

}  // namespace

std::map<std::string, double> HeldForRequests(const std::vector<ProcessScrape>& processes) {
  std::map<std::string, double> held;
  for (const ProcessScrape& process : processes) {
    for (const HeldGauge& gauge : kHeld) {
      if (process.role != gauge.role || !process.metrics) continue;
      MetricsText::Labels labels;
      if (gauge.state != nullptr) labels.emplace_back("state", gauge.state);
      const double value = process.metrics->Value(gauge.metric, labels);
      if (std::isfinite(value)) held[absl::StrCat(process.rank, ": ", gauge.what)] = value;
    }
  }
  return held;
}

Baseline Baseline::Of(const Cluster& cluster) {
  Baseline baseline;
  baseline.held_ = HeldForRequests(cluster.Scrape());
  for (const auto& [rank, member] : cluster.Find()) {
    const absl::StatusOr<ProcessFigures> figures = member.process.Figures();
    if (figures.ok()) baseline.figures_[rank] = *figures;
  }
  return baseline;
}

std::string Baseline::HeldBeyond(const Cluster& cluster) const {
  const std::map<std::string, double> now = HeldForRequests(cluster.Scrape());
  std::vector<std::string> beyond;
  for (const auto& [what, before] : held_) {
    const auto value = now.find(what);
    if (value == now.end()) {
      beyond.push_back(what + " cannot be read");
    } else if (value->second > before) {
      beyond.push_back(absl::StrFormat("%s: %.0f (before: %.0f)", what, value->second, before));
    }
  }
  return absl::StrJoin(beyond, ", ");
}

std::string Baseline::FiguresBeyond(const Cluster& cluster, const Slack& slack) const {
  const Members members = cluster.Find();
  std::vector<std::string> beyond;
  for (const auto& [rank, before] : figures_) {
    const auto member = members.find(rank);
    const absl::StatusOr<ProcessFigures> now =
        member == members.end() ? absl::NotFoundError("it is not there") : member->second.process.Figures();
    if (!now.ok()) {
      beyond.push_back(absl::StrCat(rank, ": ", now.status().message()));
      continue;
    }
    if (now->rss_bytes > before.rss_bytes + slack.rss_bytes) {
      beyond.push_back(
          absl::StrCat(rank, ": ", Mebibytes(now->rss_bytes), " resident (before: ", Mebibytes(before.rss_bytes), ")"));
    }
    if (now->descriptors > before.descriptors + slack.descriptors) {
      beyond.push_back(absl::StrCat(rank, ": ", now->descriptors, " descriptors (before: ", before.descriptors, ")"));
    }
    if (now->threads > before.threads + slack.threads) {
      beyond.push_back(absl::StrCat(rank, ": ", now->threads, " threads (before: ", before.threads, ")"));
    }
  }
  return absl::StrJoin(beyond, ", ");
}

Return AwaitReturn(const Cluster& cluster, const Baseline& baseline, const Slack& slack, const ReturnLimits& limits,
                   const std::stop_token& stop) {
  Return result;
  const Clock::time_point begin = Clock::now();
  const auto await = [&](milliseconds limit, const auto& beyond) {
    std::string left;
    while (!(left = beyond()).empty() && Clock::now() - begin < limit && SleepFor(kLook, stop)) {
    }
    return left;
  };
  result.left = await(limits.held, [&] { return baseline.HeldBeyond(cluster); });
  result.held = Clock::now() - begin;
  const std::string figures = await(limits.figures, [&] { return baseline.FiguresBeyond(cluster, slack); });
  result.figures = Clock::now() - begin;
  if (!figures.empty()) absl::StrAppend(&result.left, result.left.empty() ? "" : ", ", figures);
  return result;
}

void Growth::Look(const std::vector<ProcessScrape>& processes) {
  for (const ProcessScrape& process : processes) {
    if (!process.metrics) continue;
    const MetricsText& metrics = *process.metrics;
    const double start_s = metrics.Value("process_start_time_seconds");
    const auto count = [&](const char* name, const char* metric, const MetricsText::Labels& labels = {}) {
      const double value = metrics.Value(metric, labels);
      Count(name, process, start_s, std::isfinite(value) ? value : 0);
    };
    if (process.role == "router") {
      count("failovers reattach", "winnow_failovers_total", {{"mode", "reattach"}});
      count("failovers recompute", "winnow_failovers_total", {{"mode", "recompute"}});
      for (const auto& [reason, lost] : metrics.ByLabel("winnow_router_lost_attempts_total", "reason")) {
        Count(absl::StrCat(AbslSv(kLost), reason), process, start_s, lost);
      }
      count("replayed", "winnow_router_replayed_tokens_total");
    } else {
      count("stale", "winnow_stale_epoch_rejected_total");
      if (process.role == "inference-rank") count("prompt", "winnow_rank_prompt_tokens_total");
    }
  }
}

void Growth::Count(const std::string& name, const ProcessScrape& process, double start_s, double value) {
  const auto [seen, is_new] = seen_.try_emplace({name, process.rank}, Seen{start_s, value});
  if (is_new) return;
  const bool restarted = seen->second.start_s != start_s;
  grown_[name] += restarted ? value : std::max(0.0, value - seen->second.value);
  seen->second = {start_s, value};
}

std::string Growth::lost_attempts() const {
  std::vector<std::string> counts;
  for (const auto& [name, count] : grown_) {
    if (count > 0 && name.starts_with(kLost))
      counts.push_back(absl::StrFormat("%s %.0f", name.substr(kLost.size()), count));
  }
  return absl::StrJoin(counts, ", ");
}

double Growth::Sum(const std::string& name) const {
  const auto grown = grown_.find(name);
  return grown == grown_.end() ? 0 : grown->second;
}

}  // namespace winnow::chaos
