// Prompts that are computed layer by layer get the answers of those that are computed chunk by chunk, in less memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

constexpr int kTokens = 30;
// Of the demo model.
constexpr double kLayerTokenBytes = 2 * 2 * 64 * 2, kResidualBytes = 4 * 256;

std::vector<std::string> Flags(std::vector<std::string> more) {
  more.insert(more.end(), {"--budget=256", "--max-context=8192", "--threads=1"});
  return more;
}
struct Chunked {
  static Cluster::Options Options() { return {.flags = Flags({"--prefill=chunked"})}; }
};
struct Layered {
  static Cluster::Options Options() { return {.flags = Flags({"--prefill=layered", "--prefill-chunk=192"})}; }
};

Json RequestFor(const std::string& preset, size_t prompt_tokens, size_t offset = 0) {
  Json request = GreedyRequest(DemoText(prompt_tokens, offset), kTokens);
  request["winnow"] = {{"selection", preset}};
  return request;
}

class LayeredPrefill : public SharedCluster<Layered>, public testing::WithParamInterface<const char*> {
 protected:
  static double Computed() { return cluster_->MetricsOf("inference-0").Value("winnow_rank_prompt_tokens_total"); }
  static Completion Expected(const Json& request) {
    static std::unique_ptr<Cluster> chunked = Cluster::Start(Chunked::Options()).value();
    return Complete(chunked->http(), request);
  }
};

TEST_P(LayeredPrefill, AnswersAreThoseOfChunks) {
  for (const size_t prompt_tokens : {1ul, 2ul, 193ul, 2222ul, 7000ul}) {
    const Json request = RequestFor(GetParam(), prompt_tokens);
    const Completion expected = Expected(request);
    ASSERT_TRUE(expected.ok()) << expected.error;
    // The second time most of the prompt is in the prefix cache and comes layer by layer.
    for (int repeat = 0; repeat < 2; ++repeat) {
      const double computed = Computed();
      const Completion completion = Complete(cluster_->http(), request);
      ASSERT_TRUE(completion.ok()) << completion.error;
      EXPECT_EQ(completion.ids, expected.ids) << prompt_tokens << " tokens";
      EXPECT_EQ(completion.Stat("streamed_rows"), expected.Stat("streamed_rows"));
      const auto cached = completion.usage.at("prompt_tokens_details").at("cached_tokens").get<size_t>();
      EXPECT_EQ(Computed() - computed, static_cast<double>(prompt_tokens - cached));
      if (repeat == 1) {
        EXPECT_GE(cached + 128, prompt_tokens);
      }
    }
  }
  const Metrics metrics = cluster_->MetricsOf("inference-0");
  EXPECT_EQ(metrics.Value("winnow_prefill_kv_bytes"), 0);
  EXPECT_EQ(metrics.Value("winnow_layered_kv_peak_bytes"), 7000 * kLayerTokenBytes);
  EXPECT_EQ(metrics.Value("winnow_layered_residual_peak_bytes"), 7000 * kResidualBytes);
}

TEST_P(LayeredPrefill, SamplesForkItsEnd) {
  Json request = RequestFor(GetParam(), 1500, 400);
  request["temperature"] = 1.5;
  request["seed"] = 3;
  request["n"] = 4;
  const HttpReply reply = cluster_->http().Post("/v1/completions", request);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Completion expected = Expected(request);
  ASSERT_TRUE(expected.ok()) << expected.error;
  const Json answer = reply.json();
  EXPECT_EQ(answer.at("choices").at(0).at("token_ids").get<TokenIds>(), expected.ids);
  EXPECT_NE(answer.at("choices").at(3).at("token_ids").get<TokenIds>(), expected.ids);
}

INSTANTIATE_TEST_SUITE_P(Presets, LayeredPrefill,
                         testing::Values("winnow", "dense", "async-token", "quest", "exact-token"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(LayeredPrefillMemory, AutoTakesLayersWhereTheKvWouldNotFit) {
  // The KV of 8192 tokens takes 32 MiB, that of one layer and their residuals 12.
  const auto cluster = StartOrFail(Flags({"--prefill-memory=13MiB"}));
  ASSERT_NE(cluster, nullptr);
  const auto layered = [&] { return cluster->MetricsOf("inference-0").Value("winnow_layered_prompts_total"); };
  ASSERT_TRUE(Complete(cluster->http(), RequestFor("winnow", 3000)).ok());
  EXPECT_EQ(layered(), 0);
  const Completion completion = Complete(cluster->http(), RequestFor("winnow", 7500));
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(layered(), 1);
  EXPECT_NE(cluster->process().Log().find("prefilled 7500 tokens layer by layer"), std::string::npos);
}

TEST(LayeredPrefillMemory, ALayeredPromptLetsStreamsGoOn) {
  const auto cluster = StartOrFail(Flags({"--prefill=layered", "--max-inject-tokens=16", "--max-running=8"}));
  ASSERT_NE(cluster, nullptr);
  const auto injected = [&] { return cluster->MetricsOf("inference-0").Value("winnow_injected_tokens_total"); };
  std::future<Completion> prompt;
  size_t tokens_before = 0, tokens_at_end = 0;
  Json stream = GreedyRequest(DemoText(100), 2000);
  const Completion completion = StreamCompletion(cluster->http(), stream, [&](size_t tokens) {
    if (!prompt.valid() && tokens >= 5) {
      tokens_before = tokens;
      prompt = std::async(std::launch::async, [&] { return Complete(cluster->http(), RequestFor("winnow", 4000)); });
    }
    if (prompt.valid() && prompt.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      tokens_at_end = tokens;
      return false;
    }
    return true;
  });
  ASSERT_TRUE(prompt.valid());
  const Completion answer = prompt.get();
  ASSERT_TRUE(answer.ok()) << answer.error;
  // Each of its iterations, beside one token of the stream, computed no more than 16 x 8 token-layers.
  EXPECT_GE(tokens_at_end - tokens_before, 4000 / 16 - 1) << "unless the stream had ended";
  EXPECT_GE(injected(), 3000);
}

}  // namespace
}  // namespace winnow::e2e
