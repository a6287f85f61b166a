#include "common/metrics/metrics_registry.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "common/metrics/metric_aliases.h"
#include "common/metrics/version.h"
#include "prometheus/text_serializer.h"

namespace winnow {
namespace {

// A family must be one block of the text, even when its samples come from several places.
void AddFamily(std::vector<prometheus::MetricFamily>& families, prometheus::MetricFamily family) {
  auto same = std::find_if(families.begin(), families.end(), [&](const auto& f) { return f.name == family.name; });
  if (same == families.end()) {
    families.push_back(std::move(family));
  } else {
    std::move(family.metric.begin(), family.metric.end(), std::back_inserter(same->metric));
  }
}

}  // namespace

MetricsRegistry::MetricsRegistry(MetricLabels constant_labels) : constant_labels_(std::move(constant_labels)) {}

prometheus::Counter& MetricsRegistry::AddCounter(const std::string& name, const std::string& help,
                                                 const MetricLabels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Labels(constant_labels_).Register(registry_).Add(labels);
}

prometheus::Gauge& MetricsRegistry::AddGauge(const std::string& name, const std::string& help,
                                             const MetricLabels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Labels(constant_labels_).Register(registry_).Add(labels);
}

prometheus::Histogram& MetricsRegistry::AddHistogram(const std::string& name, const std::string& help,
                                                     const std::vector<double>& upper_bounds,
                                                     const MetricLabels& labels) {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Labels(constant_labels_)
      .Register(registry_)
      .Add(labels, upper_bounds);
}

void MetricsRegistry::AddSource(Source source, MetricLabels labels) {
  const std::lock_guard lock(mutex_);
  sources_.emplace_back(std::move(source), std::move(labels));
}

void MetricsRegistry::ClearSources() {
  const std::lock_guard lock(mutex_);
  sources_.clear();
}

void MetricsRegistry::AddProcessMetrics() {
  AddGauge("winnow_build_info", "Always 1; the labels say what runs.", {{"version", std::string(Version())}}).Set(1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  AddGauge("process_start_time_seconds", "Start of the process, seconds since 1970.")
      .Set(std::chrono::duration<double>(now).count());
  AddSource([](FamilyWriter& writer) {
    std::ifstream statm("/proc/self/statm");
    double total_pages = 0, resident_pages = 0;
    statm >> total_pages >> resident_pages;
    writer.Gauge("process_resident_memory_bytes", "Resident memory.", resident_pages * sysconf(_SC_PAGESIZE));
    std::error_code error;
    const std::filesystem::directory_iterator files("/proc/self/fd", error);
    writer.Gauge("process_open_fds", "Open file descriptors.", std::distance(begin(files), end(files)));
  });
}

std::vector<prometheus::MetricFamily> MetricsRegistry::Collect() const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [source, labels] : sources_) {
      FamilyWriter writer(labels);
      source(writer);
      for (prometheus::MetricFamily& family : writer.Take()) AddFamily(families, std::move(family));
    }
  }
  if (vllm_model_) AppendVllmAliases(families, *vllm_model_);
  return families;
}

std::string MetricsRegistry::RenderText() const {
  return static_cast<const prometheus::Serializer&>(prometheus::TextSerializer()).Serialize(Collect());
}

}  // namespace winnow
