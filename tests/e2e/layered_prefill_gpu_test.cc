// Prompts that GPUs compute layer by layer, here GPUs made of host memory (tests/support/host_gpu), get the answers of
// those that they compute chunk by chunk, in less of the GPUs' memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

constexpr int kTokens = 20;
// Of the demo model, on each GPU.
constexpr double kLayerTokenBytes = 2 * 2 * 64 * 2, kResidualBytes = 4 * 256;

// Where a model and its cache ranks lie.
struct Placement {
  const char* name;
  int gpus;  // that hold the model together
  std::vector<std::string> flags;
};
std::ostream& operator<<(std::ostream& out, const Placement& placement) {
  return out << placement.name;
}
const Placement kPlacements[] = {
    {"Frames", 1, {"--transport=ucx"}},
    {"FramesFromTwoGpus", 2, {"--transport=ucx", "--tensor-parallel=2"}},
    {"PeerLink", 1, {"--transport=p2p", "--cache-device=cuda:1"}},
    {"PeerLinksOfTwoGpus",
     2,
     {"--transport=p2p", "--tensor-parallel=2", "--cache-device=cuda:2", "--cache-ranks=2", "--cache-shards=2"}},
};

class LayeredPrefillOnGpus : public testing::TestWithParam<Placement> {
 protected:
  static std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--device=cuda", "--budget=256", "--max-context=4096", "--prefill-chunk=192"});
    flags.insert(flags.end(), GetParam().flags.begin(), GetParam().flags.end());
    return StartOrFail(std::move(flags), {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}});
  }
  static bool HasPeerLinks() { return GetParam().flags[0] == "--transport=p2p"; }
};
INSTANTIATE_TEST_SUITE_P(Placements, LayeredPrefillOnGpus, testing::ValuesIn(kPlacements),
                         [](const auto& info) { return std::string(info.param.name); });

Json RequestFor(const TokenIds& prompt, const char* selection, int tokens = kTokens) {
  Json request = GreedyRequest(prompt, tokens);
  request["winnow"] = {{"selection", selection}};
  return request;
}

TEST_P(LayeredPrefillOnGpus, AnswersAreThoseOfChunks) {
  const char* const kSelections[] = {"depth", "async-token", "dense"};
  const TokenIds prompts[] = {DemoText(1), DemoText(193), DemoText(2222, 3)};
  std::map<std::pair<std::string, size_t>, TokenIds> expected;
  {
    const auto cluster = StartCluster({"--prefill=chunked", "--selection=depth"});
    ASSERT_NE(cluster, nullptr);
    for (const char* selection : kSelections) {
      for (const TokenIds& prompt : prompts) {
        const Completion completion = Complete(cluster->http(), RequestFor(prompt, selection));
        ASSERT_TRUE(completion.ok()) << selection << ": " << completion.error;
        expected[{selection, prompt.size()}] = completion.ids;
      }
    }
  }
  const auto cluster = StartCluster({"--prefill=layered", "--selection=depth"});
  ASSERT_NE(cluster, nullptr);
  const auto metric = [&](const char* name) { return cluster->MetricsOf("inference-0").Value(name); };
  for (const char* selection : kSelections) {
    for (const TokenIds& prompt : prompts) {
      // The second time most of the prompt is in the prefix cache and comes layer by layer.
      for (int repeat = 0; repeat < 2; ++repeat) {
        const double computed = metric("winnow_rank_prompt_tokens_total");
        const Completion completion = Complete(cluster->http(), RequestFor(prompt, selection));
        ASSERT_TRUE(completion.ok()) << selection << ": " << completion.error;
        EXPECT_EQ(completion.ids, (expected[{selection, prompt.size()}])) << selection << ", " << prompt.size();
        const auto cached = completion.usage.at("prompt_tokens_details").at("cached_tokens").get<size_t>();
        EXPECT_EQ(metric("winnow_rank_prompt_tokens_total") - computed, static_cast<double>(prompt.size() - cached));
        if (repeat == 1) {
          EXPECT_GE(cached + 128, prompt.size());
        }
      }
    }
  }
  EXPECT_EQ(metric("winnow_prefill_kv_bytes"), 0);
  EXPECT_EQ(metric("winnow_layered_prompts_total"), 2 * 3 * 3);
  EXPECT_EQ(metric("winnow_layered_kv_peak_bytes"), 2222 * kLayerTokenBytes);
  EXPECT_EQ(metric("winnow_layered_residual_peak_bytes"), GetParam().gpus * 2222 * kResidualBytes);
  EXPECT_EQ(metric("winnow_peer_steps_total") > 0, HasPeerLinks());
  EXPECT_EQ(metric("winnow_pushed_prompt_rows_total") > 0, HasPeerLinks() && GetParam().gpus == 1);
}

// Pieces of a prompt through one layer, and steps of a stream between them. With a target nobody has to ask for layers.
TEST_P(LayeredPrefillOnGpus, AStreamGoesOnBesideAPrompt) {
  const TokenIds prompt = DemoText(2500, 9);
  for (const auto& [bound, mode] :
       {std::pair{"--max-inject-tokens=16", "--prefill=layered"}, {"--tpot-target=20ms", "--prefill=auto"}}) {
    const auto cluster = StartCluster({mode, "--selection=depth", "--prefix-cache=false", bound});
    ASSERT_NE(cluster, nullptr);
    const Completion alone = Complete(cluster->http(), RequestFor(prompt, "depth"));
    ASSERT_TRUE(alone.ok()) << alone.error;
    std::future<Completion> beside;
    size_t tokens_before = 0, tokens_at_end = 0;
    const Completion stream = StreamCompletion(cluster->http(), GreedyRequest(DemoText(100), 1000), [&](size_t tokens) {
      if (!beside.valid() && tokens >= 5) {
        tokens_before = tokens;
        beside = std::async(std::launch::async, [&] { return Complete(cluster->http(), RequestFor(prompt, "depth")); });
      }
      if (!beside.valid() || beside.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return true;
      tokens_at_end = tokens;
      return false;
    });
    ASSERT_TRUE(beside.valid());
    const Completion answer = beside.get();
    EXPECT_EQ(answer.ids, alone.ids) << bound << answer.error;
    EXPECT_GT(cluster->MetricsOf("inference-0").Value("winnow_injected_tokens_total"), 0) << bound;
    EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_layered_prompts_total"), 3) << bound;
    if (tokens_at_end == 0) tokens_at_end = 1000;  // the stream had ended
    EXPECT_GT(tokens_at_end, tokens_before) << bound;
  }
}

// A prompt whose KV would never fit goes layer by layer; memory for one that fits is what its KV takes.
TEST_P(LayeredPrefillOnGpus, AutoTakesLayersWhereTheKvWouldNotFit) {
  // On each GPU the KV of 4096 tokens takes 16 MiB, or 8 of half the heads; one layer's with the residuals 6, or 5.
  const auto cluster = StartCluster({GetParam().gpus == 1 ? "--prefill-memory=7MiB" : "--prefill-memory=5MiB"});
  ASSERT_NE(cluster, nullptr);
  const auto layered = [&] { return cluster->MetricsOf("inference-0").Value("winnow_layered_prompts_total"); };
  ASSERT_TRUE(Complete(cluster->http(), RequestFor(DemoText(1500), "depth")).ok());
  EXPECT_EQ(layered(), 0);
  const Completion completion = Complete(cluster->http(), RequestFor(DemoText(3900), "depth"));
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(layered(), 1);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("prefilled 3900 tokens layer by layer"));
}

}  // namespace
}  // namespace winnow::e2e
