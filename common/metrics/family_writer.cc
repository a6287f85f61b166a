#include "common/metrics/family_writer.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

namespace winnow {

prometheus::ClientMetric& FamilyWriter::Add(std::string_view name, std::string_view help, prometheus::MetricType type,
                                            const MetricLabels& labels) {
  auto family = std::find_if(families_.begin(), families_.end(), [&](const auto& f) { return f.name == name; });
  if (family == families_.end()) {
    families_.push_back({std::string(name), std::string(help), type, {}});
    family = std::prev(families_.end());
  }
  WINNOW_CHECK(family->type == type);
  prometheus::ClientMetric& metric = family->metric.emplace_back();
  for (const auto& [key, value] : constant_labels_) metric.label.push_back({key, value});
  for (const auto& [key, value] : labels) metric.label.push_back({key, value});
  return metric;
}

void FamilyWriter::Counter(std::string_view name, std::string_view help, double value, const MetricLabels& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void FamilyWriter::Gauge(std::string_view name, std::string_view help, double value, const MetricLabels& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void FamilyWriter::Histogram(std::string_view name, std::string_view help, std::span<const double> upper_bounds,
                             std::span<const uint64_t> counts, double sum, const MetricLabels& labels) {
  WINNOW_CHECK(counts.size() == upper_bounds.size() + 1);
  prometheus::ClientMetric::Histogram& histogram = Add(name, help, prometheus::MetricType::Histogram, labels).histogram;
  uint64_t cumulative = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    cumulative += counts[i];
    const double bound = i < upper_bounds.size() ? upper_bounds[i] : std::numeric_limits<double>::infinity();
    histogram.bucket.push_back({cumulative, bound});
  }
  histogram.sample_count = cumulative;
  histogram.sample_sum = sum;
}

}  // namespace winnow
