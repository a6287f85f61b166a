#include "router/generation/request_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace winnow {
namespace {

using ::testing::StartsWith;

ServedModel Model() {
  ServedModel model;
  model.id = "demo";
  model.max_context_tokens = 100;
  model.vocab_size = 50;
  model.max_budget_tokens = 4096;
  return model;
}

GenerationInput Input() {
  GenerationInput input;
  input.prompt_token_ids = {1, 2, 3};
  input.max_tokens = 10;
  return input;
}

TEST(RequestChecksTest, AnOrdinaryRequestPasses) {
  GenerationInput input = Input();
  input.sampling.set_temperature(0);
  input.sampling.set_top_p(1);
  input.sampling.set_top_k(1000);
  input.sampling.set_min_p(0);
  input.sampling.set_presence_penalty(-2);
  input.sampling.set_repetition_penalty(1.1f);
  input.stop = {"\n\n"};
  input.stop_token_ids = {49};
  input.top_logprobs = 20;
  EXPECT_TRUE(CheckGenerationInput(input, Model()).ok());
}

TEST(RequestChecksTest, EachErrorNamesItsField) {
  using Change = std::function<void(GenerationInput&)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"request_id", [](auto& i) { i.request_id.assign(129, 'x'); }},
      {"prompt", [](auto& i) { i.prompt_token_ids.clear(); }},
      {"prompt", [](auto& i) { i.prompt_token_ids.assign(100, 1); }},
      {"prompt", [](auto& i) { i.prompt_token_ids[1] = 50; }},
      {"max_tokens", [](auto& i) { i.max_tokens = 0; }},
      {"n", [](auto& i) { i.n = 0; }},
      {"n", [](auto& i) { i.n = RequestLimits::kSamples + 1; }},
      {"temperature", [](auto& i) { i.sampling.set_temperature(-0.1f); }},
      {"temperature", [](auto& i) { i.sampling.set_temperature(2.1f); }},
      {"temperature", [](auto& i) { i.sampling.set_temperature(NAN); }},
      {"top_p", [](auto& i) { i.sampling.set_top_p(0); }},
      {"top_p", [](auto& i) { i.sampling.set_top_p(NAN); }},
      {"min_p", [](auto& i) { i.sampling.set_min_p(1.5f); }},
      {"presence_penalty", [](auto& i) { i.sampling.set_presence_penalty(2.5f); }},
      {"frequency_penalty", [](auto& i) { i.sampling.set_frequency_penalty(-2.5f); }},
      {"repetition_penalty", [](auto& i) { i.sampling.set_repetition_penalty(0); }},
      {"logit_bias", [](auto& i) { i.sampling.add_logit_bias()->set_token_id(50); }},
      {"logit_bias", [](auto& i) { i.sampling.add_logit_bias()->set_bias(101); }},
      {"stop", [](auto& i) { i.stop = {""}; }},
      {"stop", [](auto& i) { i.stop.assign(RequestLimits::kStopStrings + 1, "x"); }},
      {"stop_token_ids", [](auto& i) { i.stop_token_ids = {50}; }},
      {"top_logprobs", [](auto& i) { i.top_logprobs = 21; }},
      {"trace_parts", [](auto& i) { i.trace_parts = 7; }},
      {"trace_parts", [](auto& i) { i.trace_parts = 513; }},
  };
  for (const auto& [field, change] : cases) {
    GenerationInput input = Input();
    change(input);
    const absl::Status status = CheckGenerationInput(input, Model());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), StartsWith(field + ": "));
  }
}

// It could wait for ever: being refused as by a full queue would invite it to try again.
TEST(RequestChecksTest, MoreSamplesThanTheQueueHoldsAreWrong) {
  ServedModel model = Model();
  model.max_queue = 4;
  GenerationInput input = Input();
  input.n = 4;
  EXPECT_TRUE(CheckGenerationInput(input, model).ok());
  input.n = 5;
  const absl::Status status = CheckGenerationInput(input, model);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "n: is 5, but this server has room for 4 samples of all requests together (--max-queue)");
}

TEST(RequestChecksTest, MaxTokensIsWhatIsLeftOfTheContext) {
  EXPECT_EQ(*LimitMaxTokens(std::nullopt, 40, {}, Model()), 60u);
  EXPECT_EQ(*LimitMaxTokens(7, 40, {}, Model()), 7u);
  EXPECT_EQ(*LimitMaxTokens(60, 40, {}, Model()), 60u);
  EXPECT_THAT(std::string(LimitMaxTokens(61, 40, {}, Model()).status().message()), StartsWith("max_tokens: "));
  EXPECT_EQ(*LimitMaxTokens(std::nullopt, 99, {}, Model()), 1u);
  EXPECT_FALSE(LimitMaxTokens(5, 100, {}, Model()).ok());
  ServedModel small = Model();
  small.max_stored_positions = 64;
  EXPECT_EQ(*LimitMaxTokens(std::nullopt, 40, {}, small), 24u);
  EXPECT_EQ(*LimitMaxTokens(60, 40, {}, small), 60u) << "who asks for more hears from the cache rank";
}

TEST(RequestChecksTest, ModelNames) {
  EXPECT_TRUE(CheckModelName(std::nullopt, Model()).ok());
  EXPECT_TRUE(CheckModelName("demo", Model()).ok());
  EXPECT_EQ(CheckModelName("gpt", Model()).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace winnow
