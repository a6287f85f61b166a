#include "tools/bench/serving/workload.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

namespace winnow::serving {
namespace {

// By formula, because the standard's distributions may differ between libraries.
double Uniform(std::mt19937_64& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

uint32_t Draw(const Lengths& lengths, std::mt19937_64& random) {
  const double normal = std::sqrt(-2 * std::log(Uniform(random))) * std::cos(2 * std::numbers::pi * Uniform(random));
  const double length = lengths.median * std::exp(lengths.sigma * normal);
  return static_cast<uint32_t>(std::clamp<double>(length, lengths.least, lengths.most));
}

}  // namespace

WorkloadShape LongConversations() {
  return {.history = {.median = 40'000, .sigma = 0.6, .least = 4'096, .most = 120'000},
          .fresh = {.median = 500, .sigma = 0.8, .least = 32, .most = 4'096},
          .answer = {.median = 600, .sigma = 0.6, .least = 64, .most = 4'096}};
}

WorkloadShape LongDocuments() {
  return {.history = {.median = 0, .sigma = 0, .least = 0, .most = 0},
          .fresh = {.median = 24'000, .sigma = 0.7, .least = 2'048, .most = 120'000},
          .answer = {.median = 300, .sigma = 0.6, .least = 32, .most = 2'048}};
}

std::vector<VirtualRequest> PoissonRequests(const WorkloadShape& shape, double requests_per_s, double end_us,
                                            uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<VirtualRequest> requests;
  double now_us = 0;
  while (true) {
    now_us -= std::log(Uniform(random)) / requests_per_s * 1e6;
    if (now_us >= end_us) return requests;
    VirtualRequest request{.arrival_us = now_us};
    request.history_tokens = shape.history.most == 0 ? 0 : Draw(shape.history, random);
    request.new_tokens = Draw(shape.fresh, random);
    request.answer_tokens = Draw(shape.answer, random);
    requests.push_back(request);
  }
}

}  // namespace winnow::serving
