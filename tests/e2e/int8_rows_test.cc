// KV rows of int8 (--kv-dtype=int8): what a cluster does with rows, it does with these, and an answer depends on its
// request alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <map>

#include "tests/e2e/cluster.h"
#include "tests/e2e/disturbed_answers.h"
#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

constexpr int kTokens = 40;
// Of each scorer one, and one whose rows are attended to where they are stored.
const std::vector<Json> kSelections = {{{"selection", "winnow"}},
                                       {{"selection", "quest"}},
                                       {{"selection", "exact-token"}},
                                       {{"selection", "async-token,correction=remote,min_captured_mass=0.9"}},
                                       {{"selection", "dense"}}};

Json RequestFor(const Json& selection, int tokens = kTokens) {
  Json request = GreedyRequest(DemoCaseOfAtLeast(2000).prompt, tokens);
  request["winnow"] = selection;
  request["logprobs"] = 1;
  return request;
}
Json LogProbs(const Completion& completion) {
  return completion.choice.at("logprobs").at("token_logprobs");
}

std::unique_ptr<Cluster> StartWith(const std::vector<std::string>& more, const std::string& kv_dtype = "int8") {
  std::vector<std::string> flags = {"--kv-dtype=" + kv_dtype, "--budget=256", "--max-context=8192"};
  flags.insert(flags.end(), more.begin(), more.end());
  return StartOrFail(std::move(flags));
}

class Int8Rows : public testing::Test {
 protected:
  // Alone, on one process of each role, with nothing cached.
  static void SetUpTestSuite() {
    const auto cluster = StartWith({"--prefix-cache=false"});
    if (cluster == nullptr) return;
    for (const Json& selection : kSelections) {
      const Completion completion = Complete(cluster->http(), RequestFor(selection));
      ASSERT_TRUE(completion.ok()) << selection << ": " << completion.error;
      ASSERT_EQ(completion.ids.size(), static_cast<size_t>(kTokens));
      alone_.push_back(completion);
    }
    ASSERT_GT(alone_[0].Stat("streamed_rows"), 0) << "nothing was selected";
  }
  static void TearDownTestSuite() { alone_.clear(); }
  void SetUp() override { ASSERT_EQ(alone_.size(), kSelections.size()) << "the undisturbed run has failed"; }

  static void ExpectAlone(const Completion& completion, size_t selection) {
    SCOPED_TRACE(kSelections[selection].dump());
    ASSERT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, alone_[selection].ids);
    if (completion.choice.contains("logprobs") && !completion.choice.at("logprobs").is_null()) {
      EXPECT_EQ(LogProbs(completion), LogProbs(alone_[selection]));
    }
  }
  static void ExpectAloneFrom(const Cluster& cluster) {
    for (size_t i = 0; i < kSelections.size(); ++i) {
      ExpectAlone(Complete(cluster.http(), RequestFor(kSelections[i])), i);
    }
  }

  static std::vector<Completion> alone_;
};
std::vector<Completion> Int8Rows::alone_;

TEST_F(Int8Rows, AreWhatIsAttendedTo) {
  const auto cluster = StartWith({}, "bf16");
  ASSERT_NE(cluster, nullptr);
  const Completion bf16 = Complete(cluster->http(), RequestFor(kSelections.back()));
  ASSERT_TRUE(bf16.ok()) << bf16.error;
  EXPECT_NE(LogProbs(bf16), LogProbs(alone_.back()));
}

TEST_F(Int8Rows, GiveTheSameAnswersInABatchAndFromThePrefixCache) {
  const auto cluster = StartWith({});
  ASSERT_NE(cluster, nullptr);
  for (int repeat = 0; repeat < 2; ++repeat) {
    std::vector<std::future<Completion>> together;
    for (const Json& selection : kSelections) {
      together.push_back(std::async(std::launch::async, [&cluster, request = RequestFor(selection)] {
        return Complete(cluster->http(), request);
      }));
    }
    for (size_t i = 0; i < together.size(); ++i) {
      const Completion completion = together[i].get();
      ExpectAlone(completion, i);
      if (repeat == 1 && completion.ok()) {
        EXPECT_GE(completion.usage.at("prompt_tokens_details").at("cached_tokens").get<int>(), 1024);
      }
    }
  }
}

// With tiers, the keys of what selects lie beside the rows, in the fast one.
TEST_F(Int8Rows, GiveTheSameAnswersWhereverTheyLie) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--prefill-ranks=1", "--decode-ranks=1"},
                                                {"--fast-memory=24MiB"},
                                                {"--cache-ranks=2", "--cache-shards=2", "--prefill=layered"},
                                                {"--transport=inproc"}}) {
    SCOPED_TRACE(flags.front());
    const auto cluster = StartWith(flags);
    ASSERT_NE(cluster, nullptr);
    ExpectAloneFrom(*cluster);
  }
}

TEST_F(Int8Rows, AreForkedWithTheirSequence) {
  const auto cluster = StartWith({"--prefix-cache=false"});
  ASSERT_NE(cluster, nullptr);
  GenerationClient client(*cluster);
  const v1::GenerateRequest request = SamplesOf("winnow", DemoText(1217, 300), 3, kTokens);
  const Answer together = client.Generate(request)->Finish();
  ASSERT_TRUE(together.status.ok()) << together.status.error_message();
  EXPECT_EQ(cluster->MetricsOf("inference-0").Value("winnow_rank_sequences_total", {{"outcome", "forked"}}), 2);
  ExpectSamplesAreThoseAlone(client, request, together);
}

// Kills the rank of that role that is at work on the request when some tokens have come.
Completion AskWhileARankIsKilled(const Cluster& cluster, const std::string& role, const std::string& ranks,
                                 const std::string& gauge, const Metrics::Labels& labels, const Json& request) {
  const std::vector<pid_t> pids = cluster.Pids(role);
  size_t tokens_at_kill = 0;
  const Completion completion = StreamCompletion(cluster.http(), request, [&](size_t tokens) {
    for (size_t rank = 0; rank < pids.size() && tokens_at_kill == 0 && tokens >= 10; ++rank) {
      if (cluster.MetricsOf(ranks + std::to_string(rank)).Value(gauge, labels) < 1) continue;
      kill(pids[rank], SIGKILL);
      tokens_at_kill = tokens;
    }
    return true;
  });
  EXPECT_GT(tokens_at_kill, 0u) << "no rank was killed";
  EXPECT_LT(tokens_at_kill + 20, request.at("max_tokens").get<size_t>()) << "it was killed too late to matter";
  return completion;
}

TEST_F(Int8Rows, OutliveTheRankThatComputedThem) {
  constexpr int kLong = 300;
  for (const size_t selection : {0u, 2u}) {
    const auto cluster = StartWith({"--inference-ranks=2"});
    ASSERT_NE(cluster, nullptr);
    const Json request = RequestFor(kSelections[selection], kLong);
    const Completion undisturbed = Complete(cluster->http(), request);
    const Completion disturbed =
        AskWhileARankIsKilled(*cluster, "inference-rank", "inference-", "winnow_num_requests_running", {}, request);
    EXPECT_TRUE(disturbed.ok()) << disturbed.error;
    EXPECT_EQ(disturbed.ids, undisturbed.ids);
    EXPECT_GE(disturbed.Stat("reattach_count"), 1);
  }
}

TEST_F(Int8Rows, OutliveTheirCacheRankInAReplica) {
  constexpr int kLong = 300;
  const auto cluster = StartWith({"--cache-ranks=2", "--replicas=2"});
  ASSERT_NE(cluster, nullptr);
  const Json request = RequestFor(kSelections[0], kLong);
  const Completion undisturbed = Complete(cluster->http(), request);
  const Completion disturbed =
      AskWhileARankIsKilled(*cluster, "cache-rank", "cache-", "winnow_sequences", {{"state", "active"}}, request);
  EXPECT_TRUE(disturbed.ok()) << disturbed.error;
  EXPECT_EQ(disturbed.ids, undisturbed.ids);
}

TEST_F(Int8Rows, AreRefusedInWordsWhereTheyCannotBe) {
  const auto cluster = StartWith({});
  ASSERT_NE(cluster, nullptr);
  const Completion int4 = Complete(cluster->http(), RequestFor({{"selection", "winnow,key_copy=int4"}}));
  EXPECT_EQ(int4.status, 400);
  EXPECT_THAT(int4.error, testing::HasSubstr("KV rows are int8 (--kv-dtype), whose keys are scored as they are"));
}

}  // namespace
}  // namespace winnow::e2e
