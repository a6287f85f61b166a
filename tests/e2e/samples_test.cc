// Samples of one prompt, and forks of what is being decoded, share what is stored; and nothing but the costs tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "tests/e2e/generation_calls.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"

namespace winnow::e2e {
namespace {

using testing::ElementsAreArray;

constexpr uint32_t kTokens = 40;

struct TwoOfEach {
  static Cluster::Options Options() {
    return {.flags = {"--inference-ranks=2", "--cache-ranks=2", "--budget=256", "--max-context=8192",
                      "--prefix-cache=false"}};
  }
};

double Sum(const Cluster& cluster, const std::string& role, const std::string& name,
           const Metrics::Labels& labels = {}) {
  double sum = 0;
  for (const std::string& rank : cluster.ranks()) {
    if (rank.starts_with(role)) sum += cluster.MetricsOf(rank).Value(name, labels);
  }
  return sum;
}

class Samples : public SharedCluster<TwoOfEach>, public testing::WithParamInterface<const char*> {
 protected:
  static double Computed() { return Sum(*cluster_, "inference", "winnow_rank_prompt_tokens_total"); }
  static double Forked() { return Sum(*cluster_, "inference", "winnow_rank_sequences_total", {{"outcome", "forked"}}); }
};

TEST_P(Samples, EachIsTheSameAloneAndThePromptIsComputedOnce) {
  constexpr uint32_t kSamples = 6;
  for (const uint32_t prompt_tokens : {1217u, 7u, 1u}) {
    const TokenIds prompt = DemoText(prompt_tokens, 300);
    v1::GenerateRequest request = SamplesOf(GetParam(), prompt, kSamples, kTokens);
    GenerationClient client(*cluster_);
    const double computed = Computed(), forked = Forked();
    const Answer together = client.Generate(request)->Finish();
    ASSERT_TRUE(together.status.ok()) << together.status.error_message();
    EXPECT_EQ(Computed() - computed, prompt_tokens);
    EXPECT_EQ(Forked() - forked, kSamples - 1);
    EXPECT_EQ(together.usage.prompt_tokens(), prompt_tokens);
    EXPECT_EQ(together.usage.completion_tokens(), kSamples * kTokens);
    request.set_n(1);
    for (uint32_t i = 0; i < kSamples; ++i) {
      request.mutable_sampling()->set_sample_index(i);
      const Answer alone = client.Generate(request)->Finish();
      ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
      EXPECT_THAT(together.ids(i), ElementsAreArray(alone.ids())) << "sample " << i << " of " << prompt_tokens;
      EXPECT_EQ(together.outputs.at(i).text, alone.outputs.at(0).text);
      EXPECT_FALSE(together.outputs.at(i).has_gaps);
      if (i > 0) {
        EXPECT_NE(alone.ids(), together.ids(0));
      }
    }
  }
}

TEST_P(Samples, AForkGoesOnFromTheCurrentTokenWithItsOwnRandomNumbers) {
  constexpr uint32_t kLong = 400;  // it still runs when all have forked it
  const TokenIds prompt = DemoText(1500, 900);
  v1::GenerateRequest request = SamplesOf(GetParam(), prompt, 1, kLong);
  GenerationClient client(*cluster_);
  const Answer undisturbed = client.Generate(request)->Finish();
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();

  request.set_request_id(std::string("source-") + GetParam());
  const double computed = Computed(), forked = Forked();
  const auto source = client.Generate(request);
  ASSERT_TRUE(source->ReadUntil(10));
  v1::ForkRequest fork;
  fork.set_source_request_id(request.request_id());
  fork.set_sample_index(0);
  const auto twin = client.Fork(fork);
  ASSERT_TRUE(twin->ReadUntil(3));
  fork.set_sample_index(7);
  const auto other = client.Fork(fork);
  fork.set_source_request_id(other->WaitForAccepted() ? other->answer().accepted.request_id() : "");
  fork.set_sample_index(8);
  const auto fork_of_fork = client.Fork(fork);

  const auto joined = [](const TokenIds& begin, const Answer& fork) {
    TokenIds ids(begin.begin(), begin.begin() + fork.accepted.forked_tokens());
    ids.insert(ids.end(), fork.ids().begin(), fork.ids().end());
    return ids;
  };
  for (Call* call : {source.get(), twin.get(), other.get(), fork_of_fork.get()}) {
    ASSERT_TRUE(call->Finish().status.ok()) << call->answer().status.error_message();
    EXPECT_EQ(call->answer().outputs.at(0).reason, v1::FINISH_REASON_LENGTH);
    EXPECT_FALSE(call->answer().outputs.at(0).has_gaps);
    EXPECT_EQ(call->answer().accepted.prompt_tokens(), prompt.size());
  }
  EXPECT_EQ(source->answer().ids(), undisturbed.ids());
  EXPECT_GE(twin->answer().accepted.forked_tokens(), 10u);
  EXPECT_EQ(twin->answer().outputs.at(0).first_index, twin->answer().accepted.forked_tokens());
  EXPECT_EQ(joined(undisturbed.ids(), twin->answer()), undisturbed.ids()) << "the same random numbers";
  const TokenIds of_other = joined(undisturbed.ids(), other->answer());
  EXPECT_EQ(of_other.size(), kLong);
  EXPECT_NE(of_other, undisturbed.ids());
  EXPECT_EQ(joined(of_other, fork_of_fork->answer()).size(), kLong);
  EXPECT_EQ(Forked() - forked, 3);
  EXPECT_EQ(Computed() - computed, prompt.size()) << "no prompt is computed again";
  EXPECT_EQ(Sum(*cluster_, "cache", "winnow_rows_refused_total"), 0);
}

INSTANTIATE_TEST_SUITE_P(Presets, Samples, testing::Values("winnow", "dense", "async-token", "quest", "psa"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST(SamplesOfSeveralRanks, HandedOverSamplesAreThoseOfOneRank) {
  const v1::GenerateRequest request = SamplesOf("winnow", DemoText(1700, 40), 5, kTokens);
  std::map<uint32_t, TokenIds> expected;
  for (const bool apart : {false, true}) {
    std::vector<std::string> flags = {"--budget=256", "--max-context=8192", "--prefix-cache=false"};
    if (apart) flags.insert(flags.end(), {"--prefill-ranks=1", "--decode-ranks=1"});
    const auto cluster = StartOrFail(flags);
    ASSERT_NE(cluster, nullptr);
    GenerationClient client(*cluster);
    const Answer answer = client.Generate(request)->Finish();
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    for (uint32_t i = 0; i < request.n(); ++i) {
      if (!apart) expected[i] = answer.ids(i);
      EXPECT_EQ(answer.ids(i), expected[i]) << "sample " << i;
    }
    if (apart) {
      EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_hand_overs_total"), request.n());
    }
    double computed = 0;
    for (const std::string& rank : cluster->ranks()) {
      if (rank.starts_with("router") || rank.starts_with("cache")) continue;
      computed += cluster->MetricsOf(rank).Value("winnow_rank_prompt_tokens_total");
    }
    EXPECT_EQ(computed, request.token_ids().ids_size());
  }
}

TEST(SamplesOfSeveralRanks, ARankThatIsLostChangesNoSample) {
  const auto cluster = StartOrFail({"--inference-ranks=2", "--budget=256", "--max-context=8192"});
  ASSERT_NE(cluster, nullptr);
  const v1::GenerateRequest request = SamplesOf("winnow", DemoText(2500, 640), 4, 200);
  GenerationClient client(*cluster);
  const Answer undisturbed = client.Generate(request)->Finish();
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.error_message();
  const auto call = client.Generate(request);
  ASSERT_TRUE(call->ReadUntil(8));
  for (const std::string& rank : cluster->ranks()) {
    if (!rank.starts_with("inference")) continue;
    if (cluster->MetricsOf(rank).Value("winnow_num_requests_running") == 0) continue;
    kill(cluster->Pids("inference-rank")[rank.back() - '0'], SIGKILL);
    break;
  }
  ASSERT_TRUE(call->Finish().status.ok()) << call->answer().status.error_message();
  for (uint32_t i = 0; i < request.n(); ++i) EXPECT_EQ(call->answer().ids(i), undisturbed.ids(i)) << "sample " << i;
}

// What 16 samples of a long prompt cost beside one.
class SampleCosts : public testing::TestWithParam<const char*> {
 protected:
  static constexpr uint32_t kPrompt = 8192, kGenerated = 128, kSamples = 16;
  struct Costs {
    double peak_bytes = 0, key_bytes = 0, page_bytes = 0;
  };
  static std::unique_ptr<Cluster> StartCluster() {
    return StartOrFail({"--budget=256", "--max-context=8448", "--prefix-cache=false"});
  }
  // The peak is that of all looks while the call is under way: blocks are reserved when a sequence begins, and kept
  // until it ends.
  static Costs CostsOf(Cluster& cluster, const char* preset, uint32_t n) {
    const auto value = [&](const char* name) { return cluster.MetricsOf("cache-0").Value(name); };
    const double keys = value("winnow_scored_key_bytes_total"), pages = value("winnow_scored_page_bytes_total");
    Costs costs;
    std::atomic<bool> ended{false};
    std::future<void> looking = std::async(std::launch::async, [&] {
      while (!ended) {
        const Metrics metrics = cluster.MetricsOf("cache-0");
        costs.peak_bytes = std::max(costs.peak_bytes, metrics.Value("winnow_kv_blocks", {{"state", "used"}}) +
                                                          metrics.Value("winnow_kv_blocks", {{"state", "reserved"}}));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    GenerationClient client(cluster);
    const auto call = client.Generate(SamplesOf(preset, DemoText(kPrompt, 50), n, kGenerated));
    call->Finish();
    ended = true;
    looking.get();
    EXPECT_TRUE(call->answer().status.ok()) << call->answer().status.error_message();
    costs.key_bytes = value("winnow_scored_key_bytes_total") - keys;
    costs.page_bytes = value("winnow_scored_page_bytes_total") - pages;
    return costs;
  }
};

TEST_P(SampleCosts, SixteenTakeLittleMoreThanOne) {
  const auto cluster = StartCluster();
  ASSERT_NE(cluster, nullptr);
  const Costs one = CostsOf(*cluster, GetParam(), 1), all = CostsOf(*cluster, GetParam(), kSamples);
  const double memory = all.peak_bytes / one.peak_bytes, keys = all.key_bytes / one.key_bytes;
  std::printf("%s: memory %.3f x, key bytes %.3f x", GetParam(), memory, keys);
  EXPECT_GT(one.peak_bytes, 0);
  EXPECT_LE(memory, 1.3);
  if (one.page_bytes > 0) {
    const double pages = all.page_bytes / one.page_bytes;
    const double exact = (all.key_bytes - all.page_bytes) / (one.key_bytes - one.page_bytes);
    std::printf(" (pages %.3f x, exact %.3f x)", pages, exact);
    EXPECT_LE(pages, 1.5);
  } else {
    EXPECT_LE(keys, 1.5);
  }
  std::printf("\n");
}

INSTANTIATE_TEST_SUITE_P(Presets, SampleCosts,
                         testing::Values("winnow", "exact-token", "async-token", "quest",
                                         "winnow,min_candidate_tokens=0,score_all_below_tokens=0"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

using SamplesOverHttp = SharedCluster<TwoOfEach>;

TEST_F(SamplesOverHttp, ChoicesAreStreamedWithTheirIndexAndThePromptCountsOnce) {
  const TokenIds prompt = DemoText(600, 77);
  Json request = GreedyRequest(prompt, 12);
  request["temperature"] = 2;
  request["seed"] = 11;
  request["n"] = 4;
  const HttpReply whole = cluster_->http().Post("/v1/completions", request);
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json choices = whole.json().at("choices");
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(whole.json().at("usage").at("prompt_tokens"), prompt.size());
  EXPECT_EQ(whole.json().at("usage").at("completion_tokens"), 4 * 12);

  std::map<int, std::string> texts;
  request["stream"] = true;
  const HttpReply streamed = cluster_->http().Stream("/v1/completions", request, [&](std::string_view data) {
    if (data == "[DONE]") return true;
    const Json event = Json::parse(data);
    for (const Json& choice : event.at("choices")) {
      texts[choice.at("index").get<int>()] += choice.value("text", "");
    }
    return true;
  });
  ASSERT_EQ(streamed.status, 200) << streamed.body;
  EXPECT_NE(choices.at(0).at("text"), choices.at(1).at("text"));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(choices.at(i).at("index"), i);
    EXPECT_EQ(texts[i], choices.at(i).at("text").get<std::string>());
  }
}

TEST_F(SamplesOverHttp, SamplesThatEndWithTheirFirstTokenNeedNoFork) {
  Json request = GreedyRequest(DemoText(200, 5), 1);
  request["temperature"] = 1.5;
  request["n"] = 8;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const HttpReply reply = cluster_->http().Post("/v1/completions", request);
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.json().at("usage").at("completion_tokens"), 8);
  }
}

}  // namespace
}  // namespace winnow::e2e
