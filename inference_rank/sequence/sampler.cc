#include "inference_rank/sequence/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "model/philox.h"

namespace winnow {

uint32_t ArgMax(std::span<const float> values) {
  // Eight running maxima, so that the compiler can keep them in one vector; then the lowest index of the largest.
  constexpr size_t kLanes = 16;
  float best[kLanes];
  std::fill(best, best + kLanes, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) best[lane] = std::max(best[lane], values[i + lane]);
  }
  float largest = *std::max_element(best, best + kLanes);
  for (; i < values.size(); ++i) largest = std::max(largest, values[i]);
  const auto found = std::find(values.begin(), values.end(), largest);
  return found == values.end() ? 0 : static_cast<uint32_t>(found - values.begin());
}

Sampler::Sampler(const v1::SamplingParams& params, std::span<const uint32_t> prompt_token_ids)
    : temperature_(params.has_temperature() ? params.temperature() : 1.0f),
      top_p_(params.has_top_p() ? params.top_p() : 1.0f),
      top_k_(params.top_k()),
      min_p_(params.min_p()),
      presence_penalty_(params.presence_penalty()),
      frequency_penalty_(params.frequency_penalty()),
      repetition_penalty_(params.has_repetition_penalty() ? params.repetition_penalty() : 1.0f),
      seed_(params.seed()),
      sample_index_(params.sample_index()),
      has_penalties_(presence_penalty_ != 0 || frequency_penalty_ != 0 || repetition_penalty_ != 1) {
  for (const v1::LogitBias& bias : params.logit_bias()) logit_bias_.emplace_back(bias.token_id(), bias.bias());
  if (has_penalties_) {
    for (uint32_t id : prompt_token_ids) counts_[id].in_prompt = true;
  }
}

void Sampler::Observe(uint32_t token_id) {
  if (has_penalties_) ++counts_[token_id].generated;
}

void Sampler::ApplyPenalties(std::span<float> logits) const {
  for (const auto& [id, count] : counts_) {
    if (id >= logits.size()) continue;
    float& logit = logits[id];
    logit = logit > 0 ? logit / repetition_penalty_ : logit * repetition_penalty_;
    if (count.generated > 0) logit -= presence_penalty_ + frequency_penalty_ * static_cast<float>(count.generated);
  }
}

std::optional<TokenDraw> Sampler::DrawOf(uint32_t token_index) const {
  if (has_penalties_ || !logit_bias_.empty()) return std::nullopt;
  return TokenDraw{.temperature = temperature_,
                   .top_p = top_p_,
                   .top_k = top_k_,
                   .min_p = min_p_,
                   .seed = seed_,
                   .sample_index = sample_index_,
                   .token_index = token_index};
}

uint32_t Sampler::Sample(std::span<float> logits, uint32_t token_index) {
  if (has_penalties_) ApplyPenalties(logits);
  for (const auto& [id, bias] : logit_bias_) {
    if (id < logits.size()) logits[id] += bias;
  }
  return temperature_ <= 0 ? ArgMax(logits) : Draw(logits, token_index);
}

uint64_t Sampler::MassOf(size_t count) const {
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i) total += candidates_[i].mass;
  return total;
}

// Masses by their distance from the largest logit say in which of 256 bins the last of them lies. Halving what may hold
// it there takes a few passes over few candidates, where sorting them all took most of a token's time.
size_t Sampler::Reach(size_t count, uint64_t target) {
  constexpr size_t kBins = 256;
  const auto bin_of = [this](const Candidate& candidate) {
    return static_cast<size_t>((largest_ - candidate.logit) * (kBins / kMostBelow));
  };
  std::array<uint64_t, kBins + 1> bins = {};
  for (size_t i = 0; i < count; ++i) bins[bin_of(candidates_[i])] += candidates_[i].mass;
  size_t bin = 0;
  uint64_t before = 0;
  while (bin < kBins && before + bins[bin] < target) before += bins[bin++];
  const auto first = candidates_.begin();
  const auto last = std::partition(first, first + count, [&](const Candidate& c) { return bin_of(c) <= bin; });
  size_t begin = std::partition(first, last, [&](const Candidate& c) { return bin_of(c) < bin; }) - first;
  size_t end = last - first;
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(candidates_.begin() + begin, candidates_.begin() + middle, candidates_.begin() + end,
                     IsMoreLikely);
    uint64_t mass = before;
    for (size_t i = begin; i < middle; ++i) mass += candidates_[i].mass;
    if (mass >= target) {
      end = middle;
    } else {
      begin = middle;
      before = mass;
    }
  }
  return begin + 1;
}

uint32_t Sampler::Draw(std::span<const float> logits, uint32_t token_index) {
  constexpr double kUnit = 0x1p44;
  const uint32_t most_likely = ArgMax(logits);
  largest_ = logits[most_likely] / temperature_;
  candidates_.clear();
  for (uint32_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id] / temperature_;
    // What is farther below would have no mass, nor has what a filter has made impossible.
    if (largest_ - logit < kMostBelow) candidates_.push_back({.logit = logit, .id = id, .mass = 0});
  }
  if (candidates_.empty()) return most_likely;  // no logit is finite
  for (Candidate& candidate : candidates_) {
    const double distance = static_cast<double>(candidate.logit) - largest_;
    candidate.mass = static_cast<uint64_t>(std::exp(distance) * kUnit + 0.5);
  }
  size_t kept = candidates_.size();
  if (top_k_ > 0 && top_k_ < kept) {
    std::nth_element(candidates_.begin(), candidates_.begin() + top_k_ - 1, candidates_.end(), IsMoreLikely);
    kept = top_k_;
  }
  if (top_p_ < 1) {
    const uint64_t total = MassOf(kept);
    const double target = std::ceil(static_cast<double>(top_p_) * static_cast<double>(total));
    kept = Reach(kept, std::clamp<uint64_t>(static_cast<uint64_t>(target), 1, total));
  }
  if (min_p_ > 0) {
    const double least = min_p_ * kUnit;
    const auto is_kept = [least](const Candidate& candidate) { return static_cast<double>(candidate.mass) >= least; };
    const auto end = std::partition(candidates_.begin(), candidates_.begin() + kept, is_kept);
    kept = std::max<size_t>(end - candidates_.begin(), 1);
  }
  const uint64_t total = MassOf(kept);
  const double uniform = PhiloxUniform(seed_, sample_index_, token_index);
  const auto target = static_cast<uint64_t>(uniform * static_cast<double>(total)) + 1;
  return candidates_[Reach(kept, std::min(target, total)) - 1].id;
}

namespace {

// The ids of the `count` largest, in descending order, the lower one first on a tie.
std::vector<uint32_t> LargestIds(std::span<const float> values, size_t count) {
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < values.size(); ++id) {
    if (ids.size() == count && !(values[id] > values[ids.back()])) continue;
    if (ids.size() == count) ids.pop_back();
    ids.insert(
        std::upper_bound(ids.begin(), ids.end(), id, [&](uint32_t a, uint32_t b) { return values[a] > values[b]; }),
        id);
  }
  return ids;
}

}  // namespace

void FillLogprobs(std::span<const float> logits, uint32_t top, v1::Token* token) {
  const double largest = logits[ArgMax(logits)];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  token->set_logprob(static_cast<float>(logits[token->id()] - log_sum));
  if (top == 0) return;
  for (const uint32_t id : LargestIds(logits, std::min<size_t>(top, logits.size()))) {
    v1::TokenLogprob* entry = token->add_top_logprobs();
    entry->set_id(id);
    entry->set_logprob(static_cast<float>(logits[id] - log_sum));
  }
}

}  // namespace winnow
