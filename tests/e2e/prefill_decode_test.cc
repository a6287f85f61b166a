// With ranks for prefill and ranks that decode, every answer is that of a rank that does both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <map>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

constexpr int kTokens = 40;
constexpr std::array<const char*, 3> kPresets = {"dense", "winnow", "async-token"};

const TokenIds& Prompt() {
  return DemoCaseOfAtLeast(2000).prompt;
}

Json RequestFor(const std::string& preset, const TokenIds& prompt = Prompt(), int tokens = kTokens) {
  Json request = GreedyRequest(prompt, tokens);
  request["winnow"] = {{"selection", preset}};
  return request;
}

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--budget=256", "--max-context=8192"});
  return StartOrFail(std::move(flags));
}

struct BatchItem {
  std::string preset;
  TokenIds prompt;
};
std::vector<BatchItem> Batch() {
  std::vector<BatchItem> batch;
  for (size_t i = 0; i < 8; ++i) batch.push_back({kPresets[i % kPresets.size()], DemoText(600 + 300 * i, 3000 * i)});
  return batch;
}

std::vector<TokenIds> CompleteBatch(const Cluster& cluster) {
  std::vector<std::future<Completion>> completions;
  for (const BatchItem& item : Batch()) {
    completions.push_back(std::async(
        std::launch::async, [&, item] { return Complete(cluster.http(), RequestFor(item.preset, item.prompt)); }));
  }
  std::vector<TokenIds> ids;
  for (std::future<Completion>& future : completions) {
    const Completion completion = future.get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    ids.push_back(completion.ids);
  }
  return ids;
}

// What one inference rank and one cache rank answer.
struct Colocated {
  std::map<std::string, TokenIds> alone;
  std::vector<TokenIds> batch;
  TokenIds long_answer;
  TokenIds after_long_prompt;
};
constexpr int kLongAnswer = 240;
constexpr size_t kLongPrompt = 8000;  // takes many chunks

const Colocated& Reference() {
  static const Colocated reference = [] {
    Colocated answers;
    const auto cluster = StartCluster({});
    if (cluster == nullptr) return answers;
    for (const char* preset : kPresets) answers.alone[preset] = Complete(cluster->http(), RequestFor(preset)).ids;
    answers.batch = CompleteBatch(*cluster);
    answers.long_answer = Complete(cluster->http(), RequestFor("winnow", Prompt(), kLongAnswer)).ids;
    answers.after_long_prompt = Complete(cluster->http(), RequestFor("winnow", DemoText(kLongPrompt))).ids;
    return answers;
  }();
  return reference;
}

class PrefillDecode : public testing::TestWithParam<int> {};

TEST_P(PrefillDecode, AnswersAreThoseOfOneRank) {
  const Colocated& reference = Reference();
  const auto cluster =
      StartCluster({"--prefill-ranks=1", "--decode-ranks=1", "--cache-ranks=" + std::to_string(GetParam())});
  ASSERT_NE(cluster, nullptr);
  for (const char* preset : kPresets) {
    const Completion completion = Complete(cluster->http(), RequestFor(preset));
    EXPECT_TRUE(completion.ok()) << preset << ": " << completion.error;
    ASSERT_EQ(completion.ids.size(), static_cast<size_t>(kTokens)) << preset;
    EXPECT_EQ(completion.ids, reference.alone.at(preset)) << preset;
    EXPECT_EQ(completion.Stat("reattach_count"), 0) << preset << ": a hand-over is no failover";
  }
  EXPECT_EQ(CompleteBatch(*cluster), reference.batch);

  const double requests = kPresets.size() + Batch().size();
  const Metrics router = cluster->MetricsOf("router-0");
  EXPECT_EQ(router.Value("winnow_hand_overs_total"), requests);
  EXPECT_EQ(router.Value("winnow_hand_over_seconds_count"), requests);
  EXPECT_EQ(router.Value("winnow_failovers_total"), 0);
  EXPECT_EQ(router.Value("winnow_router_replayed_tokens_total"), 0);
  const Metrics prefill = cluster->MetricsOf("prefill-0");
  EXPECT_EQ(prefill.Value("winnow_decode_steps_total"), 0);
  EXPECT_EQ(prefill.Value("winnow_rank_generation_tokens_total"), requests);
  const Metrics decode = cluster->MetricsOf("decode-0");
  EXPECT_EQ(decode.Value("winnow_rank_prompt_tokens_total"), 0);
  EXPECT_EQ(decode.Value("winnow_rank_generation_tokens_total"), requests * (kTokens - 1));
  // Nothing is left behind anywhere.
  EXPECT_TRUE(WaitUntil(milliseconds(10'000), [&] {
    double sequences = 0;
    for (int i = 0; i < GetParam(); ++i) {
      sequences += cluster->MetricsOf("cache-" + std::to_string(i)).Value("winnow_sequences");
    }
    return sequences == 0;
  }));
}

INSTANTIATE_TEST_SUITE_P(CacheRanks, PrefillDecode, testing::Values(1, 2));

// What it gets of a prompt is sinks, recent rows and what its few steps select.
TEST(PrefillDecodeRanks, TheOneThatDecodesNeverSeesAllOfThePrompt) {
  const auto cluster = StartCluster({"--prefill-ranks=1", "--decode-ranks=1"});
  ASSERT_NE(cluster, nullptr);
  const auto bytes = [&](const char* rank, const char* direction) {
    return cluster->MetricsOf(rank).Value("winnow_kv_stream_bytes_total", {{"direction", direction}});
  };
  const Completion completion = Complete(cluster->http(), RequestFor("winnow", DemoText(kLongPrompt), 4));
  ASSERT_TRUE(completion.ok()) << completion.error;
  const double prompt = bytes("prefill-0", "sent");
  EXPECT_GT(prompt, 0);
  EXPECT_GT(bytes("decode-0", "received"), 0);
  EXPECT_LT(bytes("decode-0", "received"), prompt / 4);
  EXPECT_LT(completion.Stat("resident_rows"), kLongPrompt / 4);
}

TEST(PrefillDecodeRanks, ShortPromptsStayOnTheRankThatDecodes) {
  const auto cluster = StartCluster({"--prefill-ranks=1", "--decode-ranks=1", "--decode-prefill-tokens=100"});
  ASSERT_NE(cluster, nullptr);
  EXPECT_TRUE(Complete(cluster->http(), RequestFor("winnow", DemoText(100))).ok());
  EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_hand_overs_total"), 0);
  EXPECT_TRUE(Complete(cluster->http(), RequestFor("winnow", DemoText(101))).ok());
  EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_hand_overs_total"), 1);
  EXPECT_EQ(cluster->MetricsOf("decode-0").Value("winnow_rank_prompt_tokens_total"), 100);
}

// Clients go when the first token comes, about when the sequence changes ranks, or with one of the next few, which come
// from the second rank.
TEST(PrefillDecodeRanks, ARequestThatIsGivenUpLeavesNothingBehind) {
  const auto cluster = StartCluster({"--prefill-ranks=1", "--decode-ranks=1"});
  ASSERT_NE(cluster, nullptr);
  std::vector<std::future<void>> clients;
  for (int client = 0; client < 4; ++client) {
    clients.push_back(std::async(std::launch::async, [&, client] {
      for (int i = 0; i < 5; ++i) {
        StreamCompletion(cluster->http(), RequestFor("winnow", DemoText(600, 100 * (5 * client + i)), 1000),
                         [client](size_t tokens) { return tokens <= static_cast<size_t>(client); });
      }
    }));
  }
  for (std::future<void>& client : clients) client.get();
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] {
    return cluster->MetricsOf("cache-0").Value("winnow_sequences") == 0 &&
           cluster->MetricsOf("decode-0").Value("winnow_num_requests_running") == 0 &&
           cluster->MetricsOf("prefill-0").Value("winnow_queued_prompt_tokens") == 0;
  }));
  EXPECT_GT(cluster->MetricsOf("router-0").Value("winnow_hand_overs_total"), 0);
}

TEST(PrefillDecodeRanks, ALostRankThatDecodesLeavesNoTraceInTheAnswer) {
  const auto cluster = StartCluster({"--prefill-ranks=1", "--decode-ranks=1"});
  ASSERT_NE(cluster, nullptr);
  const pid_t decode = cluster->Pids("inference-rank").at(1);
  bool killed = false;
  const Completion completion =
      StreamCompletion(cluster->http(), RequestFor("winnow", Prompt(), kLongAnswer), [&](size_t tokens) {
        if (!killed && tokens >= 10) killed = kill(decode, SIGKILL) == 0;
        return true;
      });
  ASSERT_TRUE(killed);
  EXPECT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids, Reference().long_answer);
  EXPECT_GE(completion.Stat("reattach_count"), 1);
  const Metrics router = cluster->MetricsOf("router-0");
  EXPECT_GE(router.Value("winnow_failovers_total", {{"mode", "reattach"}}), 1);
  EXPECT_EQ(router.Value("winnow_router_mismatched_tokens_total"), 0);
}

TEST(PrefillDecodeRanks, ALostRankForPrefillLeavesNoTraceInTheAnswer) {
  const auto cluster = StartCluster({"--prefill-ranks=1", "--decode-ranks=1"});
  ASSERT_NE(cluster, nullptr);
  const pid_t prefill = cluster->Pids("inference-rank").at(0);
  auto completion = std::async(std::launch::async,
                               [&] { return Complete(cluster->http(), RequestFor("winnow", DemoText(kLongPrompt))); });
  ASSERT_TRUE(WaitUntil(milliseconds(30'000),
                        [&] { return cluster->MetricsOf("prefill-0").Value("winnow_queued_prompt_tokens") > 0; }));
  ASSERT_EQ(kill(prefill, SIGKILL), 0);
  const Completion disturbed = completion.get();
  EXPECT_TRUE(disturbed.ok()) << disturbed.error;
  ASSERT_EQ(disturbed.ids.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(disturbed.ids, Reference().after_long_prompt);
  const Metrics router = cluster->MetricsOf("router-0");
  EXPECT_GE(router.Value("winnow_failovers_total"), 1) << "it was killed too late to matter";
  EXPECT_EQ(router.Value("winnow_router_mismatched_tokens_total"), 0);
}

}  // namespace
}  // namespace winnow::e2e
