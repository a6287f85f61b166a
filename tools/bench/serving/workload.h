#pragma once
#include <cstdint>
#include <vector>

namespace winnow::serving {

// One request of a virtual client.
struct VirtualRequest {
  double arrival_us = 0;
  uint32_t history_tokens = 0;  // of the prompt, that were computed for an earlier turn: their KV is in host memory
  uint32_t new_tokens = 0;
  uint32_t answer_tokens = 0;

  uint32_t prompt_tokens() const { return history_tokens + new_tokens; }
};

// Lengths are log-normal, cut to their ranges.
struct Lengths {
  double median = 0;
  double sigma = 0;  // of the logarithm
  uint32_t least = 1;
  uint32_t most = 1;
};

struct WorkloadShape {
  Lengths history, fresh, answer;
};

// Further turns of long conversations: all but the last message was computed before.
WorkloadShape LongConversations();
// Prompts of which nothing was computed before, with short answers, as in LongBench.
WorkloadShape LongDocuments();

// Poisson arrivals at `requests_per_s` until `end_us`. The same seed gives the same requests at every rate, closer
// together.
std::vector<VirtualRequest> PoissonRequests(const WorkloadShape& shape, double requests_per_s, double end_us,
                                            uint64_t seed);

}  // namespace winnow::serving
