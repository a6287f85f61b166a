#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/token_draw.h"
#include "winnow/v1/rank.pb.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow {

// Draws the tokens of one sequence from its logits. The order of operations: repetition, presence and frequency
// penalties, logit bias, temperature, top_k, top_p, min_p, draw. Temperature 0 takes the largest logit (the lower id on
// a tie). A draw is a pure function of (logits, token history, parameters, seed, sample index, token index).
class Sampler {
 public:
  Sampler(const v1::SamplingParams& params, std::span<const uint32_t> prompt_token_ids);

  // Counts a token into the history that penalties look at. `generated` tokens also count for presence and frequency.
  void Observe(uint32_t token_id);

  // What a device needs to choose the token with that index instead; nullopt when the logits are to be changed first.
  std::optional<TokenDraw> DrawOf(uint32_t token_index) const;

  // The token with index `token_index` among the generated ones. `logits` is scratch: overwritten.
  uint32_t Sample(std::span<float> logits, uint32_t token_index);

 private:
  struct Count {
    bool in_prompt = false;
    uint32_t generated = 0;
  };
  struct Candidate {
    float logit;  // at the temperature
    uint32_t id;
    uint64_t mass;  // e^(logit - largest) in units of 2^-44, so that sums do not depend on their order
  };
  // What lies so far below the largest logit has no mass.
  static constexpr float kMostBelow = 32;
  static bool IsMoreLikely(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }
  // Moves the shortest run of the most likely of the first `count` candidates whose masses reach `target` to the front,
  // the least likely of them last. Returns how many they are.
  size_t Reach(size_t count, uint64_t target);
  uint64_t MassOf(size_t count) const;
  void ApplyPenalties(std::span<float> logits) const;
  uint32_t Draw(std::span<const float> logits, uint32_t token_index);

  float temperature_;
  float top_p_;
  uint32_t top_k_;
  float min_p_;
  float presence_penalty_;
  float frequency_penalty_;
  float repetition_penalty_;
  uint64_t seed_;
  uint32_t sample_index_;
  bool has_penalties_;
  std::vector<std::pair<uint32_t, float>> logit_bias_;
  std::unordered_map<uint32_t, Count> counts_;
  // Of a draw:
  float largest_ = 0;  // logit at the temperature
  std::vector<Candidate> candidates_;
};

// Fills a token's log probability and those of the `top` most likely tokens, from the raw logits (before penalties and
// filters).
void FillLogprobs(std::span<const float> logits, uint32_t top, v1::Token* token);

// Index of the largest value, the lower one on a tie.
uint32_t ArgMax(std::span<const float> values);

}  // namespace winnow
