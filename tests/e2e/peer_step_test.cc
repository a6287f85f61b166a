// Decode steps that run between an inference rank's GPU and a cache rank's, here GPUs made of host memory whose
// processes map each other's (tests/support/host_gpu).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/e2e/disturbed_answers.h"
#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/peer_cluster.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

class PeerLinks : public testing::TestWithParam<PeerPlacement> {};
INSTANTIATE_TEST_SUITE_P(Placements, PeerLinks, testing::ValuesIn(kPlacements),
                         [](const auto& info) { return std::string(info.param.name); });

double MassesOf(const Cluster& cluster, const std::string& rank) {
  return cluster.MetricsOf(rank).Value("winnow_captured_attention_mass_count");
}

// What selections looked up, and what of it was there.
struct Lookups {
  double lookups = 0, hits = 0, streamed = 0;
};
// Of `rank`-0 and those behind it.
Lookups LookupsOf(const Cluster& cluster, const std::string& rank, int ranks = 1) {
  Lookups sum;
  for (int i = 0; i < ranks; ++i) {
    const Metrics metrics = cluster.MetricsOf(rank + "-" + std::to_string(i));
    sum.lookups += metrics.Value("winnow_selection_lookups_total");
    sum.hits += metrics.Value("winnow_selection_hits_total");
    sum.streamed += metrics.Value("winnow_kv_stream_rows_total");
  }
  return sum;
}

// Captured masses are figures of the same softmaxes, summed in f32 on the CPU. A score of the demo model stays below
// 100 and is a sum of 64 products, so that it errs by at most 64 * 2^-24 * 100 and a share by twice that, relative.
constexpr double kMassTolerance = 2 * 64 * 100.0 / (1 << 24);

// Keys are scored as they are stored, so that both ways select alike up to the roundings of scores.
TEST_P(PeerLinks, AnswersAreThoseOfFrames) {
  for (const char* selection : {"depth", "exact-token", "async-token,key_copy=none"}) {
    std::vector<Completion> by_frames;
    double masses_by_frames = 0;
    Lookups cache_by_frames, rank_by_frames;
    const auto prompts = {DemoCaseOfAtLeast(2000).prompt, DemoText(700, 3), DemoText(40, 5)};
    {
      // By one cache rank.
      const auto cluster = StartCluster(FrameFlags(selection, GetParam()));
      ASSERT_NE(cluster, nullptr);
      for (const TokenIds& prompt : prompts) by_frames.push_back(AnswerOf(*cluster, prompt));
      masses_by_frames = MassesOf(*cluster, "inference-0");
      cache_by_frames = LookupsOf(*cluster, "cache");
      rank_by_frames = LookupsOf(*cluster, "inference");
      EXPECT_EQ(PeerSteps(*cluster), 0);
      EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_pushed_prompt_rows_total"), 0);
    }
    const auto cluster = StartCluster(PeerFlags(selection, GetParam()));
    ASSERT_NE(cluster, nullptr);
    size_t i = 0;
    double streamed = 0, streamed_bytes = 0;
    for (const TokenIds& prompt : prompts) {
      const Completion by_peer = AnswerOf(*cluster, prompt);
      EXPECT_EQ(by_peer.ids, by_frames[i].ids) << selection;
      for (const char* figure : {"captured_mass_mean", "captured_mass_p5"}) {
        // The percentile is an edge of a bin of 1/1000.
        EXPECT_NEAR(by_peer.Stat(figure), by_frames[i].Stat(figure), kMassTolerance + 1e-3 * (figure[14] == 'p'))
            << selection << ", prompt of " << prompt.size();
      }
      streamed += by_peer.Stat("streamed_rows");
      streamed_bytes += by_peer.Stat("streamed_bytes");
      EXPECT_GE(by_peer.Stat("streamed_rows"), by_frames[i].Stat("streamed_rows")) << selection;
      ++i;
    }
    // Rows that the inference rank could copy from its recent ones are misses on the cache rank by frames, too. There
    // they are copied, here they travel.
    const Lookups rank = LookupsOf(*cluster, "inference");
    EXPECT_EQ(rank.lookups, rank_by_frames.lookups) << selection;
    EXPECT_EQ(rank.lookups, cache_by_frames.lookups) << selection;
    // Which of two rows whose scores differ by their roundings is selected makes a hit or a miss.
    EXPECT_NEAR(rank.hits, cache_by_frames.hits, 1e-3 * rank.lookups) << selection;
    EXPECT_LT(rank.hits, rank.lookups) << selection;
    EXPECT_EQ(rank.streamed, rank.lookups - rank.hits) << selection;
    EXPECT_EQ(streamed, rank.streamed) << selection;
    EXPECT_EQ(streamed_bytes, streamed * 2 * 64 * 2) << selection << ": K and V of 64 elements in bf16";
    // What a step has sent is counted there after it.
    EXPECT_TRUE(WaitUntil(std::chrono::milliseconds(20'000),
                          [&] { return LookupsOf(*cluster, "cache", GetParam().gpus).lookups >= rank.lookups; }));
    const Lookups cache = LookupsOf(*cluster, "cache", GetParam().gpus);
    EXPECT_EQ(cache.lookups, rank.lookups) << selection;
    EXPECT_EQ(cache.hits, rank.hits) << selection;
    EXPECT_EQ(cache.streamed, rank.streamed) << selection;
    EXPECT_LT(by_frames[0].Stat("captured_mass_mean"), 1);
    EXPECT_EQ(by_frames[2].Stat("captured_mass_mean"), 1) << "40 tokens are all attended to";
    EXPECT_EQ(MassesOf(*cluster, "inference-0"), masses_by_frames) << selection;
    EXPECT_GT(MassesOf(*cluster, "cache-0"), 0);
    EXPECT_EQ(PeerSteps(*cluster), 3 * (kTokens - 1)) << selection;
    const double pushed = cluster->MetricsOf("inference-0").Value("winnow_pushed_prompt_rows_total");
    if (GetParam().gpus == 1) {
      EXPECT_GE(pushed, cluster->MetricsOf("inference-0").Value("winnow_rank_prompt_tokens_total"));
    } else {
      EXPECT_EQ(pushed, 0) << "prompts of several shards pass through host memory";
    }
    for (int i = 0; i < GetParam().gpus; ++i) {
      EXPECT_EQ(cluster->MetricsOf("cache-" + std::to_string(i)).Value("winnow_peer_plans_total"), 3 * (kTokens - 1));
    }
    EXPECT_THAT(cluster->process().Log(), HasSubstr("run from GPU to GPU"));
  }
}

// Page bounds leave half of the keys of the longer prompt, then those of groups of pages some of its pages. Masses are
// not compared: by frames they are lower bounds.
TEST_P(PeerLinks, TwoStageAnswersAreThoseOfFrames) {
  const auto prompts = {DemoCaseOfAtLeast(2000).prompt, DemoText(300, 3)};
  for (const std::string selection : {"depth,scorer=two-stage,candidate_factor=4,min_candidate_tokens=0",
                                      "depth,scorer=two-stage,candidate_factor=1,min_candidate_tokens=0,"
                                      "group_candidate_tokens=1024"}) {
    std::vector<TokenIds> by_frames;
    {
      const auto cluster = StartCluster(FrameFlags(selection, GetParam()));
      ASSERT_NE(cluster, nullptr);
      for (const TokenIds& prompt : prompts) by_frames.push_back(AnswerOf(*cluster, prompt).ids);
      EXPECT_EQ(PeerSteps(*cluster), 0);
    }
    const auto cluster = StartCluster(PeerFlags(selection.c_str(), GetParam()));
    ASSERT_NE(cluster, nullptr);
    size_t i = 0;
    for (const TokenIds& prompt : prompts) EXPECT_EQ(AnswerOf(*cluster, prompt).ids, by_frames[i++]) << selection;
    EXPECT_EQ(PeerSteps(*cluster), 2 * (kTokens - 1));
    EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_peer_links_failed_total"), 0);
  }
}

// Sequences come and go: more requests than batch rows, of different lengths, some of which are given up.
TEST_P(PeerLinks, AnswersAreTheSameAloneOrInABatch) {
  const auto cluster = StartCluster(PeerFlags("winnow", GetParam()));
  ASSERT_NE(cluster, nullptr);
  const std::vector<TokenIds> prompts = Prompts(8, 100, 250);
  std::vector<TokenIds> alone;
  for (size_t i = 0; i < prompts.size(); ++i) alone.push_back(IdsOf(*cluster, prompts[i], 6 + 3 * static_cast<int>(i)));
  std::vector<std::future<TokenIds>> together;
  for (size_t i = 0; i < prompts.size(); ++i) {
    together.push_back(
        std::async(std::launch::async, [&, i] { return IdsOf(*cluster, prompts[i], 6 + 3 * static_cast<int>(i)); }));
  }
  const auto given_up = std::async(std::launch::async, [&] {
    StreamCompletion(cluster->http(), GreedyRequest(DemoText(300, 20), 200), [](size_t tokens) { return tokens < 5; });
  });
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together[i].get(), alone[i]) << i;
  given_up.wait();
  EXPECT_GT(PeerSteps(*cluster), 0);
  EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_peer_links_failed_total"), 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

// Of sequences that the cache rank's GPU has no room for, rows are pushed from host memory and keys scored in the
// GPU's.
TEST(PeerLink, RowsMayLieInHostMemoryAndGoTheSameWay) {
  // Of three quarters of 196 MiB peer links take 131, and each of the sequences 6.8 MiB of rows, 1.8 of keys and 0.4 of
  // bounds of pages, or more: there is room for half of one beside the index of what is in host memory.
  constexpr double kMib = 1 << 20, kHostBytes = 28 * kMib;
  const auto start = [&](std::vector<std::string> more) {
    std::vector<std::string> flags = PeerFlags("winnow");
    flags.insert(flags.end(), more.begin(), more.end());
    return StartCluster(flags);
  };
  const std::vector<TokenIds> prompts = Prompts(4, 1700, 100);
  const auto metric = [](const Cluster& cluster, const char* name, const Metrics::Labels& labels) {
    return cluster.MetricsOf("cache-0").Value(name, labels);
  };
  const auto batch_rows = [&](const Cluster& cluster, const char* outcome) {
    return metric(cluster, "winnow_peer_batch_rows_total", {{"outcome", outcome}});
  };
  std::vector<TokenIds> expected;
  {
    const auto cluster = start({});
    ASSERT_NE(cluster, nullptr);
    expected = AnswersTogether(*cluster, prompts);
    EXPECT_EQ(batch_rows(*cluster, "refused"), 0);
  }
  const auto cluster = start({"--cache-device-memory=196MiB", "--cache-device-host-memory=28MiB"});
  ASSERT_NE(cluster, nullptr);
  double most_used = 0;
  auto asked = std::async(std::launch::async, [&] { return AnswersTogether(*cluster, prompts); });
  while (asked.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    most_used = std::max(most_used, metric(*cluster, "winnow_peer_copy_used_bytes", {{"tier", "host"}}));
  }
  EXPECT_EQ(asked.get(), expected);
  EXPECT_EQ(batch_rows(*cluster, "granted"), 4);
  EXPECT_EQ(batch_rows(*cluster, "refused"), 0);
  EXPECT_EQ(metric(*cluster, "winnow_peer_copy_capacity_bytes", {{"tier", "host"}}), kHostBytes);
  EXPECT_GT(most_used, 3 * kMib) << "half of a sequence at least";
  EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_peer_links_failed_total"), 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

// Samples share the source's rows in host memory, and each has a copy and a batch row of its own.
TEST_P(PeerLinks, SamplesOfAPromptAreThoseOfRequestsOfTheirOwn) {
  constexpr uint32_t kSamples = 4;
  std::vector<std::string> flags = PeerFlags("winnow", GetParam());
  flags.push_back("--prefix-cache=false");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  GenerationClient client(*cluster);
  for (const uint32_t prompt_tokens : {997u, 40u}) {
    const v1::GenerateRequest request = SamplesOf("", DemoText(prompt_tokens, 300), kSamples, kTokens);
    const Answer together = client.Generate(request)->Finish();
    ASSERT_TRUE(together.status.ok()) << together.status.error_message();
    SCOPED_TRACE(prompt_tokens);
    ASSERT_NO_FATAL_FAILURE(ExpectSamplesAreThoseAlone(client, request, together));
  }
  const Metrics metrics = cluster->MetricsOf("inference-0");
  EXPECT_EQ(metrics.Value("winnow_rank_sequences_total", {{"outcome", "forked"}}), 2 * (kSamples - 1));
  EXPECT_EQ(metrics.Value("winnow_peer_steps_total"), metrics.Value("winnow_decode_steps_total"));
}

// The source goes on in its batch row; what its peer link has under way is part of what is forked.
TEST_P(PeerLinks, AForkOfARunningSequenceGoesOnFromItsToken) {
  constexpr uint32_t kLong = 90;
  for (const char* selection : {"winnow", "async-token"}) {
    const auto cluster = StartCluster(PeerFlags(selection, GetParam()));
    ASSERT_NE(cluster, nullptr);
    v1::GenerateRequest request = SamplesOf("", DemoText(800, 900), 1, kLong);
    GenerationClient client(*cluster);
    const TokenIds undisturbed = client.Generate(request)->Finish().ids();
    request.set_request_id("source");
    const auto source = client.Generate(request);
    ASSERT_TRUE(source->ReadUntil(10));
    v1::ForkRequest fork;
    fork.set_source_request_id("source");
    fork.set_sample_index(0);
    const auto twin = client.Fork(fork);
    fork.set_sample_index(7);
    const auto other = client.Fork(fork);
    const auto joined = [&](const Answer& answer) {
      TokenIds ids(undisturbed.begin(), undisturbed.begin() + answer.accepted.forked_tokens());
      ids.insert(ids.end(), answer.ids().begin(), answer.ids().end());
      return ids;
    };
    for (Call* call : {source.get(), twin.get(), other.get()}) {
      ASSERT_TRUE(call->Finish().status.ok()) << call->answer().status.error_message();
      EXPECT_FALSE(call->answer().outputs.at(0).has_gaps);
    }
    EXPECT_EQ(source->answer().ids(), undisturbed) << selection;
    EXPECT_GE(twin->answer().accepted.forked_tokens(), 10u);
    EXPECT_EQ(joined(twin->answer()), undisturbed) << selection << ": the same random numbers";
    EXPECT_EQ(joined(other->answer()).size(), kLong);
    EXPECT_NE(joined(other->answer()), undisturbed) << selection;
    const Metrics metrics = cluster->MetricsOf("inference-0");
    // Past queries stay on the cache rank's GPU: where those are looked back on, a fork is opened on its own.
    const int forked = selection == std::string("async-token") ? 0 : 2;
    EXPECT_EQ(metrics.Value("winnow_rank_sequences_total", {{"outcome", "forked"}}), forked) << selection;
    EXPECT_EQ(metrics.Value("winnow_peer_links_failed_total"), 0);
  }
}

// A batch row is given up with the working set, and another one is taken later.
TEST_P(PeerLinks, PreemptionChangesNoAnswer) {
  std::vector<std::string> flags = PeerFlags("winnow", GetParam());
  flags.push_back("--age-bound=20ms");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  ExpectThatPreemptionChangesNoAnswer(*cluster, Prompts(8, 500, 100), /*batch_rows=*/4);
}

// Where a prompt was computed makes no difference to who decodes.
TEST_P(PeerLinks, ARankDecodesWhatAnotherHasPrefilled) {
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  TokenIds expected;
  {
    const auto cluster = StartCluster(PeerFlags("depth", GetParam()));
    ASSERT_NE(cluster, nullptr);
    expected = IdsOf(*cluster, prompt);
  }
  std::vector<std::string> flags = PeerFlags("depth", GetParam(), /*ranks=*/2);
  flags.push_back("--prefill-ranks=1");
  flags.push_back("--decode-ranks=1");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(IdsOf(*cluster, prompt), expected);
  EXPECT_EQ(cluster->MetricsOf("decode-0").Value("winnow_peer_steps_total"), kTokens - 1);
}

}  // namespace
}  // namespace winnow::e2e
