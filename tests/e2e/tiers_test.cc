// Two tiers of KV memory, and a cache rank beside the inference rank, change no answer.
#include <gtest/gtest.h>
#include <signal.h>

#include <future>

#include "common/base/kv_layout.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/golden.h"

namespace winnow::e2e {
namespace {

constexpr int kTokens = 60;
constexpr size_t kPromptTokens = 3000;
constexpr size_t kTokenBytes = size_t{8} * 2 * 256;  // of the demo model: layers, kv heads, bytes of a row

Json Request(size_t offset = 0) {
  return GreedyRequest(DemoText(kPromptTokens, offset), kTokens);
}

std::unique_ptr<Cluster> StartCluster(const std::string& selection, std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--selection=" + selection, "--budget=256", "--max-context=8192"});
  return StartOrFail(std::move(flags));
}

std::string FastMemory(double share_of_kv) {
  const double kv_bytes = static_cast<double>((kPromptTokens + kTokens) * kTokenBytes);
  return "--fast-memory=" + std::to_string(static_cast<size_t>(share_of_kv * kv_bytes / 1024)) + "KiB";
}

double Used(const Metrics& metrics, const char* kind) {
  return metrics.Value("winnow_tier_used_bytes", {{"tier", "fast"}, {"kind", kind}});
}

// What reading and memory must have been for the test to mean anything.
void ExpectUse(const Cluster& cluster) {
  // Counts are published from time to time.
  EXPECT_TRUE(WaitUntil(std::chrono::seconds(20),
                        [&] { return cluster.MetricsOf("cache-0").Value("winnow_tier_loaded_rows_total") > 0; }));
  const Metrics metrics = cluster.MetricsOf("cache-0");
  EXPECT_GT(Used(metrics, "index"), 0);
  EXPECT_LE(Used(metrics, "index") + Used(metrics, "rows") + Used(metrics, "staging"),
            metrics.Value("winnow_tier_capacity_bytes", {{"tier", "fast"}}));
  EXPECT_GT(metrics.Value("winnow_tier_written_rows_total"), 0);
}

// Placement and preset of the published systems that keep KV in their own process, with fast memory for the index and
// little else: keys that are scored take half of the rows' bytes, page bounds a sixteenth or less.
struct Colocated {
  std::string selection;
  double fast_share;
};

class ColocatedPreset : public testing::TestWithParam<Colocated> {};

TEST_P(ColocatedPreset, AnswersAsWithCacheRanksApart) {
  const auto apart = StartCluster(GetParam().selection, {});
  ASSERT_NE(apart, nullptr);
  const Completion reference = Complete(apart->http(), Request());
  ASSERT_TRUE(reference.ok()) << reference.error;
  ASSERT_EQ(reference.ids.size(), static_cast<size_t>(kTokens));
  ASSERT_GT(reference.Stat("streamed_rows"), 0);
  const auto colocated = StartCluster(GetParam().selection, {"--transport=inproc", FastMemory(GetParam().fast_share)});
  ASSERT_NE(colocated, nullptr);
  const Completion completion = Complete(colocated->http(), Request());
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids, reference.ids);
  EXPECT_EQ(completion.Stat("streamed_rows"), reference.Stat("streamed_rows"));
  EXPECT_TRUE(colocated->Pids("cache-rank").empty());
}

INSTANTIATE_TEST_SUITE_P(Systems, ColocatedPreset,
                         testing::Values(Colocated{"sparseserve", 0.125}, Colocated{"quest", 0.125},
                                         Colocated{"psa", 0.125}, Colocated{"lserve,profile_use=none", 0.125},
                                         Colocated{"hisparse", 0.65}),
                         [](const auto& info) {
                           return info.param.selection.substr(0, info.param.selection.find(','));
                         });

TEST(Tiers, AnAnswerIsTheSameWithFastMemoryForAnEighthOfTheKv) {
  const auto one_tier = StartCluster("quest", {"--inference-ranks=2"});
  ASSERT_NE(one_tier, nullptr);
  const auto two_tiers = StartCluster("quest", {"--inference-ranks=2", FastMemory(0.125)});
  ASSERT_NE(two_tiers, nullptr);
  const Completion reference = Complete(one_tier->http(), Request());
  ASSERT_TRUE(reference.ok()) << reference.error;
  const Completion completion = Complete(two_tiers->http(), Request());
  ASSERT_TRUE(completion.ok()) << completion.error;
  EXPECT_EQ(completion.ids, reference.ids);
  ExpectUse(*two_tiers);

  // All rows that the next rank needs come from the tiers.
  const std::vector<pid_t> pids = two_tiers->Pids("inference-rank");
  ASSERT_EQ(pids.size(), 2u);
  bool killed = false;
  const Completion disturbed = StreamCompletion(two_tiers->http(), Request(), [&](size_t tokens) {
    for (int i = 0; i < 2 && tokens >= 10 && !killed; ++i) {
      const Metrics metrics = two_tiers->MetricsOf("inference-" + std::to_string(i));
      if (metrics.Value("winnow_num_requests_running") >= 1) killed = kill(pids[i], SIGKILL) == 0;
    }
    return true;
  });
  ASSERT_TRUE(killed);
  ASSERT_TRUE(disturbed.ok()) << disturbed.error;
  EXPECT_EQ(disturbed.ids, reference.ids);
}

TEST(Tiers, ManyAnswersThatShareThemAreTheSame) {
  const auto one_tier = StartCluster("winnow", {});
  ASSERT_NE(one_tier, nullptr);
  // Keys in 8 bits take a quarter of the rows' bytes: the index of all four, and rows of a sixth of one.
  const auto two_tiers = StartCluster("winnow", {FastMemory(1.5)});
  ASSERT_NE(two_tiers, nullptr);
  std::vector<std::future<Completion>> done;
  for (size_t i = 0; i < 4; ++i) {
    done.push_back(std::async(std::launch::async, [&, i] { return Complete(two_tiers->http(), Request(i * 700)); }));
  }
  for (size_t i = 0; i < 4; ++i) {
    const Completion completion = done[i].get(), reference = Complete(one_tier->http(), Request(i * 700));
    ASSERT_TRUE(completion.ok()) << completion.error;
    EXPECT_EQ(completion.ids, reference.ids);
  }
  ExpectUse(*two_tiers);
}

TEST(Tiers, RequestsWhoseIndexNeverFitsFailAndSayWhy) {
  const auto cluster = StartCluster("depth", {"--fast-memory=1MiB"});
  ASSERT_NE(cluster, nullptr);
  const Completion completion = Complete(cluster->http(), Request());
  EXPECT_NE(completion.status, 200);
  EXPECT_NE(completion.error.find("--fast-memory"), std::string::npos) << completion.error;
  Json short_one = GreedyRequest(DemoText(200), 10);
  EXPECT_TRUE(Complete(cluster->http(), short_one).ok()) << "others are served";
}

}  // namespace
}  // namespace winnow::e2e
