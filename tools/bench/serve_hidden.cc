#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "tests/e2e/golden.h"
#include "tools/bench/other_load.h"
#include "tools/bench/pinning.h"
#include "tools/bench/serve_sections.h"
#include "tools/timeline/timeline_client.h"

namespace winnow {
namespace {

constexpr int kTokens = 300;
constexpr size_t kWarmUpSteps = 32;

// Medians over the decode steps of one request, from the ranks' timelines, in microseconds.
struct Steps {
  double step_us = 0;
  double await_us = 0;   // of it, waiting for selections
  double first_us = 0;   // of that, in layer 0, whose own query nothing can foresee
  double select_us = 0;  // the cache rank's work per step, off the medians of its layers
  double hit_ratio = 0, captured_mass = 0;
  double streamed_bytes_per_token = 0;
  double others = 0;  // share of one core that other processes took
};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

Steps Summarize(const std::vector<v1::StopTimelineResponse>& timelines) {
  std::map<uint64_t, double> step_us, await_us, first_us;  // by plan
  std::map<uint32_t, std::vector<double>> select_us;       // by layer
  for (const v1::StopTimelineResponse& rank : timelines) {
    for (const v1::TimelineThread& thread : rank.threads()) {
      for (const v1::TimelineEvent& event : thread.events()) {
        const double us = event.duration_ns() / 1000.0;
        if (event.span() == "step") step_us[event.plan()] = us;
        if (event.span() == "await rows") await_us[event.plan()] += us;
        if (event.span() == "await rows" && event.layer() == 0) first_us[event.plan()] = us;
        if (event.span() == "select") select_us[event.layer()].push_back(us);
      }
    }
  }
  std::vector<double> steps, awaits, firsts;
  size_t index = 0;
  for (const auto& [plan, us] : step_us) {
    if (index++ < kWarmUpSteps) continue;
    steps.push_back(us);
    awaits.push_back(await_us[plan]);
    firsts.push_back(first_us[plan]);
  }
  Steps result{.step_us = Median(steps), .await_us = Median(awaits), .first_us = Median(firsts)};
  for (auto& [layer, values] : select_us) result.select_us += Median(std::move(values));
  return result;
}

// One cluster whose inference rank and cache rank have a core each; the router and this client share that of the cache
// rank, and the answer is not streamed, so that they do next to nothing meanwhile.
absl::StatusOr<std::unique_ptr<e2e::Cluster>> StartPinned(const std::string& model, const std::string& selection,
                                                          uint32_t budget) {
  e2e::Cluster::Options options;
  options.model = model;
  options.flags = {"--selection=" + selection, absl::StrCat("--budget=", budget), "--max-running=4", "--threads=1",
                   "--log-level=warning"};
  WINNOW_ASSIGN_OR_RETURN(auto cluster, e2e::Cluster::Start(options));
  for (const pid_t pid : cluster->Pids("inference-rank")) WINNOW_RETURN_IF_ERROR(PinProcess(pid, 0));
  for (const pid_t pid : cluster->Pids("cache-rank")) WINNOW_RETURN_IF_ERROR(PinProcess(pid, 1));
  for (const pid_t pid : cluster->Pids("router")) WINNOW_RETURN_IF_ERROR(PinProcess(pid, 1));
  return cluster;
}

absl::StatusOr<Steps> Measure(e2e::Cluster& cluster, uint32_t context) {
  const OtherLoad load(cluster.AllPids());
  WINNOW_ASSIGN_OR_RETURN(TimelineClient timelines, TimelineClient::Connect(cluster.grpc_address()));
  WINNOW_RETURN_IF_ERROR(timelines.Start());
  const e2e::Completion answer = e2e::Complete(cluster.http(), e2e::GreedyRequest(e2e::DemoText(context), kTokens));
  WINNOW_ASSIGN_OR_RETURN(const std::vector<v1::StopTimelineResponse> recorded, timelines.Stop());
  if (!answer.ok()) return absl::InternalError(absl::StrCat("status ", answer.status, ": ", answer.error));
  Steps steps = Summarize(recorded);
  steps.hit_ratio = answer.Stat("hit_ratio");
  steps.captured_mass = answer.Stat("captured_mass_mean");
  steps.streamed_bytes_per_token = answer.Stat("streamed_bytes") / kTokens;
  steps.others = load.Share();
  return steps;
}

}  // namespace

absl::Status HiddenSection(ServeBench& bench) {
  constexpr uint32_t kBudget = 2048;
  std::vector<std::string> selections = {"fixed"};
  if (bench.selections().empty()) {
    selections.insert(selections.end(), {"winnow", "async-token", "exact-token"});
  } else {
    selections.insert(selections.end(), bench.selections().begin(), bench.selections().end());
  }
  int width = 12;
  for (const std::string& selection : selections) width = std::max(width, static_cast<int>(selection.size()));
  std::printf(
      "\n## hidden: decode step of the engine at budget %u, batch 1, over that of a fixed selection that costs "
      "nothing\n"
      "Inference rank and cache rank have one core each; medians of the ranks' own timelines, in us.\n"
      "await: of the step, waiting for selections (layer 0 of it: its query is its own); select: the cache rank's "
      "work.\n"
      "%8s %-*s | %9s %7s | %9s %9s | %9s | %6s %6s %9s | %7s\n",
      kBudget, "context", width, "selection", "step", "/fixed", "await", "layer 0", "select", "mass", "hits",
      "KB/token", "others");
  std::vector<uint32_t> contexts = {4096, 16384, 32000};
  if (bench.quick()) contexts = {4096, 16384};
  std::vector<std::unique_ptr<e2e::Cluster>> clusters;
  for (const std::string& selection : selections) {
    WINNOW_ASSIGN_OR_RETURN(auto cluster, StartPinned(bench.model_dir(), selection, kBudget));
    clusters.push_back(std::move(cluster));
  }
  for (const uint32_t context : contexts) {
    double fixed_us = 0;
    for (size_t i = 0; i < selections.size(); ++i) {
      bench.AwaitQuiet(clusters[i]->AllPids());
      WINNOW_ASSIGN_OR_RETURN(const Steps steps, Measure(*clusters[i], context));
      if (i == 0) fixed_us = steps.step_us;
      std::printf("%8u %-*s | %9.0f %7.2f | %9.0f %9.0f | %9.0f | %6.3f %6.3f %9.0f | %7.2f\n", context, width,
                  selections[i].c_str(), steps.step_us, steps.step_us / fixed_us, steps.await_us, steps.first_us,
                  steps.select_us, steps.captured_mass, steps.hit_ratio, steps.streamed_bytes_per_token / 1024,
                  steps.others);
      std::fflush(stdout);
    }
  }
  for (const auto& cluster : clusters) WINNOW_RETURN_IF_ERROR(cluster->Stop());
  return absl::OkStatus();
}

}  // namespace winnow
