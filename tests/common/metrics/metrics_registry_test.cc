#include "common/metrics/metrics_registry.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MetricsRegistry, SeriesExistAtZeroAndCarryTheConstantLabels) {
  MetricsRegistry registry(MetricLabels{{"role", "cache-rank"}});
  prometheus::Counter& counter = registry.AddCounter("winnow_x_total", "Xs.", {{"kind", "a"}});
  EXPECT_THAT(registry.RenderText(), HasSubstr("winnow_x_total{role=\"cache-rank\",kind=\"a\"} 0\n"));
  counter.Increment(3);
  EXPECT_THAT(registry.RenderText(), HasSubstr("winnow_x_total{role=\"cache-rank\",kind=\"a\"} 3\n"));
  EXPECT_THAT(registry.RenderText(), HasSubstr("# TYPE winnow_x_total counter\n"));
}

TEST(MetricsRegistry, SourcesAreAskedAtEachScrape) {
  MetricsRegistry registry(MetricLabels{{"role", "r"}});
  int calls = 0;
  registry.AddSource([&](FamilyWriter& writer) {
    writer.Counter("winnow_y_total", "Ys.", ++calls);
    writer.Gauge("winnow_z", "Zs.", 1, {{"state", "free"}});
    writer.Gauge("winnow_z", "Zs.", 2, {{"state", "used"}});
  });
  EXPECT_THAT(registry.RenderText(), HasSubstr("winnow_y_total{role=\"r\"} 1\n"));
  const std::string text = registry.RenderText();
  EXPECT_THAT(text, HasSubstr("winnow_y_total{role=\"r\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("winnow_z{role=\"r\",state=\"free\"} 1\nwinnow_z{role=\"r\",state=\"used\"} 2\n"));
  registry.ClearSources();
  EXPECT_THAT(registry.RenderText(), Not(HasSubstr("winnow_y_total")));
}

TEST(MetricsRegistry, ASourceAddsToAFamilyOfTheRegistry) {
  MetricsRegistry registry;
  registry.AddCounter("winnow_x_total", "Xs.", {{"from", "here"}});
  registry.AddSource([](FamilyWriter& writer) { writer.Counter("winnow_x_total", "Xs.", 5, {{"from", "source"}}); });
  const std::string text = registry.RenderText();
  EXPECT_EQ(text.find("# TYPE winnow_x_total"), text.rfind("# TYPE winnow_x_total"));
  EXPECT_THAT(text, HasSubstr("winnow_x_total{from=\"source\"} 5\n"));
}

TEST(MetricsRegistry, ASourceMayStandForAnotherProcess) {
  MetricsRegistry registry(MetricLabels{{"rank", "a"}});
  auto source = [](FamilyWriter& writer) { writer.Gauge("winnow_z", "Zs.", 1); };
  registry.AddSource(source);
  registry.AddSource(source, {{"rank", "b"}});
  EXPECT_THAT(registry.RenderText(), HasSubstr("winnow_z{rank=\"a\"} 1\nwinnow_z{rank=\"b\"} 1\n"));
}

TEST(FamilyWriter, HistogramCountsBecomeCumulative) {
  MetricsRegistry registry;
  registry.AddSource([](FamilyWriter& writer) {
    const double bounds[] = {0.5, 1};
    const uint64_t counts[] = {2, 3, 4};
    writer.Histogram("winnow_h", "Hs.", bounds, counts, 7.5, {{"layer", "0"}});
  });
  const std::string text = registry.RenderText();
  EXPECT_THAT(text, HasSubstr("winnow_h_count{layer=\"0\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("winnow_h_sum{layer=\"0\"} 7.5\n"));
  EXPECT_THAT(text, HasSubstr("winnow_h_bucket{layer=\"0\",le=\"0.5\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("winnow_h_bucket{layer=\"0\",le=\"1\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("winnow_h_bucket{layer=\"0\",le=\"+Inf\"} 9\n"));
}

TEST(MetricsRegistry, ProcessMetricsSayWhatRuns) {
  MetricsRegistry registry(MetricLabels{{"role", "router"}});
  registry.AddProcessMetrics();
  const std::string text = registry.RenderText();
  EXPECT_THAT(text, testing::ContainsRegex("winnow_build_info\\{role=\"router\",version=\"[0-9.]+\"\\} 1\n"));
  EXPECT_THAT(text, testing::ContainsRegex("process_resident_memory_bytes\\{role=\"router\"\\} [1-9]"));
  EXPECT_THAT(text, testing::ContainsRegex("process_open_fds\\{role=\"router\"\\} [1-9]"));
}

}  // namespace
}  // namespace winnow
