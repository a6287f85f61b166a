#include "inference_rank/sequence/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "model/philox.h"

namespace winnow {
namespace {

v1::SamplingParams Params(float temperature) {
  v1::SamplingParams params;
  params.set_temperature(temperature);
  params.set_seed(42);
  return params;
}

uint32_t SampleOnce(Sampler& sampler, std::vector<float> logits, uint32_t index) {
  return sampler.Sample(logits, index);
}

// Known answers of the reference implementation (Random123, kat_vectors, philox4x32 10).
TEST(PhiloxTest, MatchesTheReferenceVectors) {
  EXPECT_EQ(Philox4x32(0, {0, 0, 0, 0}), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SamplerTest, TemperatureZeroTakesTheLargestAndTheLowerOnATie) {
  Sampler sampler(Params(0), {});
  EXPECT_EQ(SampleOnce(sampler, {0, 3, 3, 1}, 0), 1u);
  std::vector<float> many(1000, -5);
  many[617] = many[993] = 2;
  EXPECT_EQ(SampleOnce(sampler, many, 1), 617u);
}

TEST(SamplerTest, DrawsFollowTheSoftmax) {
  Sampler sampler(Params(1), {});
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f};
  double total = 0;
  for (float l : logits) total += std::exp(l);
  const int draws = 20000;
  std::map<uint32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[SampleOnce(sampler, logits, i)];
  for (uint32_t id = 0; id < logits.size(); ++id) {
    const double p = std::exp(logits[id]) / total;
    EXPECT_NEAR(counts[id] / double{draws}, p, 5 * std::sqrt(p * (1 - p) / draws));
  }
}

TEST(SamplerTest, ADrawDependsOnSeedSampleAndIndexOnly) {
  const std::vector<float> logits = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f};
  Sampler a(Params(1), {}), b(Params(1), {});
  for (uint32_t i = 0; i < 10; ++i) SampleOnce(b, logits, i + 100);
  int differs = 0;
  for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(SampleOnce(a, logits, i), SampleOnce(b, logits, i));
  v1::SamplingParams other = Params(1);
  other.set_sample_index(1);
  Sampler c(other, {});
  for (uint32_t i = 0; i < 50; ++i) differs += SampleOnce(a, logits, i) != SampleOnce(c, logits, i);
  EXPECT_GT(differs, 10);
}

TEST(SamplerTest, FiltersKeepWhatTheyShould) {
  const std::vector<float> logits = {4.0f, 3.0f, 2.0f, 1.0f, 0.0f};  // p = .636 .234 .086 .032 .012
  struct Case {
    const char* name;
    std::function<void(v1::SamplingParams&)> set;
    uint32_t largest_id;
  };
  const std::vector<Case> cases = {
      {"top_k 2", [](auto& p) { p.set_top_k(2); }, 1},
      {"top_p 0.6", [](auto& p) { p.set_top_p(0.6f); }, 0},
      {"top_p 0.9", [](auto& p) { p.set_top_p(0.9f); }, 2},
      {"min_p 0.2", [](auto& p) { p.set_min_p(0.2f); }, 1},
      {"top_k 4 and top_p 0.9", [](auto& p) { p.set_top_k(4), p.set_top_p(0.9f); }, 2},
      {"off", [](auto&) {}, 4},
  };
  for (const Case& c : cases) {
    v1::SamplingParams params = Params(1);
    c.set(params);
    Sampler sampler(params, {});
    uint32_t largest = 0;
    for (uint32_t i = 0; i < 3000; ++i) largest = std::max(largest, SampleOnce(sampler, logits, i));
    EXPECT_EQ(largest, c.largest_id) << c.name;
  }
}

// By sorting everything, in long double.
uint32_t DrawBySorting(const v1::SamplingParams& params, const std::vector<float>& logits, uint32_t token_index) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return logits[a] / params.temperature() > logits[b] / params.temperature();
  });
  if (params.top_k() > 0) order.resize(std::min<size_t>(params.top_k(), order.size()));
  const auto weight = [&](uint32_t id) {
    return std::exp(static_cast<long double>(logits[id] / params.temperature()) -
                    logits[order[0]] / params.temperature());
  };
  const auto total = [&] {
    return std::accumulate(order.begin(), order.end(), 0.0L,
                           [&](long double sum, uint32_t id) { return sum + weight(id); });
  };
  long double mass = 0, all = total();
  for (size_t i = 0; i < order.size(); ++i) {
    mass += weight(order[i]);
    if (params.top_p() < 1 && mass >= params.top_p() * all) order.resize(i + 1);
  }
  while (order.size() > 1 && weight(order.back()) < params.min_p()) order.pop_back();
  long double left = PhiloxUniform(params.seed(), 0, token_index) * total();
  for (const uint32_t id : order) {
    left -= weight(id);
    if (left < 0) return id;
  }
  return order.back();
}

TEST(SamplerTest, DrawsWhatSortingEverythingWouldGive) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 400; ++trial) {
    std::normal_distribution<float> normal(0, std::array{0.2f, 3.0f, 12.0f}[trial % 3]);
    std::vector<float> logits(std::array{3, 500, 4000}[trial / 3 % 3]);
    for (float& logit : logits) logit = std::round(normal(random) * 64) / 64;  // with ties
    v1::SamplingParams params;
    params.set_temperature(std::array{0.3f, 1.0f, 1.7f}[random() % 3]);
    params.set_top_p(std::array{1.0f, 0.9f, 0.3f}[random() % 3]);
    params.set_top_k(std::array{0u, 40u, 1u}[random() % 3]);
    params.set_min_p(std::array{0.0f, 0.1f}[random() % 2]);
    params.set_seed(random());
    std::vector<float> scratch = logits;
    EXPECT_EQ(Sampler(params, {}).Sample(scratch, trial), DrawBySorting(params, logits, trial)) << trial;
  }
}

TEST(SamplerTest, WhatIsImpossibleIsNeverDrawn) {
  v1::SamplingParams params;
  params.set_temperature(1);
  std::vector<float> logits(1000, -std::numeric_limits<float>::infinity());
  logits[700] = -3;
  for (uint32_t i = 0; i < 20; ++i) {
    std::vector<float> scratch = logits;
    EXPECT_EQ(Sampler(params, {}).Sample(scratch, i), 700u);
  }
}

TEST(SamplerTest, PenaltiesCountPromptAndGeneratedTokensAsDocumented) {
  v1::SamplingParams params = Params(0);
  params.set_repetition_penalty(2);
  const std::vector<uint32_t> prompt = {1};
  Sampler repetition(params, prompt);
  EXPECT_EQ(SampleOnce(repetition, {1.4f, 2.0f, -1}, 0), 0u);    // 2.0 / 2 < 1.4
  EXPECT_EQ(SampleOnce(repetition, {-1.5f, -1.0f, -9}, 0), 0u);  // -1.0 * 2 < -1.5

  v1::SamplingParams presence = Params(0);
  presence.set_presence_penalty(1);
  presence.set_frequency_penalty(0.5f);
  Sampler sampler(presence, prompt);
  EXPECT_EQ(SampleOnce(sampler, {0, 1.2f}, 0), 1u);  // a prompt token is not penalised
  sampler.Observe(1);
  EXPECT_EQ(SampleOnce(sampler, {0, 1.2f}, 1), 0u);  // 1.2 - 1 - 0.5
  EXPECT_EQ(SampleOnce(sampler, {0, 1.6f}, 1), 1u);
  sampler.Observe(1);
  EXPECT_EQ(SampleOnce(sampler, {0, 1.6f}, 2), 0u);  // 1.6 - 1 - 1.0
}

TEST(SamplerTest, LogitBiasMovesTheChoice) {
  v1::SamplingParams params = Params(0);
  v1::LogitBias* bias = params.add_logit_bias();
  bias->set_token_id(2);
  bias->set_bias(10);
  Sampler sampler(params, {});
  EXPECT_EQ(SampleOnce(sampler, {5, 4, 0, 0}, 0), 2u);
}

TEST(LogprobsTest, AreTheLogSoftmaxOfTheRawLogits) {
  const std::vector<float> logits = {1, 2, 3, 4};
  v1::Token token;
  token.set_id(1);
  FillLogprobs(logits, 2, &token);
  double sum = 0;
  for (float l : logits) sum += std::exp(l);
  EXPECT_NEAR(token.logprob(), 2 - std::log(sum), 1e-6);
  ASSERT_EQ(token.top_logprobs_size(), 2);
  EXPECT_EQ(token.top_logprobs(0).id(), 3u);
  EXPECT_NEAR(token.top_logprobs(0).logprob(), 4 - std::log(sum), 1e-6);
  EXPECT_EQ(token.top_logprobs(1).id(), 2u);
}

}  // namespace
}  // namespace winnow
