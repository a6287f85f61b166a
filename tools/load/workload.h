#pragma once
#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "tools/load/length_mix.h"

namespace winnow {

// A run of made-up tokens: the same content and length give the same tokens, so that requests share prefixes.
struct PromptPart {
  uint64_t content = 0;
  uint32_t tokens = 0;
  bool operator==(const PromptPart&) const = default;
};

struct PlannedRequest {
  double at_s = 0;  // when it is sent, after the start; 0 for all of a closed loop
  std::vector<PromptPart> prompt;
  uint32_t output_tokens = 0;

  uint32_t prompt_tokens() const {
    uint32_t tokens = 0;
    for (const PromptPart& part : prompt) tokens += part.tokens;
    return tokens;
  }
};

struct WorkloadOptions {
  uint32_t num_requests = 100;
  double rate_per_s = 0;  // Poisson arrivals; 0: a closed loop, which sends the next when one ends
  LengthMix input;
  LengthMix output;
  uint32_t num_prefixes = 0;   // shared prefixes in use; 0: none
  double shared_fraction = 0;  // of a prompt's tokens come from its prefix, which is drawn uniformly
  uint64_t seed = 1;
};

// The requests of a synthetic workload, in the order of their times; a pure function of the options.
std::vector<PlannedRequest> PlanWorkload(const WorkloadOptions& options);

// Token ids of a prompt, all in [first_id, first_id + num_ids).
std::vector<uint32_t> PromptTokenIds(const std::vector<PromptPart>& prompt, uint32_t first_id, uint32_t num_ids);

}  // namespace winnow
