#include "tools/bench/serving/ladder.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/base/json.h"

namespace winnow::serving {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

ServiceLevel ServiceLevel::Of(const H200Costs& costs) {
  const double iteration_us =
      costs.step_overhead_us + costs.MatmulUs(1) + 32'768 * costs.kv_token_bytes / costs.dense_attention_bytes_per_us;
  return {.p99_tbt_ms = 25 * iteration_us / 1e3};
}

double Climb::goodput_requests_per_s() const {
  double best = 0;
  for (const RatePoint& point : points) {
    if (!point.meets_level) break;
    best = point.requests_per_s;
  }
  return best;
}

const RatePoint* Climb::At(double requests_per_s) const {
  for (const RatePoint& point : points) {
    if (point.requests_per_s == requests_per_s) return &point;
  }
  return nullptr;
}

std::vector<Climb> ClimbAll(std::span<const ServingSystem> systems, const LadderOptions& options) {
  const ServiceLevel level = ServiceLevel::Of(options.costs);
  std::vector<Climb> climbs;
  for (const ServingSystem& system : systems) {
    Climb climb{.system = system, .points = {}};
    int beyond = 0;
    for (int i = 0; i < options.max_rates && beyond <= options.rates_beyond; ++i) {
      const double rate = options.first_rate * std::pow(options.rate_factor, i);
      const double end_us = options.seconds * 1e6;
      const std::vector<VirtualRequest> requests = PoissonRequests(options.shape, rate, end_us, options.seed);
      RatePoint point{.requests_per_s = rate, .figures = Serve(system, options.costs, requests, end_us)};
      point.meets_level = level.IsMetBy(point.figures);
      beyond += !point.meets_level;
      climb.points.push_back(point);
    }
    climbs.push_back(std::move(climb));
  }
  return climbs;
}

LadderVerdict Judge(std::span<const Climb> climbs, const Climb& without) {
  LadderVerdict verdict;
  const Climb &first = climbs.front(), &last = climbs.back();
  if (first.goodput_requests_per_s() > 0) {
    verdict.goodput_ratio = last.goodput_requests_per_s() / first.goodput_requests_per_s();
  }
  const auto broken =
      std::find_if(first.points.begin(), first.points.end(), [](const RatePoint& point) { return !point.meets_level; });
  if (broken != first.points.end()) {
    verdict.break_rate = broken->requests_per_s;
    if (const RatePoint* there = last.At(broken->requests_per_s)) {
      verdict.ttft_ratio_at_break = broken->figures.mean_ttft_s / there->figures.mean_ttft_s;
    }
  }
  for (const RatePoint& point : without.points) {
    const RatePoint* with = last.At(point.requests_per_s);
    if (with == nullptr) break;
    const double ratio = with->figures.tokens_per_s / point.figures.tokens_per_s;
    if (ratio <= verdict.control_throughput_ratio) continue;
    verdict.thrash_rate = point.requests_per_s;
    verdict.control_throughput_ratio = ratio;
    verdict.control_load_ratio = point.figures.loaded_rows_per_step / std::max(1.0, with->figures.loaded_rows_per_step);
  }
  verdict.control_throughput_rises = true;
  double tokens_per_s = 0;
  for (const RatePoint& point : last.points) {
    verdict.control_throughput_rises &= point.figures.tokens_per_s >= 0.97 * tokens_per_s;
    tokens_per_s = std::max(tokens_per_s, point.figures.tokens_per_s);
  }
  return verdict;
}

std::string ToTable(std::span<const Climb> climbs, const ServiceLevel& level) {
  std::string text = absl::StrFormat(
      "service level: p99 between tokens <= %.0f ms, mean queueing <= %.1f s\n\n"
      "| system | requests/s | mean TTFT, s | queueing, s | p99 TBT, ms | tokens/s | rows | loaded rows/step | parked "
      "|\n"
      "|---|---|---|---|---|---|---|---|---|\n",
      level.p99_tbt_ms, level.mean_queueing_s);
  for (const Climb& climb : climbs) {
    for (const RatePoint& point : climb.points) {
      const ServingFigures& f = point.figures;
      absl::StrAppendFormat(&text, "| %s | %.3f%s | %.2f | %.2f | %.0f | %.0f | %.1f | %.0f | %.2f |\n",
                            climb.system.name, point.requests_per_s, point.meets_level ? "" : " (misses)",
                            f.mean_ttft_s, f.mean_queueing_s, f.p99_tbt_ms, f.tokens_per_s, f.rows_per_step,
                            f.loaded_rows_per_step, f.parked_share);
    }
  }
  text += "\n| system | goodput, requests/s | over the first |\n|---|---|---|\n";
  const double first = climbs.front().goodput_requests_per_s();
  for (const Climb& climb : climbs) {
    const double goodput = climb.goodput_requests_per_s();
    absl::StrAppendFormat(&text, "| %s | %.3f | %.2f |\n", climb.system.name, goodput, first > 0 ? goodput / first : 0);
  }
  return text;
}

std::string ToJson(const std::string& workload, std::span<const Climb> climbs, const ServiceLevel& level,
                   const LadderVerdict& verdict) {
  Json root = {{"workload", workload},
               {"p99_tbt_limit_ms", level.p99_tbt_ms},
               {"mean_queueing_limit_s", level.mean_queueing_s},
               {"goodput_ratio", verdict.goodput_ratio},
               {"break_rate", verdict.break_rate},
               {"ttft_ratio_at_break", verdict.ttft_ratio_at_break},
               {"thrash_rate", verdict.thrash_rate},
               {"control_load_ratio", verdict.control_load_ratio},
               {"control_throughput_ratio", verdict.control_throughput_ratio},
               {"control_throughput_rises", verdict.control_throughput_rises},
               {"systems", Json::array()}};
  for (const Climb& climb : climbs) {
    Json system = {{"name", climb.system.name},
                   {"goodput_requests_per_s", climb.goodput_requests_per_s()},
                   {"points", Json::array()}};
    for (const RatePoint& point : climb.points) {
      const ServingFigures& f = point.figures;
      system["points"].push_back({{"requests_per_s", point.requests_per_s},
                                  {"meets_level", point.meets_level},
                                  {"requests", f.requests},
                                  {"finished", f.finished},
                                  {"mean_ttft_s", f.mean_ttft_s},
                                  {"mean_queueing_s", f.mean_queueing_s},
                                  {"p99_tbt_ms", f.p99_tbt_ms},
                                  {"mean_tbt_ms", f.mean_tbt_ms},
                                  {"tokens_per_s", f.tokens_per_s},
                                  {"rows_per_step", f.rows_per_step},
                                  {"loaded_rows_per_step", f.loaded_rows_per_step},
                                  {"parked_share", f.parked_share}});
    }
    root["systems"].push_back(std::move(system));
  }
  return root.dump(1);
}

}  // namespace winnow::serving
