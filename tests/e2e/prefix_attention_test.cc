// How a prompt attends to its cached prefix decides what travels, and changes no bit of any answer.
#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <map>

#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

constexpr int kTokens = 24;
constexpr size_t kPrefix = 2000;

std::unique_ptr<Cluster> StartCluster(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--budget=256", "--max-context=8192"});
  return StartOrFail(std::move(flags));
}

// Log probabilities come with the tokens: they tell what rounding alone would change.
Json RequestFor(const std::string& preset, const TokenIds& prompt, int tokens = kTokens) {
  Json request = GreedyRequest(prompt, tokens);
  request["winnow"] = {{"selection", preset}};
  request["logprobs"] = 3;
  return request;
}

TokenIds PrefixWithTail(size_t tail) {
  TokenIds prompt = DemoText(kPrefix);
  const TokenIds more = DemoText(tail, 20'000 + 100 * tail);
  prompt.insert(prompt.end(), more.begin(), more.end());
  return prompt;
}

// The prompt that brings the prefix, then what is asked after it.
std::vector<std::pair<std::string, TokenIds>> Asked() {
  std::vector<std::pair<std::string, TokenIds>> asked;
  for (const char* preset : {"winnow", "async-token", "dense"}) {
    for (const size_t tail : {0, 16, 130, 700}) asked.emplace_back(preset, PrefixWithTail(tail));
  }
  return asked;
}

struct Answer {
  TokenIds ids;
  Json logprobs;
  double streamed_rows = 0;
};

// The answers of a cluster whose cache has the prefix from a first prompt on.
std::vector<Answer> Answers(const Cluster& cluster, bool together) {
  for (const char* preset : {"winnow", "async-token", "dense"}) {
    // A few tokens, so that the prompt is in the cache when the next one asks.
    EXPECT_TRUE(Complete(cluster.http(), RequestFor(preset, DemoText(kPrefix), 4)).ok());
  }
  std::vector<std::future<Completion>> completions;
  std::vector<Answer> answers;
  const auto take = [&](const Completion& completion) {
    EXPECT_TRUE(completion.ok()) << completion.error;
    if (!completion.ok()) return;
    EXPECT_GT(completion.usage.at("prompt_tokens_details").at("cached_tokens").get<uint32_t>(), 1800u);
    answers.push_back({completion.ids, completion.choice.at("logprobs"), completion.Stat("streamed_rows")});
  };
  for (const auto& [preset, prompt] : Asked()) {
    const auto complete = [&cluster, request = RequestFor(preset, prompt)] {
      return Complete(cluster.http(), request);
    };
    if (together) {
      completions.push_back(std::async(std::launch::async, complete));
    } else {
      take(complete());
    }
  }
  for (std::future<Completion>& completion : completions) take(completion.get());
  return answers;
}

// Of all inference ranks.
double SumOf(const Cluster& cluster, const char* name, const std::string& way) {
  double sum = 0;
  for (const std::string& rank : cluster.ranks()) {
    if (rank.starts_with("router") || rank.starts_with("cache")) continue;
    sum += cluster.MetricsOf(rank).Value(name, {{"way", way}});
  }
  return sum;
}
double Prompts(const Cluster& cluster, const std::string& way) {
  return SumOf(cluster, "winnow_prefix_attention_prompts_total", way);
}

const std::vector<Answer>& Reference() {
  static const std::vector<Answer> reference = [] {
    const auto cluster = StartCluster({"--prefix-attention=stream-back"});
    if (cluster == nullptr) return std::vector<Answer>();
    std::vector<Answer> answers = Answers(*cluster, /*together=*/false);
    EXPECT_EQ(Prompts(*cluster, "remote"), 0);
    EXPECT_GE(Prompts(*cluster, "stream-back"), static_cast<double>(answers.size()));
    return answers;
  }();
  return reference;
}

void ExpectReference(const std::vector<Answer>& answers, bool all_alike = true) {
  const std::vector<Answer>& reference = Reference();
  ASSERT_EQ(answers.size(), reference.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    SCOPED_TRACE(Asked()[i].first + " with " + std::to_string(Asked()[i].second.size()) + " tokens");
    EXPECT_EQ(answers[i].ids, reference[i].ids);
    EXPECT_EQ(answers[i].logprobs, reference[i].logprobs);
    EXPECT_TRUE(!all_alike || answers[i].streamed_rows == reference[i].streamed_rows);
  }
}

struct Setting {
  const char* name;
  std::vector<std::string> flags;
  bool dense_too = false;  // prompts of which the rank keeps nothing
};

class RemotePrefixAttention : public testing::TestWithParam<Setting> {};

TEST_P(RemotePrefixAttention, AnswersAreThoseOfStreamBack) {
  std::vector<std::string> flags = GetParam().flags;
  flags.push_back("--prefix-attention=remote");
  const auto cluster = StartCluster(flags);
  ASSERT_NE(cluster, nullptr);
  ExpectReference(Answers(*cluster, /*together=*/false));
  // Decoding of dense begins with all rows: they come in any case.
  const double all = static_cast<double>(Asked().size()), dense = GetParam().dense_too ? 0 : all / 3;
  EXPECT_GE(Prompts(*cluster, "remote"), all - dense);
  EXPECT_GE(Prompts(*cluster, "stream-back"), dense);
  EXPECT_LE(Prompts(*cluster, "stream-back"), dense + (dense > 0)) << "with the prompt that brought the prefix";
  EXPECT_GT(SumOf(*cluster, "winnow_prefix_attention_bytes_total", "remote"), 0);
  EXPECT_TRUE(cluster->Stop().ok());
}

INSTANTIATE_TEST_SUITE_P(
    Settings, RemotePrefixAttention,
    testing::Values(Setting{"chunked", {"--prefill=chunked"}},
                    Setting{"small_chunks", {"--prefill=chunked", "--prefill-chunk=48", "--threads=2"}},
                    Setting{"layered", {"--prefill=layered", "--prefill-chunk=96"}},
                    Setting{"two_shards", {"--cache-ranks=2", "--cache-shards=2"}},
                    Setting{"four_shards_layered", {"--cache-ranks=4", "--cache-shards=4", "--prefill=layered"}},
                    Setting{"tiers", {"--fast-memory=24MiB"}},
                    Setting{"prefill_decode",
                            {"--prefill-ranks=1", "--decode-ranks=1", "--decode-prefill-tokens=0"},
                            /*dense_too=*/true}),
    [](const auto& info) { return info.param.name; });

TEST(PrefixAttention, PromptsBesideStreamsAreAnsweredAlike) {
  const auto cluster = StartCluster({"--prefix-attention=remote", "--max-inject-tokens=24"});
  ASSERT_NE(cluster, nullptr);
  ExpectReference(Answers(*cluster, /*together=*/true), /*all_alike=*/false);
  EXPECT_GT(Prompts(*cluster, "remote"), 0);
}

// Which way a short tail takes depends on the machine; a long one would move more bytes, and its attention takes no
// less elsewhere.
TEST(PrefixAttention, AutoStreamsBackBeforeLongTails) {
  const auto cluster = StartCluster({});
  ASSERT_NE(cluster, nullptr);
  ASSERT_TRUE(Complete(cluster->http(), RequestFor("winnow", DemoText(kPrefix), 4)).ok());
  ASSERT_TRUE(Complete(cluster->http(), RequestFor("winnow", PrefixWithTail(16), 1)).ok());
  const double streamed_back = Prompts(*cluster, "stream-back");
  EXPECT_EQ(Prompts(*cluster, "remote") + streamed_back, 1);
  ASSERT_TRUE(Complete(cluster->http(), RequestFor("winnow", PrefixWithTail(5000), 1)).ok());
  EXPECT_EQ(Prompts(*cluster, "stream-back"), streamed_back + 1);
}

// The KV is gone in the middle of the prompt: it is computed again elsewhere, as after any loss of a cache rank.
TEST(PrefixAttention, ALostCacheRankIsPrefilledAgain) {
  const TokenIds prompt = PrefixWithTail(5000);
  const auto cluster = StartCluster({"--prefix-attention=remote", "--prefill-chunk=64"});
  ASSERT_NE(cluster, nullptr);
  ASSERT_TRUE(Complete(cluster->http(), RequestFor("winnow", DemoText(kPrefix), 4)).ok());
  const pid_t cache_rank = cluster->Pids("cache-rank").at(0);
  auto completion =
      std::async(std::launch::async, [&] { return Complete(cluster->http(), RequestFor("winnow", prompt)); });
  const bool begun = WaitUntil(milliseconds(20'000), [&] {
    return cluster->MetricsOf("cache-0").Value("winnow_prefix_attention_queries_total") > 500;
  });
  const bool waits = completion.wait_for(milliseconds(0)) != std::future_status::ready;
  kill(cache_rank, SIGKILL);
  const Completion answer = completion.get();
  ASSERT_TRUE(begun && waits) << "the case must kill within the prompt";
  ASSERT_TRUE(answer.ok()) << answer.error;
  EXPECT_GE(cluster->MetricsOf("router-0").Value("winnow_failovers_total", {{"mode", "recompute"}}), 1);
  const Completion again = Complete(cluster->http(), RequestFor("winnow", prompt));
  ASSERT_TRUE(again.ok()) << again.error;
  EXPECT_EQ(answer.ids, again.ids);
  EXPECT_EQ(answer.choice.at("logprobs"), again.choice.at("logprobs"));
}

}  // namespace
}  // namespace winnow::e2e
