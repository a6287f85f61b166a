#include "tools/simulation/cluster/workload.h"

#include <random>

#include "inference_rank/sequence/sampler.h"
#include "tools/simulation/cluster/toy_model.h"

namespace winnow::simulation {
namespace {

SelectionSpec SpecOf(uint32_t kind) {
  SelectionSpec spec;
  spec.sink_tokens = 4;
  spec.recent_tokens = 32;
  switch (kind % 4) {
    case 0:
      spec.predictor = Predictor::kDense;
      spec.budget_tokens = kUnlimitedBudget;
      break;
    case 1:
      spec.predictor = Predictor::kExact;
      spec.budget_tokens = 24;
      break;
    case 2:
      spec.predictor = Predictor::kDepth;
      spec.lookahead = 1;
      spec.budget_tokens = 16;
      break;
    case 3:
      spec.predictor = Predictor::kDense;
      spec.budget_tokens = kUnlimitedBudget;
      break;
  }
  return spec;
}

std::vector<Request> MakeRequests() {
  std::mt19937 random(7);
  constexpr uint32_t kFamilies = 3, kRequests = 24;
  std::vector<std::vector<uint32_t>> families(kFamilies);
  for (auto& family : families) {
    for (int i = 0; i < 160; ++i) family.push_back(random() % ToyModel::kVocab);
  }
  std::vector<Request> requests(kRequests);
  for (uint32_t i = 0; i < kRequests; ++i) {
    Request& request = requests[i];
    const auto& family = families[i % kFamilies];
    const uint32_t shared = i % 5 == 0 ? 0 : 20 + random() % 140, own = 1 + random() % 120;
    request.prompt.assign(family.begin(), family.begin() + shared);
    for (uint32_t k = 0; k < own; ++k) request.prompt.push_back(random() % ToyModel::kVocab);
    if (i == 7) request.prompt.resize(1);
    request.tenant = i % 4 == 3 ? "other" : "";
    request.n = i % 3 == 2 ? 4 : 1;
    const bool sampled = i % 2 == 1 || request.n > 1;
    request.sampling.set_temperature(sampled ? 1.0f : 0.0f);
    request.sampling.set_seed(1000 + i);
    if (i % 8 == 5) request.sampling.set_repetition_penalty(1.3f);
    request.stopping.set_max_tokens(4 + random() % 60);
    request.stopping.set_ignore_eos(true);
    request.selection = SpecOf(i);
  }
  return requests;
}

}  // namespace

const std::vector<Request>& AllRequests() {
  static const std::vector<Request>* const requests = new std::vector<Request>(MakeRequests());
  return *requests;
}

std::vector<uint32_t> DenseAnswer(const Request& request, uint32_t sample) {
  v1::SamplingParams sampling = request.sampling;
  sampling.set_sample_index(sample);
  Sampler sampler(sampling, request.prompt);
  std::vector<uint32_t> tokens = request.prompt;
  for (uint32_t index = 0; index < request.stopping.max_tokens(); ++index) {
    std::vector<float> logits = ToyModel::DenseLogits(tokens);
    tokens.push_back(sampler.Sample(logits, index));
    sampler.Observe(tokens.back());
  }
  return {tokens.begin() + static_cast<ptrdiff_t>(request.prompt.size()), tokens.end()};
}

}  // namespace winnow::simulation
