#include "tools/load/report.h"

#include <algorithm>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/load/svg_plot.h"

namespace winnow {
namespace {

std::string Row(const char* name, const Distribution& times_s) {
  return absl::StrFormat("%-24s %10.2f %10.2f %10.2f %10.2f\n", name, times_s.mean * 1e3, times_s.p50 * 1e3,
                         times_s.p90 * 1e3, times_s.p99 * 1e3);
}

nlohmann::ordered_json ToJson(const Distribution& distribution) {
  return {{"mean", distribution.mean},
          {"p50", distribution.p50},
          {"p90", distribution.p90},
          {"p99", distribution.p99},
          {"count", distribution.count}};
}

// Share of requests whose value, in milliseconds, was at most x.
PlotPanel Cumulative(const char* title, const std::vector<RequestTimes>& requests,
                     const std::function<void(const RequestTimes&, std::vector<double>&)>& collect) {
  std::vector<double> values;
  for (const RequestTimes& request : requests) {
    if (request.error.empty() && !request.token_s.empty()) collect(request, values);
  }
  std::sort(values.begin(), values.end());
  PlotSeries series{.name = "share of requests", .points = {}};
  const size_t step = std::max<size_t>(1, values.size() / 200);
  for (size_t i = 0; i < values.size(); i += step) {
    series.points.push_back({values[i] * 1e3, static_cast<double>(i + 1) / static_cast<double>(values.size())});
  }
  return {.title = title, .series = {std::move(series)}};
}

}  // namespace

std::string SummaryText(const LoadSummary& summary, const LoadTargets& targets) {
  std::string text = absl::StrFormat("%d requests answered, %d failed, in %.2f s\n", summary.completed, summary.failed,
                                     summary.duration_s);
  absl::StrAppend(&text, absl::StrFormat("%-24s %10.2f\n", "requests/s", summary.requests_per_s));
  absl::StrAppend(&text, absl::StrFormat("%-24s %10.2f\n", "output tokens/s", summary.output_tokens_per_s));
  absl::StrAppend(&text, absl::StrFormat("%-24s %10d, of them %d from the prefix cache\n", "prompt tokens",
                                         summary.prompt_tokens, summary.cached_tokens));
  if (std::min({targets.ttft_s, targets.tpot_s, targets.end_to_end_s}) < 1e29) {
    absl::StrAppend(&text, absl::StrFormat("%-24s %10.2f\n", "good requests/s", summary.goodput_per_s));
  }
  absl::StrAppend(&text, absl::StrFormat("%-24s %10s %10s %10s %10s\n", "milliseconds", "mean", "p50", "p90", "p99"));
  absl::StrAppend(&text, Row("time to first token", summary.ttft_s), Row("time per output token", summary.tpot_s),
                  Row("inter-token latency", summary.itl_s), Row("end to end", summary.end_to_end_s),
                  Row("sent too late by", summary.lateness_s));
  return text;
}

std::string FailureText(const std::vector<RequestTimes>& requests) {
  constexpr size_t kMostShown = 5;
  std::map<std::string, size_t> counts;
  for (const RequestTimes& request : requests) {
    if (!request.error.empty()) {
      ++counts[request.error];
    } else if (request.token_s.empty()) {
      ++counts["an answer without tokens"];
    }
  }
  std::vector<std::pair<std::string, size_t>> errors(counts.begin(), counts.end());
  std::stable_sort(errors.begin(), errors.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (size_t i = 0; i < std::min(errors.size(), kMostShown); ++i) {
    absl::StrAppend(&text, "failed ", errors[i].second, " x: ", errors[i].first, "\n");
  }
  if (errors.size() > kMostShown) absl::StrAppend(&text, "failed otherwise: ", errors.size() - kMostShown, " ways\n");
  return text;
}

nlohmann::ordered_json SummaryJson(const LoadSummary& summary, const std::vector<RequestTimes>& requests) {
  nlohmann::ordered_json json = {{"completed", summary.completed},
                                 {"failed", summary.failed},
                                 {"duration_seconds", summary.duration_s},
                                 {"prompt_tokens", summary.prompt_tokens},
                                 {"cached_prompt_tokens", summary.cached_tokens},
                                 {"output_tokens", summary.output_tokens},
                                 {"requests_per_second", summary.requests_per_s},
                                 {"output_tokens_per_second", summary.output_tokens_per_s},
                                 {"good_requests_per_second", summary.goodput_per_s},
                                 {"ttft_seconds", ToJson(summary.ttft_s)},
                                 {"tpot_seconds", ToJson(summary.tpot_s)},
                                 {"itl_seconds", ToJson(summary.itl_s)},
                                 {"end_to_end_seconds", ToJson(summary.end_to_end_s)},
                                 {"lateness_seconds", ToJson(summary.lateness_s)}};
  for (const RequestTimes& request : requests) {
    json["requests"].push_back({{"due_seconds", request.due_s},
                                {"sent_seconds", request.sent_s},
                                {"end_seconds", request.end_s},
                                {"prompt_tokens", request.prompt_tokens},
                                {"cached_prompt_tokens", request.cached_tokens},
                                {"output_tokens", request.num_tokens()},
                                {"token_seconds", request.token_s},
                                {"error", request.error}});
  }
  return json;
}

std::string SummaryPlot(const std::vector<RequestTimes>& requests, const std::string& title) {
  const std::vector<PlotPanel> panels = {
      Cumulative("time to first token", requests,
                 [](const RequestTimes& r, std::vector<double>& out) { out.push_back(r.token_s.front() - r.sent_s); }),
      Cumulative("time per output token", requests,
                 [](const RequestTimes& r, std::vector<double>& out) {
                   if (r.token_s.size() < 2) return;
                   out.push_back((r.token_s.back() - r.token_s.front()) / static_cast<double>(r.num_tokens() - 1));
                 }),
      Cumulative("end to end", requests,
                 [](const RequestTimes& r, std::vector<double>& out) { out.push_back(r.end_s - r.sent_s); })};
  return SvgPlot({.title = title, .x_label = "milliseconds", .y_label = "share of requests", .log_x = true}, panels);
}

}  // namespace winnow
