#include "tools/timeline/timeline_summary.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_format.h"

namespace winnow {
namespace {

struct Cost {
  double all_us = 0;
  std::vector<double> by_layer_us;
};

// By thread and span, in the order of their names.
using Costs = std::map<std::string, Cost>;

// Spans of decode iterations, which have a plan, or of prompts, which have none.
enum class Phase { kDecode, kPrefill };
Phase PhaseOf(const v1::TimelineEvent& event) {
  return event.plan() == 0 && event.span() != "step" ? Phase::kPrefill : Phase::kDecode;
}

Costs CostsOf(const v1::TimelineThread& thread, Phase phase) {
  Costs costs;
  for (const v1::TimelineEvent& event : thread.events()) {
    if (PhaseOf(event) != phase) continue;
    Cost& cost = costs[event.span()];
    const double us = event.duration_ns() / 1000.0;
    cost.all_us += us;
    if (!event.has_layer()) continue;
    if (cost.by_layer_us.size() <= event.layer()) cost.by_layer_us.resize(event.layer() + 1);
    cost.by_layer_us[event.layer()] += us;
  }
  return costs;
}

uint64_t CountOf(std::span<const v1::StopTimelineResponse> timelines, std::string_view span) {
  uint64_t count = 0;
  for (const v1::StopTimelineResponse& rank : timelines) {
    for (const v1::TimelineThread& thread : rank.threads()) {
      for (const v1::TimelineEvent& event : thread.events()) count += event.span() == span;
    }
  }
  return count;
}

void AppendRows(std::span<const v1::StopTimelineResponse> timelines, Phase phase, double scale, std::string& table) {
  for (const v1::StopTimelineResponse& rank : timelines) {
    for (const v1::TimelineThread& thread : rank.threads()) {
      for (const auto& [span, cost] : CostsOf(thread, phase)) {
        absl::StrAppendFormat(&table, "%-16s %-16s %9.1f ", rank.identity().rank(), span, cost.all_us * scale);
        for (const double us : cost.by_layer_us) absl::StrAppendFormat(&table, " %.1f", us * scale);
        table += "\n";
      }
    }
  }
}

}  // namespace

std::string SummarizeTimelines(std::span<const v1::StopTimelineResponse> timelines) {
  std::string table;
  // Those that wait for their end at once, and those that run ahead of the host.
  if (const uint64_t steps = CountOf(timelines, "step") + CountOf(timelines, "finish step"); steps > 0) {
    absl::StrAppendFormat(&table, "%d decode steps; mean us per step\n%-16s %-16s %9s  %s\n", steps, "rank", "span",
                          "all", "by layer");
    AppendRows(timelines, Phase::kDecode, 1.0 / static_cast<double>(steps), table);
  }
  if (const uint64_t chunks = CountOf(timelines, "prefill chunk"); chunks > 0) {
    absl::StrAppendFormat(&table, "%d chunks of prompts; ms in all\n%-16s %-16s %9s  %s\n", chunks, "rank", "span",
                          "all", "by layer");
    AppendRows(timelines, Phase::kPrefill, 1e-3, table);
  }
  for (const v1::StopTimelineResponse& rank : timelines) {
    for (const v1::TimelineThread& thread : rank.threads()) {
      if (table.empty() || thread.dropped() == 0) continue;
      absl::StrAppendFormat(&table, "%-16s %d events were dropped: record for a shorter time\n", rank.identity().rank(),
                            thread.dropped());
    }
  }
  return table;
}

}  // namespace winnow
