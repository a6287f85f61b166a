#include "tools/bench/quality/quality_plots.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "tools/load/svg_plot.h"

namespace winnow {
namespace {

std::vector<PlotPanel> Panels(const std::vector<AnswerSummary>& summaries,
                              const std::function<double(const AnswerSummary&)>& x) {
  std::vector<PlotPanel> panels;
  for (const AnswerSummary& s : summaries) {
    const std::string title = absl::StrCat(s.task, ", ", s.chars, " characters, ", s.prompts, " prompts",
                                           s.mode == "forced" ? "" : absl::StrCat(", ", s.mode));
    if (panels.empty() || panels.back().title != title) panels.push_back({title, {}});
    std::vector<PlotSeries>& all = panels.back().series;
    auto series = std::find_if(all.begin(), all.end(), [&](const PlotSeries& one) { return one.name == s.spec; });
    if (series == all.end()) series = all.insert(all.end(), {s.spec, {}});
    series->points.push_back({x(s), s.exact_share()});
  }
  for (PlotPanel& panel : panels) {
    for (PlotSeries& series : panel.series) {
      std::stable_sort(series.points.begin(), series.points.end(),
                       [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
    }
  }
  return panels;
}

}  // namespace

std::string AccuracyAgainstBudget(const std::vector<AnswerSummary>& summaries) {
  const auto budget = [](const AnswerSummary& s) { return s.budget > 0 ? s.budget : s.prompt_tokens; };
  return SvgPlot({.title = "Exact match against budget",
                  .x_label = "selected rows per kv head",
                  .y_label = "share of prompts with every answer token right; dense stands at the prompt's length",
                  .log_x = true},
                 Panels(summaries, budget));
}

std::string AccuracyAgainstBytes(const std::vector<AnswerSummary>& summaries) {
  return SvgPlot({.title = "Exact match against bytes streamed",
                  .x_label = "KiB per decode step",
                  .y_label = "share of prompts with every answer token right; points of a line differ in budget"},
                 Panels(summaries, [](const AnswerSummary& s) { return s.bytes_per_step / 1024; }));
}

}  // namespace winnow
