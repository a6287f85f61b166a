#include <algorithm>
#include <cmath>
#include <map>
#include <thread>

#include "absl/strings/str_format.h"
#include "cmd/chaos/modes/closed_loop.h"
#include "cmd/chaos/modes/modes.h"

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;

constexpr int kSamples = 200;
// The first part of the time fills pools and caches: the line is laid through what comes behind it.
constexpr double kSettledAfter = 1.0 / 3;

// What a process has of one thing, over time.
struct Series {
  std::vector<double> at_s, value;

  // Least squares over the settled part.
  double SlopePerSecond() const {
    const size_t first = static_cast<size_t>(kSettledAfter * static_cast<double>(at_s.size()));
    const double n = static_cast<double>(at_s.size() - first);
    double t = 0, y = 0, tt = 0, ty = 0;
    for (size_t i = first; i < at_s.size(); ++i) {
      t += at_s[i];
      y += value[i];
      tt += at_s[i] * at_s[i];
      ty += at_s[i] * value[i];
    }
    const double spread = n * tt - t * t;
    return spread > 0 ? (n * ty - t * y) / spread : 0;
  }
  double SettledSeconds() const { return at_s.empty() ? 0 : at_s.back() * (1 - kSettledAfter); }
};

// What the line may rise by over the settled part: less is the noise of allocators and of connections that come and go.
struct Measure {
  const char* name;
  int64_t ProcessFigures::*figure;
  double least_rise;
  double share;  // of the last value
};
constexpr Measure kMeasures[] = {{"resident bytes", &ProcessFigures::rss_bytes, 16 << 20, 0.03},
                                 {"descriptors", &ProcessFigures::descriptors, 8, 0.1},
                                 {"threads", &ProcessFigures::threads, 8, 0.1}};

// What requests hold on a cache rank. It rises and falls with the load; that none is left in the end is checked
// exactly.
constexpr char kBlocks[] = "blocks in use";

using AllSeries = std::map<std::pair<std::string, const char*>, Series>;

void Look(const Cluster& cluster, const Members& members, double at_s, AllSeries& all) {
  for (const auto& [rank, member] : members) {
    const absl::StatusOr<ProcessFigures> figures = member.process.Figures();
    if (!figures.ok()) continue;
    for (const Measure& measure : kMeasures) {
      Series& series = all[{rank, measure.name}];
      series.at_s.push_back(at_s);
      series.value.push_back(static_cast<double>((*figures).*measure.figure));
    }
  }
  for (const ProcessScrape& process : cluster.Scrape()) {
    if (process.role != "cache-rank" || !process.metrics) continue;
    const double blocks = process.metrics->Value("winnow_kv_blocks", {{"state", "used"}});
    if (!std::isfinite(blocks)) continue;
    Series& series = all[{process.rank, kBlocks}];
    series.at_s.push_back(at_s);
    series.value.push_back(blocks);
  }
}

}  // namespace

Findings RunSoak(const Session& session, const SoakPlan& plan) {
  Findings findings;
  Tally tally;
  AllSeries all;
  const Members before = session.cluster->Find();
  const Clock::time_point begin = Clock::now();
  const auto pause = std::max(milliseconds(50), milliseconds(plan.lasts.count() / kSamples));
  {
    const std::jthread looks([&](const std::stop_token& over) {
      do {
        Look(*session.cluster, before, std::chrono::duration<double>(Clock::now() - begin).count(), all);
      } while (SleepFor(pause, over));
    });
    RunClosedLoop(
        session, plan.clients, [&] { return Clock::now() < begin + plan.lasts; },
        [&](size_t request, const Answer& answer) { tally.Add(session, request, answer); });
  }
  session.say(absl::StrFormat("%d clients for %s: %s\n", plan.clients, TimeText(Clock::now() - begin), tally.Text()));
  tally.AddFailures(findings.failures);
  for (const auto& [key, series] : all) {
    const auto& [rank, name] = key;
    if (series.value.empty()) continue;
    const double slope = series.SlopePerSecond(), rise = slope * series.SettledSeconds();
    const Measure* measure = std::find_if(std::begin(kMeasures), std::end(kMeasures),
                                          [of = key.second](const Measure& each) { return each.name == of; });
    session.say(absl::StrFormat("  %-14s %-15s %14.0f at the end, %+.0f an hour\n", rank, name, series.value.back(),
                                3600 * slope));
    findings.json["slopes_per_hour"][rank][name] = 3600 * slope;
    if (measure == std::end(kMeasures) || rise <= std::max(measure->least_rise, measure->share * series.value.back())) {
      continue;
    }
    findings.failures.push_back(
        absl::StrFormat("%s of %s rose by %.0f in %.0f s", name, rank, rise, series.SettledSeconds()));
  }
  session.cluster->AwaitWhole(kWholeLimit, session.stop);  // who is short of CPU answers late
  if (const std::string ended = EndedSince(before, session.cluster->Find()); !ended.empty()) {
    findings.failures.push_back(ended);
  }
  CheckReturn(session, findings.failures);
  findings.json["same"] = tally.same;
  findings.json["other_tokens"] = tally.wrong;
  findings.json["lost"] = tally.lost;
  return findings;
}

}  // namespace winnow::chaos
