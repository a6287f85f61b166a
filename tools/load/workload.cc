#include "tools/load/workload.h"

#include <algorithm>
#include <random>

namespace winnow {
namespace {

// SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014): every bit of the input moves every bit of the output.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

std::vector<PlannedRequest> PlanWorkload(const WorkloadOptions& options) {
  std::mt19937_64 random(options.seed);
  std::exponential_distribution<double> gap(options.rate_per_s > 0 ? options.rate_per_s : 1);
  std::vector<PlannedRequest> requests(options.num_requests);
  double now_s = 0;
  for (uint32_t i = 0; i < options.num_requests; ++i) {
    PlannedRequest& request = requests[i];
    if (options.rate_per_s > 0) now_s += gap(random);
    request.at_s = now_s;
    const uint32_t tokens = options.input.Draw(random);
    request.output_tokens = options.output.Draw(random);
    uint32_t shared = 0;
    if (options.num_prefixes > 0) {
      shared = std::min(tokens, static_cast<uint32_t>(tokens * options.shared_fraction));
      const uint64_t prefix = std::uniform_int_distribution<uint32_t>(0, options.num_prefixes - 1)(random);
      if (shared > 0) request.prompt.push_back({Mix(Mix(options.seed) + prefix), shared});
    }
    if (tokens > shared) request.prompt.push_back({Mix(Mix(options.seed + 1) + i), tokens - shared});
  }
  return requests;
}

std::vector<uint32_t> PromptTokenIds(const std::vector<PromptPart>& prompt, uint32_t first_id, uint32_t num_ids) {
  std::vector<uint32_t> ids;
  for (const PromptPart& part : prompt) {
    for (uint32_t i = 0; i < part.tokens; ++i) {
      ids.push_back(first_id + static_cast<uint32_t>(Mix(Mix(part.content) + i) % num_ids));
    }
  }
  return ids;
}

}  // namespace winnow
