#pragma once
#include <string>
#include <vector>

#include "prometheus/metric_family.h"

namespace winnow {

enum class MetricsAliases { kNone, kVllm };

// Adds, behind the families of a router, copies of those that vLLM has under another name, for autoscalers, gateways
// and dashboards that look for its names. Samples without the label model_name get it. Values and units are the same;
// buckets are ours.
void AppendVllmAliases(std::vector<prometheus::MetricFamily>& families, const std::string& model);

}  // namespace winnow
