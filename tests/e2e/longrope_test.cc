// LongRoPE, by how long a context can get: that is a property of the cluster, since rows that were rotated stay as they
// are.
#include <gtest/gtest.h>

#include "tests/e2e/cluster.h"
#include "tests/e2e/completion.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::e2e {
namespace {

constexpr int kOriginal = 512, kExtended = 2048;

// With both lists of divisors, or with one of them in the place of both.
TinyModel Phi3(const std::vector<double>& shorts, const std::vector<double>& longs) {
  return {.family = ModelFamily::kPhi3,
          .max_position_embeddings = kExtended,
          .rope_parameters = {{"rope_type", "longrope"},
                              {"rope_theta", 10000.0},
                              {"short_factor", shorts},
                              {"long_factor", longs},
                              {"original_max_position_embeddings", kOriginal}}};
}
const std::vector<double> kShort = {1, 1, 1.1, 1.2, 1.4, 1.6, 1.8, 2}, kLong = {1, 1.5, 3, 8, 20, 40, 55, 64};

Completion Ask(const TinyModel& model, size_t prompt_tokens, std::vector<std::string> flags) {
  const TempDir directory;
  WriteTinyCheckpoint(model, directory.path());
  flags.insert(flags.end(), {"--compute=f32", "--kv-dtype=f32", "--selection=winnow", "--budget=64"});
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start({.model = directory.path(), .flags = flags});
  EXPECT_TRUE(cluster.ok()) << cluster.status().message();
  if (!cluster.ok()) return {};
  TokenIds prompt;
  for (uint32_t i = 0; i < prompt_tokens; ++i) prompt.push_back((i * i * 7 + i / 3) % 96);
  Json request = GreedyRequest(prompt, 40);
  request["logprobs"] = 1;
  Completion completion = Complete((*cluster)->http(), request);
  EXPECT_TRUE(completion.ok()) << completion.error;
  EXPECT_TRUE((*cluster)->Stop().ok());
  return completion;
}
Json LogProbs(const Completion& completion) {
  return completion.choice.at("logprobs").at("token_logprobs");
}

TEST(LongRope, TheShortDivisorsHoldWhereNoContextExceedsTheOriginalOne) {
  const std::string short_contexts = "--max-context=" + std::to_string(kOriginal);
  const Completion shorts = Ask(Phi3(kShort, kLong), 300, {short_contexts});
  EXPECT_EQ(LogProbs(shorts), LogProbs(Ask(Phi3(kShort, kShort), 300, {short_contexts})));
  EXPECT_NE(LogProbs(shorts), LogProbs(Ask(Phi3(kLong, kLong), 300, {short_contexts})));
}

TEST(LongRope, TheLongDivisorsHoldForAllWhereOneMay) {
  for (const size_t prompt_tokens : {300, 490, 1200}) {  // the second grows beyond the original context
    SCOPED_TRACE(prompt_tokens);
    const Completion longs = Ask(Phi3(kShort, kLong), prompt_tokens, {});
    EXPECT_EQ(LogProbs(longs), LogProbs(Ask(Phi3(kLong, kLong), prompt_tokens, {})));
    EXPECT_NE(LogProbs(longs), LogProbs(Ask(Phi3(kShort, kShort), prompt_tokens, {})));
  }
}

}  // namespace
}  // namespace winnow::e2e
