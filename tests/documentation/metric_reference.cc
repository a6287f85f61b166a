#include "tests/documentation/metric_reference.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cmd/role/cache_rank_metrics.h"
#include "cmd/role/inference_rank_metrics.h"
#include "cmd/role/link_reports.h"
#include "cmd/role/registry_metrics.h"
#include "cmd/role/span_export.h"
#include "common/base/check.h"
#include "common/metrics/metric_aliases.h"
#include "common/metrics/metrics_registry.h"
#include "common/metrics/request_metrics.h"
#include "router/keys/key_file.h"
#include "router/keys/key_metrics.h"
#include "router/router_metrics.h"
#include "tests/support/temp_dir.h"

namespace winnow {
namespace {

using Families = std::vector<prometheus::MetricFamily>;

constexpr char kIntroduction[] = R"(# Metrics

Each process serves them at `/metrics` of its metrics address, the router also at its HTTP port; [operations.md](operations.md#metrics)
says how they are collected and which to watch. All carry the labels `role` and `rank`. This page is made from the code that
writes them, and a test keeps it so.

A label's values stand behind it where there is a fixed set of them. Of histograms Prometheus has `NAME_bucket`, `NAME_sum` and
`NAME_count`. Times are in seconds.
)";

constexpr char kHeader[] = "\n| name | type | labels | |\n|---|---|---|---|\n";

const char* TypeName(prometheus::MetricType type) {
  switch (type) {
    case prometheus::MetricType::Counter:
      return "counter";
    case prometheus::MetricType::Histogram:
      return "histogram";
    default:
      return "gauge";
  }
}

// "`state`: free, used": a set of more values than a reader can use, or of one that stands for any, is left out.
std::string Labels(const prometheus::MetricFamily& family) {
  std::map<std::string, std::set<std::string>> values;
  for (const prometheus::ClientMetric& metric : family.metric) {
    for (const auto& label : metric.label) values[label.name].insert(label.value);
  }
  std::vector<std::string> labels;
  for (const auto& [name, of_name] : values) {
    const bool listed = of_name.size() > 1 && of_name.size() <= 8;
    labels.push_back(absl::StrCat("`", name, "`", listed ? ": " + absl::StrJoin(of_name, ", ") : ""));
  }
  return absl::StrJoin(labels, "; ");
}

std::string Table(Families families) {
  std::sort(families.begin(), families.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::string table = kHeader;
  for (const prometheus::MetricFamily& family : families) {
    absl::StrAppend(&table, "| `", family.name, "` | ", TypeName(family.type), " | ", Labels(family), " | ",
                    absl::StrReplaceAll(family.help, {{"|", "\\|"}}), " |\n");
  }
  return table;
}

// Those of `all` whose names are not among `known`.
Families Beyond(const Families& known, Families all) {
  std::set<std::string> names;
  for (const auto& family : known) names.insert(family.name);
  std::erase_if(all, [&](const auto& family) { return names.contains(family.name); });
  return all;
}

template <typename Write>
Families Written(const Write& write) {
  const MetricLabels no_labels;
  FamilyWriter writer(no_labels);
  write(writer);
  return writer.Take();
}

Families OfRouter() {
  MetricsRegistry registry;
  const RequestMetrics requests(registry, "model");
  Families families = registry.Collect();
  const DispatcherCounters counters;
  for (auto& family : Written([&](FamilyWriter& writer) {
         WriteDispatcherMetrics(counters, writer);
         WriteMembershipMetrics({}, writer);
       })) {
    families.push_back(std::move(family));
  }
  return families;
}

Families OfKeys() {
  const TempDir folder;
  KeyFile file;
  file.keys.emplace_back().name = "chat";
  IssueSecret(file.keys.back());
  const std::string path = folder.path() + "/keys.yaml";
  WINNOW_CHECK(file.Save(path).ok());
  const auto ring = KeyRing::Load(path);
  WINNOW_CHECK(ring.ok());
  return Written([&](FamilyWriter& writer) { WriteKeyMetrics(**ring, writer); });
}

Families OfInferenceRank() {
  const InferenceRankMetrics metrics(1);
  return Written([&](FamilyWriter& writer) {
    WriteMetrics(metrics, writer);
    LinkReports().Write(writer);
  });
}

CacheRankSnapshot OneLayer() {
  CacheRankSnapshot snapshot;
  snapshot.captured_mass.resize(1);
  snapshot.corrected_mass.resize(1);
  return snapshot;
}

Families OfCacheRank(const CacheRankSnapshot& snapshot) {
  return Written([&](FamilyWriter& writer) {
    WriteMetrics(snapshot, writer);
    LinkReports().Write(writer);
  });
}

Families OfTraces() {
  const SpanExporter::Counters counters;
  return Written([&](FamilyWriter& writer) { WriteMetrics(counters, writer); });
}

Families OfEveryProcess() {
  MetricsRegistry registry;
  registry.AddProcessMetrics();
  return registry.Collect();
}

Families OfRegistry() {
  return Written([](FamilyWriter& writer) { WriteMetrics(RegistryPresence::State(), writer); });
}

}  // namespace

std::string MetricReference() {
  const CacheRankSnapshot plain = OneLayer();
  CacheRankSnapshot with_tiers = plain, with_peer_links = plain;
  with_tiers.fast_bytes = 1;
  with_peer_links.copy_device_bytes = 1;

  const Families router = OfRouter();
  Families with_aliases = router;
  AppendVllmAliases(with_aliases, "model");
  const Families cache_rank = OfCacheRank(plain);
  return absl::StrCat(
      kIntroduction, "\n## Every process\n", Table(OfEveryProcess()), "\n### With a registry\n\nWith `--registry`.\n",
      Table(OfRegistry()), "\n### With traces\n\nWith `--otlp-endpoint`.\n", Table(OfTraces()), "\n## Router\n",
      Table(router), "\n### With API keys\n\nWith `--api-keys`; one series for each key.\n", Table(OfKeys()),
      "\n### Under vLLM's names\n\nWith `--metrics-aliases=vllm`: copies of metrics above.\n",
      Table(Beyond(router, with_aliases)), "\n## Inference rank\n", Table(OfInferenceRank()), "\n## Cache rank\n",
      Table(cache_rank), "\n### With two tiers\n\nWith `--fast-memory`.\n",
      Table(Beyond(cache_rank, OfCacheRank(with_tiers))),
      "\n### With decode steps from GPU to GPU\n\nWhere the rank has a peer link.\n",
      Table(Beyond(cache_rank, OfCacheRank(with_peer_links))));
}

}  // namespace winnow
