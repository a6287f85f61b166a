#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "common/selection/presets.h"
#include "tools/bench/serve_sections.h"

namespace winnow {
namespace {

constexpr uint32_t kBudget = 512;
constexpr int kTokens = 200;

// Rows that a step attends with that budget: sinks, selected, and the recent window, which lies between recent_tokens
// and a block more.
uint32_t AttendedRows() {
  const SelectionSpec spec = *FindPreset("winnow");
  return spec.sink_tokens + kBudget + spec.recent_tokens + 16;
}

}  // namespace

absl::Status SelectionSection(ServeBench& bench) {
  const uint32_t rows = AttendedRows();
  std::printf(
      "\n## selection: step time at budget %u, batch 1, over that of a selection that costs nothing\n"
      "Free selection: dense at a context of %u, which attends as many rows and ships the same appends but scores,\n"
      "selects and fetches nothing. limit: reading weights and attended rows; with keys: and every key once.\n"
      "%-12s %8s | %9s %8s %17s | %9s %9s | %6s %6s %9s %7s\n",
      kBudget, rows, "selection", "context", "step us", "/free", "(windows)", "limit us", "with keys", "hits", "mass",
      "KB/token", "others");
  double free_us = 0;
  {
    WINNOW_ASSIGN_OR_RETURN(const auto cluster, bench.Start("dense", 0));
    WINNOW_ASSIGN_OR_RETURN(const auto served, bench.Serve(*cluster, rows - 100, 1, kTokens));
    free_us = 1e6 / served.rate.tokens_per_s;
    std::printf("%-12s %8u | %9.0f %8.2f %8.0f-%8.0f | %9.0f %9s | %31.2f\n", "free (dense)", rows, free_us, 1.0,
                1e6 / served.rate.highest, 1e6 / served.rate.lowest, 1e6 / bench.MemoryLimit(1, rows), "",
                served.others);
    std::fflush(stdout);
    WINNOW_RETURN_IF_ERROR(cluster->Stop());
  }
  for (const char* selection : {"winnow", "async-token", "exact-token"}) {
    WINNOW_ASSIGN_OR_RETURN(const auto cluster, bench.Start(selection, kBudget));
    for (const uint32_t context : {4096u, 16384u}) {
      WINNOW_ASSIGN_OR_RETURN(const auto served, bench.Serve(*cluster, context, 1, kTokens));
      const double us = 1e6 / served.rate.tokens_per_s;
      std::printf("%-12s %8u | %9.0f %8.2f %8.0f-%8.0f | %9.0f %9.0f | %6.3f %6.3f %9.1f %7.2f\n", selection, context,
                  us, us / free_us, 1e6 / served.rate.highest, 1e6 / served.rate.lowest,
                  1e6 / bench.MemoryLimit(1, rows), 1e6 / bench.MemoryLimitWithKeys(1, context, rows), served.hit_ratio,
                  served.captured_mass, served.streamed_bytes_per_token / 1024, served.others);
      std::fflush(stdout);
    }
    WINNOW_RETURN_IF_ERROR(cluster->Stop());
  }
  return absl::OkStatus();
}

absl::Status ContextSection(ServeBench& bench) {
  const uint32_t rows = AttendedRows();
  std::printf(
      "\n## context: step time in us against context length, batch 1, through HTTP; budget %u\n"
      "limit: reading weights and attended rows; with keys: and every key once.\n"
      "%8s | %9s %9s | %11s %9s | %9s %9s | %7s\n",
      kBudget, "context", "dense", "limit", "async-token", "winnow", "limit", "with keys", "others");
  std::vector<uint32_t> contexts = {1024, 2048, 4096, 8192, 16384, 30000};
  if (bench.quick()) contexts = {1024, 4096, 16384};
  // All of them at once and in turn, so that the figures of a row see the same machine; an idle cluster takes no time.
  std::vector<std::unique_ptr<e2e::Cluster>> clusters;
  for (const char* selection : {"dense", "async-token", "winnow"}) {
    WINNOW_ASSIGN_OR_RETURN(auto cluster, bench.Start(selection, clusters.empty() ? 0 : kBudget));
    clusters.push_back(std::move(cluster));
  }
  for (const uint32_t context : contexts) {
    std::vector<double> step_us;
    double others = 0;
    for (const auto& cluster : clusters) {
      WINNOW_ASSIGN_OR_RETURN(const auto served, bench.Serve(*cluster, context, 1, kTokens));
      step_us.push_back(1e6 / served.rate.tokens_per_s);
      others = std::max(others, served.others);
    }
    std::printf("%8u | %9.0f %9.0f | %11.0f %9.0f | %9.0f %9.0f | %7.2f\n", context, step_us[0],
                1e6 / bench.MemoryLimit(1, context), step_us[1], step_us[2], 1e6 / bench.MemoryLimit(1, rows),
                1e6 / bench.MemoryLimitWithKeys(1, context, rows), others);
    std::fflush(stdout);
  }
  for (const auto& cluster : clusters) WINNOW_RETURN_IF_ERROR(cluster->Stop());
  return absl::OkStatus();
}

absl::Status ParallelSection(ServeBench& bench) {
  constexpr int kStreams = 8;
  constexpr uint32_t kContext = 4096;
  std::printf(
      "\n## parallel: %d sequences of %u tokens, the phase in which all of them decode\n"
      "%-12s | %10s %17s | %10s %10s | %7s\n",
      kStreams, kContext, "selection", "tokens/s", "(windows)", "limit", "with keys", "others");
  for (const char* selection : {"dense", "winnow"}) {
    const bool dense = std::string_view(selection) == "dense";
    WINNOW_ASSIGN_OR_RETURN(const auto cluster, bench.Start(selection, dense ? 0 : kBudget));
    WINNOW_ASSIGN_OR_RETURN(const auto served, bench.Serve(*cluster, kContext, kStreams, 500));
    const double rows = dense ? kContext : AttendedRows();
    std::printf("%-12s | %10.0f %8.0f-%8.0f | %10.0f %10.0f | %7.2f\n", selection, served.rate.tokens_per_s,
                served.rate.lowest, served.rate.highest, bench.MemoryLimit(kStreams, rows),
                dense ? bench.MemoryLimit(kStreams, rows) : bench.MemoryLimitWithKeys(kStreams, kContext, rows),
                served.others);
    std::fflush(stdout);
    WINNOW_RETURN_IF_ERROR(cluster->Stop());
  }
  return absl::OkStatus();
}

}  // namespace winnow
