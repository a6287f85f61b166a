#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/metrics/atomic_histogram.h"
#include "prometheus/metric_family.h"

namespace winnow {

using MetricLabels = std::map<std::string, std::string>;

// Turns a snapshot of plain numbers into metric families; what a pull source (MetricsRegistry::AddSource) is handed.
// Samples of one name may come in any order and with different labels; a name keeps the help text and type of its first
// sample.
class FamilyWriter {
 public:
  // `constant_labels` go onto every sample.
  explicit FamilyWriter(const MetricLabels& constant_labels) : constant_labels_(constant_labels) {}

  void Counter(std::string_view name, std::string_view help, double value, const MetricLabels& labels = {});
  void Gauge(std::string_view name, std::string_view help, double value, const MetricLabels& labels = {});
  // `counts` has one entry per bound and one more for what lies above the last; counts are per bucket, not cumulative.
  void Histogram(std::string_view name, std::string_view help, std::span<const double> upper_bounds,
                 std::span<const uint64_t> counts, double sum, const MetricLabels& labels = {});
  void Histogram(std::string_view name, std::string_view help, const AtomicHistogram& histogram,
                 const MetricLabels& labels = {}) {
    Histogram(name, help, histogram.upper_bounds(), histogram.counts(), histogram.sum(), labels);
  }

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& Add(std::string_view name, std::string_view help, prometheus::MetricType type,
                                const MetricLabels& labels);

  const MetricLabels& constant_labels_;
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace winnow
