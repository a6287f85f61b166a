// A sequence whose KV is spread over several cache ranks is answered as if one held it all, whatever happens to ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <map>

#include "tests/e2e/cluster.h"
#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

constexpr int kTokens = 40;
// The demo model has 2 kv heads and 8 layers: 2 shards are its heads, 4 are halves of their layers.
constexpr int kMostShards = 4;

const std::map<std::string, Json>& Selections() {
  static const std::map<std::string, Json> selections = {
      {"winnow", {{"selection", "winnow"}}},
      {"depth", {{"selection", "depth"}}},
      {"async-token", {{"selection", "async-token"}}},
      {"exact-token", {{"selection", "exact-token"}}},
      {"two-stage", {{"selection", "exact-token,scorer=two-stage,min_candidate_tokens=0"}}},
      {"sparseserve", {{"selection", "sparseserve"}}},
      {"hisparse", {{"selection", "hisparse"}}},
      {"quest", {{"selection", "quest"}}},
      {"psa", {{"selection", "psa"}}},
      {"lserve", {{"selection", "lserve,profile_use=none"}}},
      {"guarded", {{"selection", "depth"}, {"min_captured_mass", 0.9}}},
      {"dense", {{"selection", "dense"}}},
  };
  return selections;
}

Json RequestFor(const Json& selection, const TokenIds& prompt, int tokens = kTokens) {
  Json request = GreedyRequest(prompt, tokens);
  request["winnow"] = selection;
  return request;
}

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--budget=256", "--max-context=8192"});
  return StartOrFail(std::move(flags));
}

std::vector<std::string> ShardFlags(int shards, std::vector<std::string> more = {}) {
  more.push_back("--cache-ranks=" + std::to_string(shards));
  more.push_back("--cache-shards=" + std::to_string(shards));
  return more;
}

const TokenIds& Prompt() {
  return DemoCaseOfAtLeast(2000).prompt;
}

// Several selections at once, so that rows of a step differ.
std::vector<Json> Batch() {
  std::vector<Json> batch;
  size_t i = 0;
  for (const auto& [name, selection] : Selections()) {
    batch.push_back(RequestFor(selection, DemoText(600 + 200 * i, 2000 * i)));
    ++i;
  }
  return batch;
}

std::vector<TokenIds> CompleteAll(const Cluster& cluster, const std::vector<Json>& requests) {
  std::vector<std::future<Completion>> completions;
  for (const Json& request : requests) {
    completions.push_back(std::async(std::launch::async, [&] { return Complete(cluster.http(), request); }));
  }
  std::vector<TokenIds> ids;
  for (std::future<Completion>& future : completions) {
    const Completion completion = future.get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    ids.push_back(completion.ids);
  }
  return ids;
}

constexpr int kLongAnswer = 240;

// What one inference rank and one cache rank answer.
struct Unsharded {
  std::map<std::string, TokenIds> alone;
  std::vector<TokenIds> batch;
  TokenIds long_answer;
  double blocks = 0;  // of one sequence
};

double BlocksOf(const Cluster& cluster, const std::string& rank) {
  const Metrics metrics = cluster.MetricsOf(rank);
  return metrics.Value("winnow_kv_blocks", {{"state", "used"}}) +
         metrics.Value("winnow_kv_blocks", {{"state", "reserved"}});
}

// Completes `request` and looks at the cluster while it runs.
Completion Watch(const Cluster& cluster, const Json& request, const std::function<void()>& look) {
  bool looked = false;
  return StreamCompletion(cluster.http(), request, [&](size_t tokens) {
    if (!looked && tokens >= 10) {
      look();
      looked = true;
    }
    return true;
  });
}

const Unsharded& Reference() {
  static const Unsharded reference = [] {
    Unsharded answers;
    const auto cluster = StartCluster({"--prefix-cache=false"});
    if (cluster == nullptr) return answers;
    for (const auto& [name, selection] : Selections()) {
      const Completion completion = Complete(cluster->http(), RequestFor(selection, Prompt()));
      EXPECT_TRUE(completion.ok()) << name << ": " << completion.error;
      const bool selects = name != "dense";
      EXPECT_EQ(completion.Stat("streamed_rows") > 0, selects) << name;
      answers.alone[name] = completion.ids;
    }
    answers.batch = CompleteAll(*cluster, Batch());
    const Json longest = RequestFor(Selections().at("winnow"), Prompt(), kLongAnswer);
    answers.long_answer = Watch(*cluster, longest, [&] { answers.blocks = BlocksOf(*cluster, "cache-0"); }).ids;
    return answers;
  }();
  return reference;
}

double SequencesOn(const Cluster& cluster, int shards) {
  double sequences = 0;
  for (int i = 0; i < shards; ++i)
    sequences += cluster.MetricsOf("cache-" + std::to_string(i)).Value("winnow_sequences");
  return sequences;
}

class Sharded : public testing::TestWithParam<int> {
 protected:
  static int shards() { return GetParam(); }
};

TEST_P(Sharded, AnswersAreThoseOfOneCacheRank) {
  const Unsharded& reference = Reference();
  const auto cluster = StartCluster(ShardFlags(shards(), {"--prefix-cache=false"}));
  ASSERT_NE(cluster, nullptr);
  for (const auto& [name, selection] : Selections()) {
    const Completion completion = Complete(cluster->http(), RequestFor(selection, Prompt()));
    EXPECT_TRUE(completion.ok()) << name << ": " << completion.error;
    EXPECT_EQ(completion.ids, reference.alone.at(name)) << name;
  }
  EXPECT_EQ(CompleteAll(*cluster, Batch()), reference.batch);

  std::vector<double> blocks, held;
  const Json longest = RequestFor(Selections().at("winnow"), Prompt(), kLongAnswer);
  const Completion watched = Watch(*cluster, longest, [&] {
    for (int i = 0; i < shards(); ++i) {
      const std::string rank = "cache-" + std::to_string(i);
      blocks.push_back(BlocksOf(*cluster, rank));
      held.push_back(cluster->MetricsOf(rank).Value("winnow_cache_shards"));
    }
  });
  EXPECT_EQ(watched.ids, reference.long_answer);
  ASSERT_EQ(blocks.size(), static_cast<size_t>(shards()));
  for (int i = 0; i < shards(); ++i) {
    EXPECT_EQ(blocks[i] * shards(), reference.blocks) << "cache-" << i << " holds its part alone";
    EXPECT_EQ(held[i], 1) << "cache-" << i;
  }
  EXPECT_TRUE(WaitUntil(milliseconds(10'000), [&] { return SequencesOn(*cluster, shards()) == 0; }));
}

TEST_P(Sharded, PrefixesAndSamplesAreShared) {
  const auto cluster = StartCluster(ShardFlags(shards()));
  ASSERT_NE(cluster, nullptr);
  for (const char* name : {"winnow", "async-token"}) {
    const Json request = RequestFor(Selections().at(name), Prompt());
    EXPECT_EQ(Complete(cluster->http(), request).ids, Reference().alone.at(name)) << name;
    const Completion again = Complete(cluster->http(), request);
    EXPECT_EQ(again.ids, Reference().alone.at(name)) << name;
    EXPECT_GT(again.usage.at("prompt_tokens_details").at("cached_tokens").get<uint32_t>(), Prompt().size() - 200)
        << name;
  }
  Json samples = RequestFor(Selections().at("exact-token"), Prompt());
  samples["n"] = 3;
  const Json answer = cluster->http().Post("/v1/completions", samples).json();
  ASSERT_TRUE(answer.contains("choices")) << answer;
  ASSERT_EQ(answer.at("choices").size(), 3u) << answer;
  for (const Json& choice : answer.at("choices")) {
    EXPECT_EQ(choice.at("token_ids").get<TokenIds>(), Reference().alone.at("exact-token"));
  }
  const Metrics rank = cluster->MetricsOf("inference-0");
  EXPECT_EQ(rank.Value("winnow_rank_sequences_total", {{"outcome", "forked"}}), 2);
}

// Of selections whose state beside rows and keys differs: none, past queries, reused anchors with streaming heads, the
// guard's.
TEST_P(Sharded, RunningRequestsAreForked) {
  constexpr uint32_t kLong = 300;  // it still runs when both have forked it
  const auto cluster = StartCluster(ShardFlags(shards(), {"--prefix-cache=false"}));
  ASSERT_NE(cluster, nullptr);
  GenerationClient client(*cluster);
  double forks = 0;
  for (const char* selection : {"winnow", "async-token", "sparseserve", "lserve,profile_use=none", "dense"}) {
    v1::GenerateRequest request = SamplesOf(selection, DemoText(1500, 900), 1, kLong);
    const Answer undisturbed = client.Generate(request)->Finish();
    ASSERT_TRUE(undisturbed.status.ok()) << selection << ": " << undisturbed.status.error_message();
    request.set_request_id(std::string("source-") + selection);
    const auto source = client.Generate(request);
    ASSERT_TRUE(source->ReadUntil(10)) << selection;
    v1::ForkRequest fork;
    fork.set_source_request_id(request.request_id());
    fork.set_sample_index(0);
    const auto twin = client.Fork(fork);
    ASSERT_TRUE(twin->WaitForAccepted()) << selection;
    fork.set_sample_index(7);
    const auto other = client.Fork(fork);
    for (Call* call : {source.get(), twin.get(), other.get()}) {
      ASSERT_TRUE(call->Finish().status.ok()) << selection << ": " << call->answer().status.error_message();
      EXPECT_EQ(call->answer().outputs.at(0).reason, v1::FINISH_REASON_LENGTH) << selection;
      EXPECT_FALSE(call->answer().outputs.at(0).has_gaps) << selection;
    }
    EXPECT_EQ(source->answer().ids(), undisturbed.ids()) << selection;
    TokenIds joined(undisturbed.ids().begin(), undisturbed.ids().begin() + twin->answer().accepted.forked_tokens());
    joined.insert(joined.end(), twin->answer().ids().begin(), twin->answer().ids().end());
    EXPECT_EQ(joined, undisturbed.ids()) << selection << ": the same random numbers";
    EXPECT_EQ(other->answer().accepted.forked_tokens() + other->answer().ids().size(), kLong) << selection;
    EXPECT_NE(other->answer().ids(),
              TokenIds(undisturbed.ids().end() - static_cast<ptrdiff_t>(other->answer().ids().size()),
                       undisturbed.ids().end()))
        << selection;
    forks += 2;
    EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_rank_sequences_total", {{"outcome", "forked"}}), forks)
        << selection;
  }
  for (int i = 0; i < shards(); ++i) {
    const Metrics cache = cluster->MetricsOf("cache-" + std::to_string(i));
    EXPECT_EQ(cache.Value("winnow_sequence_events_total", {{"event", "forked"}}), forks) << "cache-" << i;
    EXPECT_EQ(cache.Value("winnow_rows_refused_total"), 0) << "cache-" << i;
  }
  EXPECT_TRUE(WaitUntil(milliseconds(10'000), [&] { return SequencesOn(*cluster, shards()) == 0; }));
}

TEST_P(Sharded, ALostInferenceRankLeavesNoTrace) {
  const auto cluster = StartCluster(ShardFlags(shards(), {"--inference-ranks=2"}));
  ASSERT_NE(cluster, nullptr);
  const std::vector<pid_t> pids = cluster->Pids("inference-rank");
  ASSERT_EQ(pids.size(), 2u);
  const Json request = RequestFor(Selections().at("winnow"), Prompt(), kLongAnswer);
  const Completion disturbed = Watch(*cluster, request, [&] {
    const bool first = cluster->MetricsOf("inference-0").Value("winnow_num_requests_running") >= 1;
    kill(pids[first ? 0 : 1], SIGKILL);
  });
  EXPECT_TRUE(disturbed.ok()) << disturbed.error;
  EXPECT_EQ(disturbed.ids, Reference().long_answer);
  EXPECT_GE(disturbed.Stat("reattach_count"), 1);
  const Metrics router = cluster->MetricsOf("router-0");
  EXPECT_EQ(router.Value("winnow_failovers_total", {{"mode", "recompute"}}), 0);
  EXPECT_EQ(router.Value("winnow_router_mismatched_tokens_total"), 0);
}

// Its part of the KV is gone: the prompt is computed again, and what the others have is freed long before its time.
TEST_P(Sharded, ALostCacheRankIsPrefilledAgain) {
  const auto cluster = StartCluster(ShardFlags(shards()));
  ASSERT_NE(cluster, nullptr);
  const Json request = RequestFor(Selections().at("winnow"), Prompt(), 100);
  const Completion completion = Watch(*cluster, request, [&] { kill(cluster->Pids("cache-rank").at(0), SIGKILL); });
  EXPECT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids.size(), 100u);
  EXPECT_GE(cluster->MetricsOf("router-0").Value("winnow_failovers_total", {{"mode", "recompute"}}), 1);
  EXPECT_TRUE(WaitUntil(milliseconds(10'000), [&] { return SequencesOn(*cluster, shards()) == 0; }))
      << "shards of the first attempt wait for nobody";
  EXPECT_GE(cluster->MetricsOf("router-0").Value("winnow_router_sequences_given_up_total"), 1);
}

TEST_P(Sharded, PromptsAreHandedOver) {
  const auto cluster = StartCluster(ShardFlags(shards(), {"--prefill-ranks=1", "--decode-ranks=1"}));
  ASSERT_NE(cluster, nullptr);
  for (const char* name : {"winnow", "async-token", "dense"}) {
    const Completion completion = Complete(cluster->http(), RequestFor(Selections().at(name), Prompt()));
    EXPECT_TRUE(completion.ok()) << name << ": " << completion.error;
    EXPECT_EQ(completion.ids, Reference().alone.at(name)) << name;
  }
  EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_hand_overs_total"), 3);
  EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_failovers_total"), 0);
  EXPECT_TRUE(WaitUntil(milliseconds(10'000), [&] { return SequencesOn(*cluster, shards()) == 0; }));
}

// Each cache rank predicts for its heads and layers, from residuals, with the model's projections.
TEST_P(Sharded, CacheRanksProjectQueriesOfTheirShards) {
  const std::string selection = "--selection=depth,projection=cache-rank";
  const auto cluster = StartCluster(ShardFlags(shards(), {selection, "--prefill=layered"}));
  ASSERT_NE(cluster, nullptr);
  Json request = GreedyRequest(Prompt(), kTokens);
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second time rows of the prefix come layer by layer
    const Completion completion = Complete(cluster->http(), request);
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, Reference().alone.at("depth"));
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, Sharded, testing::Values(2, kMostShards));

// A sequence that no cache rank has room for alone is spread over two, and no other one is.
TEST(ShardedAutomatically, OnlyWhatDoesNotFitOneCacheRank) {
  const auto cluster = StartCluster(
      {"--cache-ranks=2", "--cache-shards=auto", "--cache-memory=24MiB", "--prefix-cache=false", "--slow-start=0s"});
  ASSERT_NE(cluster, nullptr);
  const auto shards_held = [&] {
    return cluster->MetricsOf("cache-0").Value("winnow_cache_shards") +
           cluster->MetricsOf("cache-1").Value("winnow_cache_shards");
  };
  const Json selection = Selections().at("winnow");
  double held = -1;
  EXPECT_TRUE(Watch(*cluster, RequestFor(selection, DemoText(600), 100), [&] { held = shards_held(); }).ok());
  EXPECT_EQ(held, 0);
  const Completion large = Watch(*cluster, RequestFor(selection, DemoText(7000), 100), [&] { held = shards_held(); });
  EXPECT_TRUE(large.ok()) << large.error;
  EXPECT_EQ(held, 2);
}

}  // namespace
}  // namespace winnow::e2e
