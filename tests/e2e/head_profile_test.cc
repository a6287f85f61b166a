// From sample text to a served model: what `winnow profile-heads` writes decides what heads get.
#include "common/selection/head_profile.h"

#include <fstream>
#include <iterator>

#include "tests/e2e/golden.h"
#include "tests/e2e/shared_cluster.h"
#include "tests/support/temp_dir.h"

namespace winnow::e2e {
namespace {

constexpr int kTokens = 120;  // enough for a cache rank's next report of its blocks
constexpr int kBudget = 64;
constexpr double kBlockTokens = 32;

// Profiled once, with a threshold at which a good part of the heads stream.
const std::string& ProfilePath() {
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

struct Profiled {
  static Cluster::Options Options() {
    return {.flags = {"--head-profile=" + ProfilePath(), "--selection=depth,profile_use=streaming",
                      "--budget=" + std::to_string(kBudget)}};
  }
};

class ProfiledHeads : public SharedCluster<Profiled> {
 protected:
  struct Served {
    Completion completion;
    double cached_blocks = 0;  // at the cache rank, most that were seen while it was answered
    double selected_rows = 0;  // over all steps, layers and heads
  };
  static double SelectedRows() { return cluster_->MetricsOf("inference-0").Value("winnow_selection_lookups_total"); }
  static Served Ask(const Json& selection) {
    Served served;
    const double before = SelectedRows();
    Json request = GreedyRequest(DemoText(3000), kTokens);
    if (!selection.is_null()) request["winnow"]["selection"] = selection;
    served.completion = StreamCompletion(cluster_->http(), request, [&](size_t tokens) {
      if (tokens % 8 != 0) return true;
      const Metrics cache = cluster_->MetricsOf("cache-0");
      served.cached_blocks = std::max(served.cached_blocks, cache.Value("winnow_kv_blocks", {{"state", "used"}}));
      return true;
    });
    EXPECT_TRUE(served.completion.ok()) << served.completion.error;
    served.selected_rows = SelectedRows() - before;
    return served;
  }
  static std::string SelectionOf(const Served& served) {
    return served.completion.usage.at("winnow").at("selection").get<std::string>();
  }
  static HeadProfile LoadProfile() { return HeadProfile::Load(ProfilePath()).value(); }
};

TEST_F(ProfiledHeads, StreamingOnesSelectNothingAndKeepNoMiddleRowsOnTheCacheRank) {
  const HeadProfile profile = LoadProfile();
  const double heads = static_cast<double>(profile.heads.size());
  double streaming = 0;
  for (const HeadProfile::Head& head : profile.heads) streaming += head.streaming;
  ASSERT_GE(streaming, 2);
  ASSERT_LT(streaming, heads);

  const Served all = Ask("depth,profile_use=none"), some = Ask(nullptr);
  EXPECT_EQ(SelectionOf(some), "depth,budget=64,profile_use=streaming") << "the server's";
  EXPECT_EQ(SelectionOf(all), "depth,budget=64");
  EXPECT_EQ(some.selected_rows, all.selected_rows * (heads - streaming) / heads);
  EXPECT_EQ(all.selected_rows, (kTokens - 1) * heads * kBudget);
  EXPECT_LT(some.completion.Stat("resident_rows"), all.completion.Stat("resident_rows"));
  EXPECT_GE(all.cached_blocks, heads * 3000 / kBlockTokens);
  // Sinks, and a ring of 128 rows with some slack.
  EXPECT_LE(some.cached_blocks, (heads - streaming) * (3000 + kTokens) / kBlockTokens + heads + streaming * 10);
}

TEST_F(ProfiledHeads, BudgetsFollowItWithTheSameSum) {
  const Served alike = Ask("depth,profile_use=none"), shared = Ask("depth,profile_use=budgets");
  EXPECT_EQ(SelectionOf(shared), "depth,budget=64,profile_use=budgets");
  EXPECT_EQ(shared.selected_rows, alike.selected_rows);
  EXPECT_NE(shared.completion.Stat("streamed_rows"), alike.completion.Stat("streamed_rows")) << "but not the same rows";
}

TEST(HeadProfileFile, OfAnotherShapeIsRefused) {
  const TempDir folder;
  HeadProfile profile = HeadProfile::Load(ProfilePath()).value();
  profile.num_layers /= 2;
  profile.heads.resize(profile.heads.size() / 2);
  const std::string path = folder.Write("half.json", profile.ToJson());
  const auto cluster = Cluster::Start({.flags = {"--head-profile=" + path}});
  EXPECT_NE(
      std::string(cluster.status().message()).find("is of a model with 4 layers of 2 kv heads, this one has 8 of 2"),
      std::string::npos)
      << cluster.status();
}

}  // namespace
}  // namespace winnow::e2e
