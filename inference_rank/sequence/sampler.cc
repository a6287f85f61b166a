#include "inference_rank/sequence/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

uint32_t Sampler::Draw(std::span<const float> logits, uint32_t token_index) {
  // What a filter has made impossible is no candidate, whatever rounding leaves of the draw.
  candidates_.clear();
  for (uint32_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > -std::numeric_limits<float>::infinity()) candidates_.push_back({logits[id] / temperature_, id});
  }
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  size_t kept = candidates_.size();
  if (top_k_ > 0 && top_k_ < kept) {
    std::nth_element(candidates_.begin(), candidates_.begin() + top_k_ - 1, candidates_.end(), more_likely);
    kept = top_k_;
  }
  std::sort(candidates_.begin(), candidates_.begin() + kept, more_likely);

  const double largest = candidates_[0].logit;
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += std::exp(candidates_[i].logit - largest);
  if (top_p_ < 1) {
    double mass = 0;
    size_t i = 0;
    while (i < kept && mass < top_p_ * total) mass += std::exp(candidates_[i++].logit - largest);
    kept = std::max<size_t>(i, 1);
  }
  if (min_p_ > 0) {
    size_t i = 1;
    while (i < kept && std::exp(candidates_[i].logit - largest) >= min_p_) ++i;
    kept = i;
  }
  total = 0;
  for (size_t i = 0; i < kept; ++i) total += std::exp(candidates_[i].logit - largest);
  double left = PhiloxUniform(seed_, sample_index_, token_index) * total;
  for (size_t i = 0; i < kept; ++i) {
    left -= std::exp(candidates_[i].logit - largest);
    if (left < 0) return candidates_[i].id;
  }
  return candidates_[kept - 1].id;
}

void FillLogprobs(std::span<const float> logits, uint32_t top, v1::Token* token) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  token->set_logprob(static_cast<float>(logits[token->id()] - log_sum));
  if (top == 0) return;
  std::vector<uint32_t> order(logits.size());
  for (uint32_t id = 0; id < order.size(); ++id) order[id] = id;
  const size_t count = std::min<size_t>(top, order.size());
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (size_t i = 0; i < count; ++i) {
    v1::TokenLogprob* entry = token->add_top_logprobs();
    entry->set_id(order[i]);
    entry->set_logprob(static_cast<float>(logits[order[i]] - log_sum));
  }
}

}  // namespace winnow
