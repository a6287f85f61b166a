// Decode steps that run between an inference rank's GPU and a cache rank's, here GPUs made of host memory whose
// processes map each other's (tests/support/host_gpu).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "tests/e2e/cluster.h"
#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using testing::HasSubstr;

constexpr int kTokens = 16;

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags, Process::Environment environment = {}) {
  for (const char* flag : {"--device=cuda", "--budget=256", "--max-context=4096", "--max-running=4"}) {
    flags.push_back(flag);
  }
  environment.emplace_back("WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN);
  return StartOrFail(std::move(flags), environment);
}
// One GPU for the model and one cache rank, or two GPUs that share its heads and a cache rank for the heads of each.
struct Placement {
  const char* name;
  int gpus = 1;
};
constexpr Placement kPlacements[] = {{"OneGpu", 1}, {"TwoGpus", 2}};
std::string Flag(const char* name, int value) {
  return std::string(name) + "=" + std::to_string(value);
}
// Each inference rank and each cache rank has GPUs of its own.
std::vector<std::string> LaneFlags(const std::string& selection, Placement placement = kPlacements[0], int ranks = 1,
                                   int spare_cache_ranks = 0) {
  std::vector<std::string> flags = {"--cache-device=cuda:" + std::to_string(placement.gpus * ranks), "--transport=p2p",
                                    "--selection=" + selection,
                                    Flag("--cache-ranks", placement.gpus + spare_cache_ranks)};
  if (placement.gpus > 1) {
    flags.push_back(Flag("--tensor-parallel", placement.gpus));
    flags.push_back(Flag("--cache-shards", placement.gpus));
  }
  return flags;
}
class Lanes : public testing::TestWithParam<Placement> {};
INSTANTIATE_TEST_SUITE_P(Placements, Lanes, testing::ValuesIn(kPlacements),
                         [](const auto& info) { return std::string(info.param.name); });

Completion AnswerOf(const Cluster& cluster, const TokenIds& prompt, int tokens = kTokens) {
  Completion completion = Complete(cluster.http(), GreedyRequest(prompt, tokens));
  EXPECT_TRUE(completion.ok()) << completion.error;
  return completion;
}
TokenIds IdsOf(const Cluster& cluster, const TokenIds& prompt, int tokens = kTokens) {
  return AnswerOf(cluster, prompt, tokens).ids;
}

double LaneSteps(const Cluster& cluster) {
  return cluster.MetricsOf("inference-0").Value("winnow_lane_steps_total");
}

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
TEST_P(Lanes, AnswersAreThoseOfFrames) {
  for (const char* selection : {"depth", "exact-token", "async-token,key_copy=none"}) {
    std::vector<Completion> by_frames;
    double masses_by_frames = 0;
    Lookups cache_by_frames, rank_by_frames;
    const auto prompts = {DemoCaseOfAtLeast(2000).prompt, DemoText(700, 3), DemoText(40, 5)};
    {
      // By one cache rank.
      const auto cluster = StartCluster(
          {std::string("--selection=") + selection, "--transport=ucx", Flag("--tensor-parallel", GetParam().gpus)});
      ASSERT_NE(cluster, nullptr);
      for (const TokenIds& prompt : prompts) by_frames.push_back(AnswerOf(*cluster, prompt));
      masses_by_frames = MassesOf(*cluster, "inference-0");
      cache_by_frames = LookupsOf(*cluster, "cache");
      rank_by_frames = LookupsOf(*cluster, "inference");
      EXPECT_EQ(LaneSteps(*cluster), 0);
      EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_pushed_prompt_rows_total"), 0);
    }
    const auto cluster = StartCluster(LaneFlags(selection, GetParam()));
    ASSERT_NE(cluster, nullptr);
    size_t i = 0;
    double streamed = 0, streamed_bytes = 0;
    for (const TokenIds& prompt : prompts) {
      const Completion by_lane = AnswerOf(*cluster, prompt);
      EXPECT_EQ(by_lane.ids, by_frames[i].ids) << selection;
      for (const char* figure : {"captured_mass_mean", "captured_mass_p5"}) {
        // The percentile is an edge of a bin of 1/1000.
        EXPECT_NEAR(by_lane.Stat(figure), by_frames[i].Stat(figure), kMassTolerance + 1e-3 * (figure[14] == 'p'))
            << selection << ", prompt of " << prompt.size();
      }
      streamed += by_lane.Stat("streamed_rows");
      streamed_bytes += by_lane.Stat("streamed_bytes");
      EXPECT_GE(by_lane.Stat("streamed_rows"), by_frames[i].Stat("streamed_rows")) << selection;
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
    EXPECT_EQ(LaneSteps(*cluster), 3 * (kTokens - 1)) << selection;
    const double pushed = cluster->MetricsOf("inference-0").Value("winnow_pushed_prompt_rows_total");
    if (GetParam().gpus == 1) {
      EXPECT_GE(pushed, cluster->MetricsOf("inference-0").Value("winnow_rank_prompt_tokens_total"));
    } else {
      EXPECT_EQ(pushed, 0) << "prompts of several shards pass through host memory";
    }
    for (int i = 0; i < GetParam().gpus; ++i) {
      EXPECT_EQ(cluster->MetricsOf("cache-" + std::to_string(i)).Value("winnow_lane_plans_total"), 3 * (kTokens - 1));
    }
    EXPECT_THAT(cluster->process().Log(), HasSubstr("run from GPU to GPU"));
  }
}

// Page bounds leave half of the keys of the longer prompt. Masses are not compared: by frames they are lower bounds.
TEST_P(Lanes, TwoStageAnswersAreThoseOfFrames) {
  const std::string selection = "depth,scorer=two-stage,candidate_factor=4,min_candidate_tokens=0";
  const auto prompts = {DemoCaseOfAtLeast(2000).prompt, DemoText(300, 3)};
  std::vector<TokenIds> by_frames;
  {
    const auto cluster =
        StartCluster({"--selection=" + selection, "--transport=ucx", Flag("--tensor-parallel", GetParam().gpus)});
    ASSERT_NE(cluster, nullptr);
    for (const TokenIds& prompt : prompts) by_frames.push_back(AnswerOf(*cluster, prompt).ids);
    EXPECT_EQ(LaneSteps(*cluster), 0);
  }
  const auto cluster = StartCluster(LaneFlags(selection.c_str(), GetParam()));
  ASSERT_NE(cluster, nullptr);
  size_t i = 0;
  for (const TokenIds& prompt : prompts) EXPECT_EQ(AnswerOf(*cluster, prompt).ids, by_frames[i++]);
  EXPECT_EQ(LaneSteps(*cluster), 2 * (kTokens - 1));
  EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_lanes_failed_total"), 0);
}

// Sequences come and go: more requests than seats, of different lengths, some of which are given up.
TEST_P(Lanes, AnswersAreTheSameAloneOrInABatch) {
  const auto cluster = StartCluster(LaneFlags("winnow", GetParam()));
  ASSERT_NE(cluster, nullptr);
  std::vector<TokenIds> prompts, alone;
  for (size_t i = 0; i < 8; ++i) prompts.push_back(DemoText(100 + 250 * i, i));
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
  EXPECT_GT(LaneSteps(*cluster), 0);
  EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_lanes_failed_total"), 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

// Of sequences that the cache rank's GPU has no room for, rows are pushed from host memory and keys scored in the
// GPU's.
TEST(Lane, RowsMayLieInHostMemoryAndGoTheSameWay) {
  // Of three quarters of 190 MiB lanes take 131, and each of the sequences 6.8 MiB of rows and 1.8 of keys, or more:
  // there is room for half of one beside the keys of what is in host memory.
  constexpr double kMib = 1 << 20, kHostBytes = 28 * kMib;
  const auto start = [&](std::vector<std::string> more) {
    std::vector<std::string> flags = LaneFlags("winnow");
    flags.insert(flags.end(), more.begin(), more.end());
    return StartCluster(flags);
  };
  std::vector<TokenIds> prompts;
  for (size_t i = 0; i < 4; ++i) prompts.push_back(DemoText(1700 + 100 * i, i));
  const auto answers = [&](const Cluster& cluster) {
    std::vector<std::future<TokenIds>> together;
    for (const TokenIds& prompt : prompts) {
      together.push_back(std::async(std::launch::async, [&] { return IdsOf(cluster, prompt); }));
    }
    std::vector<TokenIds> ids;
    for (std::future<TokenIds>& answer : together) ids.push_back(answer.get());
    return ids;
  };
  const auto metric = [](const Cluster& cluster, const char* name, const Metrics::Labels& labels) {
    return cluster.MetricsOf("cache-0").Value(name, labels);
  };
  const auto seats = [&](const Cluster& cluster, const char* outcome) {
    return metric(cluster, "winnow_lane_seats_total", {{"outcome", outcome}});
  };
  std::vector<TokenIds> expected;
  {
    const auto cluster = start({});
    ASSERT_NE(cluster, nullptr);
    expected = answers(*cluster);
    EXPECT_EQ(seats(*cluster, "refused"), 0);
  }
  const auto cluster = start({"--cache-device-memory=190MiB", "--cache-device-host-memory=28MiB"});
  ASSERT_NE(cluster, nullptr);
  double most_used = 0;
  auto asked = std::async(std::launch::async, [&] { return answers(*cluster); });
  while (asked.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    most_used = std::max(most_used, metric(*cluster, "winnow_mirror_used_bytes", {{"tier", "host"}}));
  }
  EXPECT_EQ(asked.get(), expected);
  EXPECT_EQ(seats(*cluster, "granted"), 4);
  EXPECT_EQ(seats(*cluster, "refused"), 0);
  EXPECT_EQ(metric(*cluster, "winnow_mirror_capacity_bytes", {{"tier", "host"}}), kHostBytes);
  EXPECT_GT(most_used, 3 * kMib) << "half of a sequence at least";
  EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_lanes_failed_total"), 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

// A request with a selection of its own has no seat, and is answered beside those that have.
TEST(Lane, OtherSelectionsGoByFrames) {
  const auto cluster = StartCluster(LaneFlags("winnow"));
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  Json request = GreedyRequest(prompt, kTokens);
  request["winnow"] = {{"selection", "async-token"}};
  auto by_frames = std::async(std::launch::async, [&] { return Complete(cluster->http(), request); });
  const TokenIds on_lane = IdsOf(*cluster, prompt);
  const Completion completion = by_frames.get();
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(on_lane.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(LaneSteps(*cluster), kTokens - 1);
}

// The rows of a lane are in host memory, too: another inference rank goes on with them.
TEST_P(Lanes, AnotherRankGoesOnAfterOneIsKilled) {
  std::vector<std::string> flags = LaneFlags("depth", GetParam(), /*ranks=*/2);
  flags.push_back("--inference-ranks=2");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  const TokenIds alone = IdsOf(*cluster, prompt, 60);
  bool killed = false;
  const Completion completion = StreamCompletion(cluster->http(), GreedyRequest(prompt, 60), [&](size_t tokens) {
    if (tokens < 20 || std::exchange(killed, true)) return true;
    // The rank that has it is not known: the one that has run more steps since.
    const bool first = cluster->MetricsOf("inference-0").Value("winnow_num_requests_running") > 0;
    kill(cluster->Pids("inference-rank")[first ? 0 : 1], SIGKILL);
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_TRUE(killed);
  EXPECT_EQ(completion.ids, alone);
}

// Rows that were pushed lie on the cache rank, or are pushed again by the rank that takes over; and where a cache rank
// ends, by the one that had pushed them.
TEST_P(Lanes, APromptIsFinishedAfterARankIsKilledInTheMiddleOfIt) {
  for (const bool kills_cache : {false, true}) {
    std::vector<std::string> flags = LaneFlags("depth", GetParam(), kills_cache ? 1 : 2, kills_cache ? 1 : 0);
    if (!kills_cache) flags.push_back("--inference-ranks=2");
    flags.push_back("--prefill-chunk=64");
    const auto cluster = StartCluster(flags);
    ASSERT_NE(cluster, nullptr);
    const TokenIds prompt = DemoText(3500);
    auto answer =
        std::async(std::launch::async, [&] { return Complete(cluster->http(), GreedyRequest(prompt, kTokens)); });
    const auto chunks = [&](const char* rank) { return cluster->MetricsOf(rank).Value("winnow_prefill_chunks_total"); };
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto begun = [&] { return chunks("inference-0") >= 5 || (!kills_cache && chunks("inference-1") >= 5); };
    while (!begun() && std::chrono::steady_clock::now() < give_up) {
    }
    if (kills_cache) {
      const bool first = cluster->MetricsOf("cache-0").Value("winnow_sequences", {{"state", "active"}}) > 0;
      kill(cluster->Pids("cache-rank")[first ? 0 : 1], SIGKILL);
    } else {
      kill(cluster->Pids("inference-rank")[chunks("inference-0") >= 5 ? 0 : 1], SIGKILL);
    }
    const Completion completion = answer.get();
    ASSERT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, IdsOf(*cluster, prompt)) << (kills_cache ? "cache rank" : "inference rank");
  }
}

// Samples share the source's rows in host memory, and each has a mirror and a seat of its own.
TEST_P(Lanes, SamplesOfAPromptAreThoseOfRequestsOfTheirOwn) {
  constexpr uint32_t kSamples = 4;
  std::vector<std::string> flags = LaneFlags("winnow", GetParam());
  flags.push_back("--prefix-cache=false");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  GenerationClient client(*cluster);
  for (const uint32_t prompt_tokens : {997u, 40u}) {
    v1::GenerateRequest request = SamplesOf("", DemoText(prompt_tokens, 300), kSamples, kTokens);
    const Answer together = client.Generate(request)->Finish();
    ASSERT_TRUE(together.status.ok()) << together.status.error_message();
    request.set_n(1);
    for (uint32_t i = 0; i < kSamples; ++i) {
      request.mutable_sampling()->set_sample_index(i);
      const Answer alone = client.Generate(request)->Finish();
      ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
      EXPECT_EQ(together.ids(i), alone.ids()) << "sample " << i << " of " << prompt_tokens;
    }
  }
  const Metrics metrics = cluster->MetricsOf("inference-0");
  EXPECT_EQ(metrics.Value("winnow_rank_sequences_total", {{"outcome", "forked"}}), 2 * (kSamples - 1));
  EXPECT_EQ(metrics.Value("winnow_lane_steps_total"), metrics.Value("winnow_decode_steps_total"));
}

// The source goes on in its seat; what its lane has under way is part of what is forked.
TEST_P(Lanes, AForkOfARunningSequenceGoesOnFromItsToken) {
  constexpr uint32_t kLong = 90;
  for (const char* selection : {"winnow", "async-token"}) {
    const auto cluster = StartCluster(LaneFlags(selection, GetParam()));
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
    EXPECT_EQ(metrics.Value("winnow_lanes_failed_total"), 0);
  }
}

// A seat is given up with the working set, and another one is taken later.
TEST_P(Lanes, PreemptionChangesNoAnswer) {
  std::vector<std::string> flags = LaneFlags("winnow", GetParam());
  flags.push_back("--age-bound=20ms");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  std::vector<TokenIds> prompts, alone;
  for (size_t i = 0; i < 8; ++i) prompts.push_back(DemoText(500 + 100 * i, i));
  for (const TokenIds& prompt : prompts) alone.push_back(IdsOf(*cluster, prompt, 30));
  std::vector<std::future<Completion>> together;
  for (const TokenIds& prompt : prompts) {
    together.push_back(std::async(std::launch::async, [&] { return AnswerOf(*cluster, prompt, 30); }));
  }
  double preemptions = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Completion completion = together[i].get();
    EXPECT_EQ(completion.ids, alone[i]) << i;
    preemptions += completion.Stat("preempted_count");
  }
  EXPECT_GT(preemptions, 0);
  const Metrics metrics = cluster->MetricsOf("inference-0");
  EXPECT_EQ(metrics.Value("winnow_lanes_failed_total"), 0);
  EXPECT_EQ(metrics.Value("winnow_lane_steps_total"), metrics.Value("winnow_decode_steps_total"));
}

// A GPU error is final for an inference rank, and its sequences are where they were.
TEST_P(Lanes, AnotherRankGoesOnAfterAGpuHasFailed) {
  const TempDir folder;
  const std::string fault = folder.path() + "/fault";
  std::vector<std::string> flags = LaneFlags("depth", GetParam(), /*ranks=*/2);
  flags.push_back("--inference-ranks=2");
  const auto cluster = StartCluster(flags, {{"WINNOW_HOST_GPU_FAULT", fault}});
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  const TokenIds alone = IdsOf(*cluster, prompt, 60);
  const std::vector<pid_t> ranks = cluster->Pids("inference-rank");
  std::optional<size_t> failed;
  const Completion completion = StreamCompletion(cluster->http(), GreedyRequest(prompt, 60), [&](size_t tokens) {
    if (tokens < 20 || failed.has_value()) return true;
    failed = cluster->MetricsOf("inference-0").Value("winnow_num_requests_running") > 0 ? 0 : 1;
    std::ofstream(fault) << ranks[*failed];
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids, alone);
  EXPECT_GE(completion.Stat("reattach_count"), 1);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("GPU failure"));
  EXPECT_TRUE(WaitUntil(std::chrono::milliseconds(20'000), [&] { return !IsAlive(ranks[failed.value()]); }));
}

// A cache rank holds sequences in host memory, and goes on without its GPU.
TEST_P(Lanes, AnswersGoOnByFramesAfterACacheRanksGpuHasFailed) {
  const TempDir folder;
  const std::string fault = folder.path() + "/fault";
  const auto cluster = StartCluster(LaneFlags("depth", GetParam()), {{"WINNOW_HOST_GPU_FAULT", fault}});
  ASSERT_NE(cluster, nullptr);
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  const TokenIds alone = IdsOf(*cluster, prompt, 60);
  const pid_t cache_rank = cluster->Pids("cache-rank")[0];
  const Completion completion = StreamCompletion(cluster->http(), GreedyRequest(prompt, 60), [&](size_t tokens) {
    if (tokens == 20) std::ofstream(fault) << cache_rank;
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids, alone);
  EXPECT_GE(completion.Stat("reattach_count"), 1);
  EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_failovers_total", {{"mode", "recompute"}}), 0) << "rows lost";
  EXPECT_EQ(cluster->Pids("cache-rank")[0], cache_rank) << "it has not been started again";
  EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_lanes_failed_total"), 1);
  const std::string log = cluster->process().Log();
  EXPECT_THAT(log, HasSubstr("the lane to inference-0 has ended, its sequences go on by frames"));
  EXPECT_THAT(log, HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_THAT(log, HasSubstr("go by frames from now on: the lane has failed"));
}

// Digests of what is attended to are compared step by step.
TEST_P(Lanes, RowsThatAreDamagedOnTheWayEndTheLane) {
  const TempDir folder;
  const std::string flip = folder.path() + "/flip";
  const auto cluster = StartCluster(LaneFlags("depth", GetParam()), {{"WINNOW_HOST_GPU_FLIP", flip}});
  ASSERT_NE(cluster, nullptr);
  const Completion completion =
      StreamCompletion(cluster->http(), GreedyRequest(DemoCaseOfAtLeast(2000).prompt, 60), [&](size_t tokens) {
        if (tokens == 20) std::ofstream(flip) << "on";
        return true;
      });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids.size(), 60u);
  EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_lanes_failed_total"), 1);
  EXPECT_GE(LaneSteps(*cluster), 15);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("are not those that the cache rank holds"));
}

// What a cache rank loses is prefilled again at another one.
TEST_P(Lanes, AnAnswerEndsAfterItsCacheRankIsKilled) {
  const std::vector<std::string> flags = LaneFlags("depth", GetParam(), 1, /*spare_cache_ranks=*/1);
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  bool killed = false;
  const Completion completion = StreamCompletion(cluster->http(), GreedyRequest(DemoText(900), 40), [&](size_t tokens) {
    if (tokens < 15 || std::exchange(killed, true)) return true;
    const bool first = cluster->MetricsOf("cache-0").Value("winnow_sequences", {{"state", "active"}}) > 0;
    kill(cluster->Pids("cache-rank")[first ? 0 : 1], SIGKILL);
    return true;
  });
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_TRUE(killed);
  EXPECT_EQ(completion.ids.size(), 40u);
}

// Where a prompt was computed makes no difference to who decodes.
TEST_P(Lanes, ARankDecodesWhatAnotherHasPrefilled) {
  const TokenIds prompt = DemoCaseOfAtLeast(2000).prompt;
  TokenIds expected;
  {
    const auto cluster = StartCluster(LaneFlags("depth", GetParam()));
    ASSERT_NE(cluster, nullptr);
    expected = IdsOf(*cluster, prompt);
  }
  std::vector<std::string> flags = LaneFlags("depth", GetParam(), /*ranks=*/2);
  flags.push_back("--prefill-ranks=1");
  flags.push_back("--decode-ranks=1");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(IdsOf(*cluster, prompt), expected);
  EXPECT_EQ(cluster->MetricsOf("decode-0").Value("winnow_lane_steps_total"), kTokens - 1);
}

// The guard waits for verdicts, which no lane has.
TEST(Lane, GuardedSelectionsSayWhyTheyUseFrames) {
  const auto cluster = StartCluster(LaneFlags("depth,min_captured_mass=0.9"));
  ASSERT_NE(cluster, nullptr);
  const Completion completion = AnswerOf(*cluster, DemoText(900));
  EXPECT_GE(completion.Stat("captured_mass_mean"), 0.9);
  EXPECT_EQ(LaneSteps(*cluster), 0);
  EXPECT_THAT(cluster->process().Log(),
              HasSubstr("go by frames: a cache rank on a GPU cannot serve min_captured_mass and correction"));
}

// A lane carries the heads of one GPU to one cache rank; what is cut otherwise goes by frames, with what the prefix
// caches have of it, too.
TEST(Lane, ShardsOfOneGpusHeadsGoByFrames) {
  std::vector<std::string> flags = LaneFlags("depth", kPlacements[0], 1, /*spare_cache_ranks=*/1);
  flags.push_back("--cache-shards=2");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  const TokenIds first = IdsOf(*cluster, DemoText(900));
  EXPECT_EQ(first.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(IdsOf(*cluster, DemoText(900)), first);
  EXPECT_EQ(LaneSteps(*cluster), 0);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("of a sequence the cache rank holds 1 kv heads and a GPU of the "
                                                  "inference rank 2, and a lane carries those of one GPU to one"));
}

TEST(Lane, GpusThatShareACacheRankSayWhyTheyUseFrames) {
  const auto cluster =
      StartCluster({"--cache-device=cuda:2", "--transport=p2p", "--selection=depth", "--tensor-parallel=2"});
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(IdsOf(*cluster, DemoText(700)).size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(LaneSteps(*cluster), 0);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("of a sequence the cache rank holds 2 kv heads and a GPU of the "
                                                  "inference rank 1, and a lane carries those of one GPU to one"));
}

// GPUs that two ranks share take turns, and a lane cannot be.
TEST(Lane, RanksOfOneGpuSayWhyTheyUseFrames) {
  std::vector<std::string> flags = LaneFlags("depth");
  flags[0] = "--cache-device=cuda:0";
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  EXPECT_EQ(IdsOf(*cluster, DemoText(700)).size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(LaneSteps(*cluster), 0);
  EXPECT_THAT(cluster->process().Log(), HasSubstr("both use the same GPU"));
}

}  // namespace
}  // namespace winnow::e2e
