#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/metrics/family_writer.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace winnow {

// All metrics of a process. Two ways in: counters, gauges and histograms that live here and are updated where things
// happen, and pull sources, which turn a module's own atomics into samples whenever somebody scrapes. Series exist, at
// 0, from the moment they are added. References stay valid as long as the registry. Any thread.
class MetricsRegistry final : public prometheus::Collectable {
 public:
  using Source = std::function<void(FamilyWriter& writer)>;

  // `constant_labels` go onto every series, for example {"role": "router"}.
  explicit MetricsRegistry(MetricLabels constant_labels = {});

  prometheus::Counter& AddCounter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  prometheus::Gauge& AddGauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  prometheus::Histogram& AddHistogram(const std::string& name, const std::string& help,
                                      const std::vector<double>& upper_bounds, const MetricLabels& labels = {});

  // `source` is called in each scrape, one scrape at a time, until ClearSources returns.
  void AddSource(Source source) { AddSource(std::move(source), constant_labels_); }
  // With other labels in place of the constant ones, for a part that stands for a process of its own.
  void AddSource(Source source, MetricLabels labels);
  // To be called before what the sources look at is destroyed.
  void ClearSources();

  // From now on what is collected has the aliases of AppendVllmAliases, too. Before the first scrape.
  void SetVllmAliases(std::string model) { vllm_model_ = std::move(model); }

  // winnow_build_info, process_start_time_seconds, resident memory and open descriptors.
  void AddProcessMetrics();

  std::vector<prometheus::MetricFamily> Collect() const override;
  // The text exposition format, what /metrics answers ("text/plain; version=0.0.4; charset=utf-8").
  std::string RenderText() const;

 private:
  const MetricLabels constant_labels_;
  std::optional<std::string> vllm_model_;
  prometheus::Registry registry_;  // synchronises itself

  mutable std::mutex mutex_;
  std::vector<std::pair<Source, MetricLabels>> sources_;  // guarded by mutex_, which is held while they run
};

}  // namespace winnow
