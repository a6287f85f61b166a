#include "cmd/timeline_summary.h"

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

Costs CostsOf(const v1::TimelineThread& thread) {
  Costs costs;
  for (const v1::TimelineEvent& event : thread.events()) {
    Cost& cost = costs[event.span()];
    const double us = event.duration_ns() / 1000.0;
    cost.all_us += us;
    if (!event.has_layer()) continue;
    if (cost.by_layer_us.size() <= event.layer()) cost.by_layer_us.resize(event.layer() + 1);
    cost.by_layer_us[event.layer()] += us;
  }
  return costs;
}

uint64_t StepsOf(std::span<const v1::StopTimelineResponse> timelines) {
  uint64_t steps = 0;
  for (const v1::StopTimelineResponse& rank : timelines) {
    for (const v1::TimelineThread& thread : rank.threads()) {
      for (const v1::TimelineEvent& event : thread.events()) steps += event.span() == "step";
    }
  }
  return steps;
}

}  // namespace

std::string SummarizeTimelines(std::span<const v1::StopTimelineResponse> timelines) {
  const uint64_t steps = StepsOf(timelines);
  if (steps == 0) return "";
  const double per_step = 1.0 / static_cast<double>(steps);
  std::string table = absl::StrFormat("%d decode steps; mean us per step\n%-16s %-16s %9s  %s\n", steps, "rank", "span",
                                      "all", "by layer");
  for (const v1::StopTimelineResponse& rank : timelines) {
    for (const v1::TimelineThread& thread : rank.threads()) {
      for (const auto& [span, cost] : CostsOf(thread)) {
        absl::StrAppendFormat(&table, "%-16s %-16s %9.1f ", rank.identity().rank(), span, cost.all_us * per_step);
        for (const double us : cost.by_layer_us) absl::StrAppendFormat(&table, " %.1f", us * per_step);
        table += "\n";
      }
      if (thread.dropped() > 0) {
        absl::StrAppendFormat(&table, "%-16s %d events were dropped: record for a shorter time\n",
                              rank.identity().rank(), thread.dropped());
      }
    }
  }
  return table;
}

}  // namespace winnow
