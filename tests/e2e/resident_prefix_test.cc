// Rows of prompts that stay in the slots of a GPU, here one made of host memory (tests/support/host_gpu): what begins
// with them has them without a transfer, and nothing else tells.
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <vector>

#include "tests/e2e/disturbed_answers.h"
#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

constexpr double kTokenBytes = 8 * 2 * 128 * 2;  // KV of the demo model
constexpr uint32_t kColumn = 64;                 // positions that are kept together

// How a rank attends to rows that all lie on its GPUs, and computes prompts.
struct Placement {
  const char* name;
  std::vector<std::string> flags;
  int num_gpus = 1;
};
std::ostream& operator<<(std::ostream& out, const Placement& placement) {
  return out << placement.name;
}
const Placement kPlacements[] = {
    {"Dense", {"--selection=dense"}},
    {"InPlace", {"--selection=winnow,budget=128,recent=32", "--select-in-place=on"}},
    {"Layered", {"--selection=dense", "--prefill=layered", "--prefill-chunk=192"}},
    {"InPlaceOnTwoGpus", {"--selection=winnow,budget=128,recent=32", "--select-in-place=on", "--tensor-parallel=2"}, 2},
};

std::unique_ptr<Cluster> StartOnGpu(const Placement& placement, std::vector<std::string> flags) {
  flags.push_back("--device=cuda");
  flags.insert(flags.end(), placement.flags.begin(), placement.flags.end());
  return StartOrFail(std::move(flags), {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}});
}

struct Figures {
  explicit Figures(const Cluster& cluster) {
    const Metrics rank = cluster.MetricsOf("inference-0"), cache = cluster.MetricsOf("cache-0");
    hits = rank.Value("winnow_resident_prefix_hits_total");
    tokens = rank.Value("winnow_resident_prefix_tokens_total");
    kept_bytes = rank.Value("winnow_resident_prefix_bytes");
    evicted_tokens = rank.Value("winnow_resident_prefix_evicted_tokens_total");
    streamed_back_bytes = rank.Value("winnow_prefix_attention_bytes_total", {{"way", "stream-back"}});
    refilled_bytes = cache.Value("winnow_kv_stream_bytes_total", {{"direction", "refilled"}});
    used_pages = rank.Value("winnow_slot_pages", {{"state", "used"}});
  }
  double hits, tokens, kept_bytes, evicted_tokens, streamed_back_bytes, refilled_bytes, used_pages;
};

bool NothingIsUsed(const Cluster& cluster) {
  return WaitUntil(milliseconds(20'000), [&] { return Figures(cluster).used_pages == 0; });
}

// A cache rank publishes its figures now and then.
bool HasRefilled(const Cluster& cluster, const Figures& before, uint32_t positions) {
  return WaitUntil(milliseconds(20'000),
                   [&] { return Figures(cluster).refilled_bytes - before.refilled_bytes == positions * kTokenBytes; });
}

uint32_t CachedTokens(const Completion& completion) {
  return completion.usage.at("prompt_tokens_details").at("cached_tokens").get<uint32_t>();
}

TokenIds Joined(TokenIds head, const TokenIds& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

class ResidentPrefix : public testing::TestWithParam<Placement> {
 protected:
  static void TearDownTestSuite() {
    kept_of_.clear();
    plain_of_.clear();
  }
  // Of rows that stay, and without: cases that need no flags of their own share both, and ask for texts of their own.
  static const Cluster* Kept() { return Shared(kept_of_, {}); }
  static const Cluster* Plain() { return Shared(plain_of_, {"--keep-prefixes=false"}); }
  static TokenIds IdsOfPlain(const Json& request) {
    const Completion completion = Complete(Plain()->http(), request);
    EXPECT_TRUE(completion.ok()) << completion.error;
    return completion.ids;
  }

 private:
  using Clusters = std::map<std::string, std::unique_ptr<Cluster>>;
  static const Cluster* Shared(Clusters& clusters, std::vector<std::string> flags) {
    std::unique_ptr<Cluster>& cluster = clusters[GetParam().name];
    flags.insert(flags.end(), {"--max-context=2048", "--max-running=8"});
    if (cluster == nullptr) cluster = StartOnGpu(GetParam(), std::move(flags));
    return cluster.get();
  }

  static Clusters kept_of_, plain_of_;
};
ResidentPrefix::Clusters ResidentPrefix::kept_of_, ResidentPrefix::plain_of_;
INSTANTIATE_TEST_SUITE_P(Placements, ResidentPrefix, testing::ValuesIn(kPlacements),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ResidentPrefix, ACachedPrefixIsTakenFromSlotsAndNothingIsStreamedBack) {
  ASSERT_TRUE(Kept() != nullptr && Plain() != nullptr);
  const Figures kept_before(*Kept()), plain_before(*Plain());
  const TokenIds head = DemoText(732, 11);
  const TokenIds prompts[] = {head, head, Joined(head, DemoText(150, 40)), Joined(head, DemoText(70, 900))};
  for (const TokenIds& prompt : prompts) {
    const Json request = GreedyRequest(prompt, 24);
    const Figures before(*Kept());
    const Completion here = Complete(Kept()->http(), request), there = Complete(Plain()->http(), request);
    ASSERT_TRUE(here.ok() && there.ok()) << here.error << there.error;
    EXPECT_EQ(here.ids, there.ids);
    EXPECT_EQ(CachedTokens(here), CachedTokens(there));
    EXPECT_EQ(Figures(*Kept()).tokens - before.tokens, CachedTokens(here));
  }
  const Figures kept(*Kept()), plain(*Plain());
  EXPECT_EQ(kept.hits - kept_before.hits, 3);
  EXPECT_EQ(kept.streamed_back_bytes, kept_before.streamed_back_bytes);
  EXPECT_EQ(kept.refilled_bytes, kept_before.refilled_bytes);
  EXPECT_GE(kept.kept_bytes - kept_before.kept_bytes, 704 * kTokenBytes);
  EXPECT_TRUE(NothingIsUsed(*Kept())) << "what is kept counts as free";
  EXPECT_GE(plain.streamed_back_bytes - plain_before.streamed_back_bytes, 3 * 640 * kTokenBytes);
  EXPECT_EQ(plain.hits + plain.kept_bytes, 0);
}

// Cache ranks share in units of 32 positions.
TEST_P(ResidentPrefix, RowsBehindTheLastWholeColumnAreStreamedBack) {
  ASSERT_TRUE(Kept() != nullptr && Plain() != nullptr);
  const Figures before(*Kept());
  const TokenIds head = DemoText(506, 4011);
  ASSERT_TRUE(Complete(Kept()->http(), GreedyRequest(head, 4)).ok());
  const Json request = GreedyRequest(Joined(head, DemoText(100, 40)), 30);
  const Completion here = Complete(Kept()->http(), request);
  ASSERT_TRUE(here.ok()) << here.error;
  EXPECT_EQ(CachedTokens(here), 480u);
  EXPECT_EQ(here.ids, IdsOfPlain(request));
  const Figures kept(*Kept());
  EXPECT_EQ(kept.tokens - before.tokens, 448);
  EXPECT_EQ(kept.streamed_back_bytes - before.streamed_back_bytes, 32 * kTokenBytes);
}

TEST_P(ResidentPrefix, SamplesTakeTheirPromptFromSlots) {
  ASSERT_TRUE(Kept() != nullptr && Plain() != nullptr);
  const Figures kept_before(*Kept()), plain_before(*Plain());
  constexpr uint32_t kSamples = 4, kPrompt = 360;
  v1::GenerateRequest request = SamplesOf("", DemoText(kPrompt, 70), kSamples, 24);
  GenerationClient kept(*Kept()), plain(*Plain());
  const Answer here = kept.Generate(request)->Finish();
  ASSERT_TRUE(here.status.ok()) << here.status.error_message();
  const Figures figures(*Kept());
  EXPECT_EQ(figures.hits - kept_before.hits, kSamples - 1);
  EXPECT_EQ(figures.tokens - kept_before.tokens, (kSamples - 1) * (kPrompt / kColumn * kColumn));
  EXPECT_TRUE(HasRefilled(*Kept(), kept_before, (kSamples - 1) * (kPrompt % kColumn))) << "what no column holds";
  const Answer there = plain.Generate(request)->Finish();
  ASSERT_TRUE(there.status.ok()) << there.status.error_message();
  EXPECT_TRUE(HasRefilled(*Plain(), plain_before, (kSamples - 1) * kPrompt));
  request.set_n(1);
  for (uint32_t i = 0; i < kSamples; ++i) {
    EXPECT_EQ(here.ids(i), there.ids(i)) << "sample " << i;
    request.mutable_sampling()->set_sample_index(i);
    EXPECT_EQ(plain.Generate(request)->Finish().ids(), here.ids(i)) << "sample " << i;
  }
}

// Rows that differ only in who may know of them, and rows of which the cache rank knows nothing, are nobody's to take.
TEST_P(ResidentPrefix, TenantsDoNotShareRows) {
  ASSERT_NE(Kept(), nullptr);
  const Json request = GreedyRequest(DemoText(800, 40), 30);
  TokenIds ids;
  double kept_bytes = Figures(*Kept()).kept_bytes;
  for (const char* key : {"one", "other"}) {
    const HttpClient client(Kept()->http_address(), std::chrono::seconds(120), key);
    const Figures before(*Kept());
    const Completion first = Complete(client, request);
    ASSERT_TRUE(first.ok()) << first.error;
    EXPECT_EQ(CachedTokens(first), 0u);
    EXPECT_EQ(Figures(*Kept()).hits, before.hits);
    const Completion again = Complete(client, request);
    EXPECT_EQ(Figures(*Kept()).hits, before.hits + 1);
    if (ids.empty()) ids = first.ids;
    EXPECT_EQ(first.ids, ids);
    EXPECT_EQ(again.ids, ids);
    EXPECT_EQ(Figures(*Kept()).kept_bytes, kept_bytes += 800 / kColumn * kColumn * kTokenBytes);
  }
}

TEST_P(ResidentPrefix, WhatTheCacheRankDoesNotHaveIsComputed) {
  const auto kept = StartOnGpu(GetParam(), {"--max-context=2048", "--prefix-cache=false"});
  ASSERT_NE(kept, nullptr);
  const Json request = GreedyRequest(DemoText(700, 9), 30);
  const Completion first = Complete(kept->http(), request), again = Complete(kept->http(), request);
  ASSERT_TRUE(first.ok() && again.ok()) << first.error << again.error;
  EXPECT_EQ(CachedTokens(again), 0u);
  EXPECT_EQ(again.ids, first.ids);
  const Figures figures(*kept);
  EXPECT_EQ(figures.hits, 0);
  EXPECT_EQ(figures.kept_bytes, 640 * kTokenBytes) << "once, and not for each of them";
  EXPECT_EQ(kept->MetricsOf("inference-0").Value("winnow_rank_prompt_tokens_total"), 2 * 700);
}

// Slots for four at a time; what is kept of earlier ones makes room for them.
TEST_P(ResidentPrefix, WhatIsKeptGivesWayAndChangesNoAnswer) {
  const auto kept = StartOnGpu(GetParam(), {"--max-context=512", "--max-running=6",
                                            "--slot-memory=" + std::to_string(6 / GetParam().num_gpus) + "MiB"});
  ASSERT_TRUE(kept != nullptr && Plain() != nullptr);
  constexpr int kPrompts = 8, kTokens = 16;
  std::vector<Json> requests;
  std::vector<TokenIds> expected;
  for (int i = 0; i < kPrompts; ++i) {
    requests.push_back(GreedyRequest(Joined(DemoText(100 + 75 * (i % 2), 5), DemoText(150 + 16 * i, 50 * i)), kTokens));
    expected.push_back(IdsOfPlain(requests.back()));
    ASSERT_EQ(expected.back().size(), static_cast<size_t>(kTokens));
  }
  for (int round = 0; round < 2; ++round) {
    std::vector<std::future<Completion>> together;
    for (int i = 0; i < kPrompts; ++i) {
      const int prompt = (i * 3 + round) % kPrompts;
      together.push_back(
          std::async(std::launch::async, [&, prompt] { return Complete(kept->http(), requests[prompt]); }));
    }
    for (int i = 0; i < kPrompts; ++i) {
      const Completion completion = together[i].get();
      EXPECT_TRUE(completion.ok()) << completion.error;
      EXPECT_EQ(completion.ids, expected[(i * 3 + round) % kPrompts]) << "round " << round << ", request " << i;
    }
  }
  const Figures figures(*kept);
  EXPECT_GT(figures.evicted_tokens, 250);
  EXPECT_GT(figures.hits, 0);
  EXPECT_LE(figures.kept_bytes, 6 << 20);
  EXPECT_TRUE(NothingIsUsed(*kept));
}

// With slices so short that answers lose their slots again and again.
TEST_P(ResidentPrefix, WhatIsPreemptedResumesWithTheRowsThatItHad) {
  const auto kept = StartOnGpu(GetParam(), {"--max-context=1024", "--max-running=2", "--age-bound=30ms"});
  ASSERT_TRUE(kept != nullptr && Plain() != nullptr);
  std::vector<Json> requests;
  std::vector<TokenIds> expected;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(GreedyRequest(DemoText(300 + i, 300 + i), 50));
    expected.push_back(IdsOfPlain(requests.back()));
  }
  ExpectPreemptionChangesNothing(*kept, requests, expected);
  const Metrics rank = kept->MetricsOf("inference-0");
  const double resumed = rank.Value("winnow_rank_sequences_total", {{"outcome", "resumed"}});
  const Figures figures(*kept);
  EXPECT_LE(figures.refilled_bytes - figures.streamed_back_bytes, resumed * kColumn * kTokenBytes)
      << "less than a column for each that resumes";
  EXPECT_EQ(rank.Value("winnow_rank_sequences_total", {{"outcome", "failed"}}), 0);
  EXPECT_EQ(rank.Value("winnow_rank_sequences_total", {{"outcome", "fenced"}}), 0);
}

TEST_P(ResidentPrefix, AKilledRankLeavesNoTraceInAnAnswer) {
  const auto kept = StartOnGpu(GetParam(), {"--inference-ranks=2", "--max-context=2048"});
  ASSERT_NE(kept, nullptr);
  const Json request = GreedyRequest(DemoText(600, 600), 200);
  AnswerOfAKilledRank answer;
  ASSERT_NO_FATAL_FAILURE(KillARankInMidAnswer(*kept, request, "winnow_local_sequences", &answer));
  EXPECT_EQ(Complete(kept->http(), request).ids, answer.undisturbed.ids);
}

}  // namespace
}  // namespace winnow::e2e
