#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/selection/selection_spec.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow::simulation {

// A request of `n` samples.
struct Request {
  std::vector<uint32_t> prompt;
  v1::SamplingParams sampling;  // of the first sample
  v1::StoppingParams stopping;
  SelectionSpec selection;
  std::string tenant;
  uint32_t n = 1;
};

// Token ids, by request and sample.
using Answers = std::vector<std::vector<std::vector<uint32_t>>>;

// The requests that all seeds draw from: greedy and sampled, dense and sparse, of one sample and of several, with
// prompts that begin alike.
const std::vector<Request>& AllRequests();

// The answer to one sample of a request that attends to everything, computed from the model's formulas alone.
std::vector<uint32_t> DenseAnswer(const Request& request, uint32_t sample);

}  // namespace winnow::simulation
