#include "tools/bench/serving/replay.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "common/base/json.h"

namespace winnow::serving {
namespace {

using Json = nlohmann::json;

constexpr double kLongestRunUs = 600e6;

void FillGaps(std::vector<double> gaps_ms, ClientFigures& figures) {
  if (gaps_ms.empty()) return;
  std::sort(gaps_ms.begin(), gaps_ms.end());
  const double count = static_cast<double>(gaps_ms.size());
  figures.mean_tbt_ms = std::accumulate(gaps_ms.begin(), gaps_ms.end(), 0.0) / count;
  figures.p99_tbt_ms = gaps_ms[static_cast<size_t>(0.99 * (count - 1))];
}

}  // namespace

absl::StatusOr<MeasuredRun> ReadMeasuredRun(std::string_view text) {
  const Json json = ParseJson(text);
  if (!json.is_object() || !json.contains("requests") || !json["requests"].is_array() || json["requests"].empty()) {
    return absl::InvalidArgumentError("no requests of `winnow bench serve --out`");
  }
  MeasuredRun run;
  std::vector<double> gaps_ms;
  double tokens = 0, end_s = 0, begin_s = 1e30;
  for (const Json& request : json["requests"]) {
    if (request.value("error", "") != "") return absl::InvalidArgumentError("a request failed");
    const std::vector<double> token_s = request.value("token_seconds", std::vector<double>());
    const double sent_s = request.value("sent_seconds", 0.0);
    const auto prompt = request.value("prompt_tokens", 0u), cached = request.value("cached_prompt_tokens", 0u);
    if (token_s.empty() || prompt <= cached) return absl::InvalidArgumentError("a request without tokens");
    run.requests.push_back({.arrival_us = sent_s * 1e6,
                            .history_tokens = cached,
                            .new_tokens = prompt - cached,
                            .answer_tokens = request.value("output_tokens", static_cast<uint32_t>(token_s.size()))});
    run.figures.mean_ttft_s += token_s.front() - sent_s;
    for (size_t i = 1; i < token_s.size(); ++i) gaps_ms.push_back((token_s[i] - token_s[i - 1]) * 1e3);
    tokens += run.requests.back().answer_tokens;
    begin_s = std::min(begin_s, sent_s);
    end_s = std::max(end_s, token_s.back());
  }
  for (VirtualRequest& request : run.requests) request.arrival_us -= begin_s * 1e6;
  std::sort(run.requests.begin(), run.requests.end(),
            [](const VirtualRequest& a, const VirtualRequest& b) { return a.arrival_us < b.arrival_us; });
  run.figures.mean_ttft_s /= static_cast<double>(run.requests.size());
  run.figures.tokens_per_s = tokens / (end_s - begin_s);
  FillGaps(std::move(gaps_ms), run.figures);
  return run;
}

ClientFigures Replay(const ServingSystem& system, const H200Costs& costs, const MeasuredRun& run) {
  std::vector<TokenGap> gaps;
  ClientFigures figures;
  figures.mean_ttft_s = Serve(system, costs, run.requests, kLongestRunUs, &gaps).mean_ttft_s;
  std::vector<double> gaps_ms;
  double tokens = 0, end_us = 1;
  for (const TokenGap& gap : gaps) {
    gaps_ms.push_back(gap.length_us / 1e3);
    end_us = std::max(end_us, gap.end_us);
  }
  for (const VirtualRequest& request : run.requests) tokens += request.answer_tokens;
  figures.tokens_per_s = tokens / (end_us / 1e6);
  FillGaps(std::move(gaps_ms), figures);
  return figures;
}

std::string ReplayTable(const ClientFigures& measured, const ClientFigures& computed) {
  std::string table = absl::StrFormat("%-32s %10s %10s %8s\n", "", "measured", "computed", "ratio");
  const auto row = [&](const char* name, double of_machine, double of_clock) {
    absl::StrAppend(&table, absl::StrFormat("%-32s %10.3f %10.3f %8.2f\n", name, of_machine, of_clock,
                                            of_clock > 0 ? of_machine / of_clock : 0));
  };
  row("mean time to first token, s", measured.mean_ttft_s, computed.mean_ttft_s);
  row("mean time between tokens, ms", measured.mean_tbt_ms, computed.mean_tbt_ms);
  row("p99 between tokens, ms", measured.p99_tbt_ms, computed.p99_tbt_ms);
  row("tokens/s", measured.tokens_per_s, computed.tokens_per_s);
  return table;
}

}  // namespace winnow::serving
