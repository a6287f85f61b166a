// Selection where rows are computed, on a GPU that has all of them, here one made of host memory
// (tests/support/host_gpu): the answers are those of the specification, whoever decodes beside, and whatever happens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <vector>

#include "tests/e2e/disturbed_answers.h"
#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

using std::chrono::milliseconds;

Process::Environment HostGpus() {
  return {{"WINNOW_CUDA_PLUGIN", WINNOW_HOST_GPU_PLUGIN}};
}

constexpr const char* kSparse = "winnow,budget=128";

Cluster::Options InPlaceOn(const char* device) {
  return {.flags = {device, "--selection=winnow,budget=1024,recent=32", "--select-in-place=on", "--max-context=2048",
                    "--max-running=10", "--prefix-cache=false"},
          .environment = HostGpus()};
}
struct OnOneGpu {
  static Cluster::Options Options() { return InPlaceOn("--device=cuda:0"); }
};
struct OnTwoGpus {  // that hold the model together
  static Cluster::Options Options() { return InPlaceOn("--device=cuda:0,1"); }
};

template <typename Gpus>
class SelectInPlaceTest : public SharedCluster<Gpus> {
 protected:
  static double Count(const char* metric) { return Cluster().MetricsOf("inference-0").Value(metric); }
  static e2e::Cluster& Cluster() { return *SharedCluster<Gpus>::cluster_; }
};
using SelectInPlaceOn = testing::Types<OnOneGpu, OnTwoGpus>;
TYPED_TEST_SUITE(SelectInPlaceTest, SelectInPlaceOn);

Json Request(size_t prompt_tokens, int max_tokens, const char* selection = nullptr) {
  Json request = GreedyRequest(DemoText(prompt_tokens, prompt_tokens), max_tokens);
  if (selection != nullptr) request["winnow"] = {{"selection", selection}};
  return request;
}

TYPED_TEST(SelectInPlaceTest, NothingIsStreamedAndMassesAreReported) {
  auto& cluster = this->Cluster();
  const double before = this->Count("winnow_local_steps_total");
  const Completion answer = Complete(cluster.http(), Request(600, 60, kSparse));
  ASSERT_TRUE(answer.ok()) << answer.error;
  EXPECT_EQ(this->Count("winnow_local_steps_total") - before, 59);
  EXPECT_EQ(answer.Stat("streamed_rows"), 0);
  EXPECT_GT(answer.Stat("captured_mass_mean"), 0.3);
  EXPECT_LT(answer.Stat("captured_mass_mean"), 1.0);
}

// What a budget covers is everything, in the same order: the bits of dense attention.
TYPED_TEST(SelectInPlaceTest, ABudgetThatCoversTheContextGivesDenseAnswers) {
  auto& cluster = this->Cluster();
  for (const size_t prompt : {2u, 60u, 500u}) {
    const Completion dense = Complete(cluster.http(), Request(prompt, 80, "dense"));
    ASSERT_TRUE(dense.ok()) << dense.error;
    for (const char* selection :
         {"winnow,budget=1024", "exact-token,budget=1024", "depth,budget=1024", "async-token,budget=1024"}) {
      const Completion selected = Complete(cluster.http(), Request(prompt, 80, selection));
      ASSERT_TRUE(selected.ok()) << selected.error;
      EXPECT_EQ(selected.ids, dense.ids) << selection << ", " << prompt << " tokens";
    }
  }
}

TYPED_TEST(SelectInPlaceTest, AnswersAreTheSameAloneOrAmongOthersOfOtherSpecifications) {
  auto& cluster = this->Cluster();
  const char* const selections[] = {kSparse,
                                    "exact-token,budget=64",
                                    "dense",
                                    "winnow,budget=96",
                                    "depth,budget=100",
                                    "async-token,budget=64",
                                    "winnow,epsilon=0.2,budget=128",
                                    "winnow,predictor=last,budget=96"};
  constexpr int kRequests = 16;  // more than run at a time, and of more kinds
  std::vector<Json> requests;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(Request(40 + 131 * i % 700, 20 + 29 * i % 90, selections[i % 8]));
    if (i % 3 == 1) requests.back().update(Json{{"temperature", 1.1}, {"seed", i}});
    if (i % 5 == 2) requests.back()["logprobs"] = 2;  // the host chooses
  }
  std::vector<TokenIds> alone;
  for (const Json& request : requests) {
    const Completion completion = Complete(cluster.http(), request);
    ASSERT_TRUE(completion.ok()) << completion.error;
    alone.push_back(completion.ids);
  }
  std::vector<std::future<Completion>> together;
  for (const Json& request : requests) {
    together.push_back(std::async(std::launch::async, [&] { return Complete(cluster.http(), request); }));
  }
  for (int i = 0; i < kRequests; ++i) {
    const Completion completion = together[i].get();
    EXPECT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, alone[i]) << "request " << i;
    EXPECT_EQ(completion.Stat("streamed_rows"), 0) << "request " << i;
  }
  EXPECT_TRUE(WaitUntil(milliseconds(20'000), [&] {
    return this->Count("winnow_local_sequences") == 0 &&
           cluster.MetricsOf("inference-0").Value("winnow_slot_pages", {{"state", "used"}}) == 0 &&
           cluster.MetricsOf("cache-0").Value("winnow_kv_blocks", {{"state", "used"}}) == 0;
  }));
}

// By how much the token that was taken at `place` of an answer was likelier than the next best, as a logarithm.
double MarginAt(const Completion& answer, size_t place) {
  std::vector<double> best;
  for (const auto& [token, logprob] : answer.choice.at("logprobs").at("top_logprobs").at(place).items()) {
    best.push_back(logprob.get<double>());
  }
  std::sort(best.rbegin(), best.rend());
  return best.size() < 2 ? INFINITY : best[0] - best[1];
}

// Rows are scored by keys as they are, which are the same here and on the cache rank. But sums of products are rounded
// otherwise, so that rows that are as good as equal may change places. An answer may part where two tokens were as good
// as equal, too, and nowhere else; of these requests few do.
TEST(SelectInPlaceThatLooksBack, GivesTheAnswersOfSelectionsByFrames) {
  std::vector<Json> requests = {Request(300, 60),
                                Request(5, 150),
                                Request(700, 60),
                                Request(400, 60, "predictor=last"),
                                Request(400, 60, "window=4,post_rope=false"),
                                Request(101, 60, "window=3")};
  for (Json& request : requests) request["logprobs"] = 2;
  std::vector<std::vector<Completion>> answers;
  for (const char* in_place : {"--select-in-place=on", "--select-in-place=off"}) {
    const auto cluster = StartOrFail({"--device=cuda:0", "--selection=async-token,budget=64,recent=32,key_copy=none",
                                      in_place, "--max-context=1024"},
                                     HostGpus());
    ASSERT_NE(cluster, nullptr);
    std::vector<Completion>& of_cluster = answers.emplace_back();
    for (const Json& request : requests) {
      of_cluster.push_back(Complete(cluster->http(), request));
      ASSERT_TRUE(of_cluster.back().ok()) << of_cluster.back().error;
    }
  }
  int parted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const TokenIds &one = answers[0][i].ids, &other = answers[1][i].ids;
    ASSERT_EQ(one.size(), other.size());
    const auto place = static_cast<size_t>(std::mismatch(one.begin(), one.end(), other.begin()).first - one.begin());
    if (place == one.size()) continue;
    ++parted;
    EXPECT_LT(MarginAt(answers[0][i], place), 0.2) << "request " << i << ", token " << place;
    EXPECT_LT(MarginAt(answers[1][i], place), 0.2) << "request " << i << ", token " << place;
  }
  EXPECT_LE(parted, 2);
}

// Of a part of the heads it says that they stream.
const std::string& HeadProfilePath() {
  static const TempDir folder;
  static const std::string path = [] {
    std::string out = folder.path() + "/demo.profile.json";
    Process profile({WinnowBinary(), "profile-heads", "--model=" + DemoModel(), "--out=" + out, "--tokens=1024",
                     "--queries=16", "--streaming-below=0.15", SourcePath("docs/architecture.md")},
                    {});
    EXPECT_EQ(profile.Wait(std::chrono::seconds(60)), 0) << profile.Log();
    return out;
  }();
  return path;
}

class SelectInPlaceOf : public testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<Cluster> StartWith(const std::vector<std::string>& more) {
    std::vector<std::string> flags = {std::string("--selection=") + GetParam()};
    if (flags[0].find("profile_use=streaming") != std::string::npos) {
      flags.push_back("--head-profile=" + HeadProfilePath());
    }
    flags.insert(flags.end(), more.begin(), more.end());
    return StartOrFail(flags, HostGpus());
  }
};

TEST_P(SelectInPlaceOf, ManySequencesThatArePreemptedChangesNoAnswer) {
  const auto cluster = StartWith(
      {"--device=cuda:0", "--select-in-place=on", "--max-context=1024", "--max-running=2", "--age-bound=100ms"});
  ASSERT_NE(cluster, nullptr);
  const std::vector<Json> requests = {Request(250, 60), Request(251, 60), Request(252, 60), Request(253, 60)};
  ExpectPreemptionChangesNothing(*cluster, requests, IdsAlone(*cluster, requests));
}

TEST_P(SelectInPlaceOf, SamplesAndOtherPlacementsGiveTheSameAnswers) {
  std::vector<TokenIds> expected;
  for (const std::vector<std::string>& placement :
       std::vector<std::vector<std::string>>{{"--device=cuda:0"},
                                             {"--device=cuda", "--prefill-ranks=1", "--decode-ranks=1"},
                                             {"--device=cuda:0", "--cache-ranks=2", "--cache-shards=2"}}) {
    SCOPED_TRACE(placement.back());
    std::vector<std::string> flags = {"--select-in-place=on", "--max-context=1024"};
    flags.insert(flags.end(), placement.begin(), placement.end());
    const auto cluster = StartWith(flags);
    ASSERT_NE(cluster, nullptr);
    const std::vector<TokenIds> ids = IdsAlone(*cluster, {Request(600, 60), Request(70, 150)});
    if (expected.empty()) expected = ids;
    EXPECT_EQ(ids, expected);
    if (placement.size() > 1) continue;
    const Completion answer = Complete(cluster->http(), Request(600, 60));
    EXPECT_EQ(answer.Stat("streamed_rows"), 0);
    EXPECT_GT(cluster->MetricsOf("inference-0").Value("winnow_local_steps_total"), 59);
    if (std::string_view(GetParam()).find("profile_use=streaming") == std::string_view::npos) {
      EXPECT_EQ(IdsAlone(*cluster, {Request(90, 60, "dense")}), IdsAlone(*cluster, {Request(90, 60, "budget=128")}))
          << "what the budget covers is everything";
    }
    GenerationClient client(*cluster);
    v1::GenerateRequest request = SamplesOf("", DemoText(600, 300), 3, 50);
    const Answer together = client.Generate(request)->Finish();
    ASSERT_TRUE(together.status.ok()) << together.status.error_message();
    ExpectSamplesAreThoseAlone(client, request, together);
  }
}

TEST_P(SelectInPlaceOf, TwoRanksOfWhichOneIsKilledLeavesNoTraceInAnAnswer) {
  const auto cluster =
      StartWith({"--device=cuda", "--select-in-place=on", "--inference-ranks=2", "--max-context=2048"});
  ASSERT_NE(cluster, nullptr);
  AnswerOfAKilledRank answer;
  ASSERT_NO_FATAL_FAILURE(KillARankInMidAnswer(*cluster, Request(600, 300), "winnow_local_sequences", &answer));
  EXPECT_LT(answer.tokens_at_kill, 250u) << "it was killed too late to matter";
  EXPECT_GE(answer.disturbed.Stat("reattach_count"), 1);
  EXPECT_EQ(cluster->MetricsOf("router-0").Value("winnow_router_mismatched_tokens_total"), 0);
}

INSTANTIATE_TEST_SUITE_P(Presets, SelectInPlaceOf,
                         testing::Values("winnow,budget=128,recent=32", "async-token,budget=128,recent=32",
                                         "psa,budget=128,recent=32", "fixed,budget=128,recent=32",
                                         "lserve,budget=128,recent=32,sinks=4,profile_use=none",
                                         "lserve,budget=128,recent=32,sinks=4,profile_use=streaming"),
                         [](const auto& info) {
                           const std::string text = info.param;
                           const bool streams = text.find("=streaming") != std::string::npos;
                           std::string name = text.substr(0, text.find(',')) + (streams ? "WithStreamingHeads" : "");
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace winnow::e2e
