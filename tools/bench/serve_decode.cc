#include <cstdio>

#include "tools/bench/serve_sections.h"

namespace winnow {

absl::Status DecodeSection(ServeBench& bench) {
  std::printf(
      "\n## decode: dense, through HTTP streaming, all processes on this machine\n"
      "limit: reading weights and rows once. engine: the forward pass alone, measured just before. Aim: ratio >= 0.9.\n"
      "%8s %6s | %10s %16s | %10s %10s | %7s %9s %7s\n",
      "context", "batch", "tokens/s", "(windows)", "engine", "limit", "/engine", "/limit", "others");
  WINNOW_ASSIGN_OR_RETURN(const auto cluster, bench.Start("dense", 0));
  for (const uint32_t context : {64u, 1024u, 4096u, 16384u}) {
    bench.engine().PrefillSeconds(context, 1);
    for (const int batch : {1, 8}) {
      if (bench.quick() && context * batch > 40'000) continue;
      const double engine = bench.EngineDecodeTokensPerSecond(batch);
      // A long prompt of another stream delays the first ones, who must not be through before the last begins.
      WINNOW_ASSIGN_OR_RETURN(const auto served, bench.Serve(*cluster, context, batch, batch == 1 ? 200 : 400));
      const double limit = bench.MemoryLimit(batch, context);
      std::printf("%8u %6d | %10.0f %7.0f-%8.0f | %10.0f %10.0f | %7.2f %9.2f %7.2f\n", context, batch,
                  served.rate.tokens_per_s, served.rate.lowest, served.rate.highest, engine, limit,
                  served.rate.tokens_per_s / engine, served.rate.tokens_per_s / limit, served.others);
      std::fflush(stdout);
    }
  }
  return cluster->Stop();
}

absl::Status PrefillSection(ServeBench& bench) {
  std::printf(
      "\n## prefill: prompt tokens over the time to the first token, through HTTP\n"
      "limit: the forward pass alone (engine), which has no KV to ship.\n"
      "%8s | %12s %10s | %12s | %7s %7s\n",
      "context", "tokens/s", "TTFT ms", "engine", "/engine", "others");
  WINNOW_ASSIGN_OR_RETURN(const auto cluster, bench.Start("winnow", 512));
  for (const uint32_t context : {1024u, 4096u, 16384u}) {
    const double engine = bench.EnginePrefillTokensPerSecond(context);
    WINNOW_ASSIGN_OR_RETURN(const auto served, bench.Serve(*cluster, context, 1, 16));
    const double rate = context / served.time_to_first_token_s;
    std::printf("%8u | %12.0f %10.1f | %12.0f | %7.2f %7.2f\n", context, rate, served.time_to_first_token_s * 1e3,
                engine, rate / engine, served.others);
    std::fflush(stdout);
  }
  return cluster->Stop();
}

}  // namespace winnow
