#include "common/selection/head_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "common/selection/presets.h"
#include "common/selection/spec_field.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

HeadProfile Profile(int layers, int kv_heads, const std::vector<double>& shares, std::vector<bool> streaming = {}) {
  HeadProfile profile{.model_digest = "abc",
                      .num_layers = layers,
                      .num_kv_heads = kv_heads,
                      .texts = {"a.md", "b.md"},
                      .tokens = 5000,
                      .queries = 64,
                      .sink_tokens = 4,
                      .recent_tokens = 64,
                      .budget_mass = 0.95,
                      .heads = {}};
  streaming.resize(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    profile.heads.push_back(
        {.window_mass = 0.25, .streaming = streaming[i], .tokens_needed = {1.5, 2.5, 100}, .budget_share = shares[i]});
  }
  return profile;
}

SelectionSpec Spec(ProfileUse use, uint32_t budget) {
  return {.budget_tokens = budget, .profile_use = use};
}

uint64_t Sum(const std::vector<uint32_t>& budgets) {
  return std::accumulate(budgets.begin(), budgets.end(), uint64_t{0});
}

TEST(HeadProfile, SurvivesItsFile) {
  const HeadProfile profile = Profile(2, 2, {0.1, 0.2, 0.3, 0.4}, {false, true, false, false});
  const absl::StatusOr<HeadProfile> back = HeadProfile::Parse(profile.ToJson(), "p.json");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, profile);
}

TEST(HeadProfile, ErrorsNameFileAndField) {
  const std::string good = Profile(1, 2, {0.5, 0.5}).ToJson();
  const auto error = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const absl::Status status = HeadProfile::Parse(text, "p.json").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << from;
    return std::string(status.message());
  };
  EXPECT_THAT(error("winnow-head-profile", "other"), HasSubstr("p.json: format is \"other\""));
  EXPECT_THAT(error("\"version\": 1", "\"version\": 2"), HasSubstr("p.json: version is 2"));
  EXPECT_THAT(error("\"num_layers\": 1", "\"num_layers\": \"x\""), HasSubstr("model.num_layers is \"x\""));
  EXPECT_THAT(error("\"num_kv_heads\": 2", "\"num_kv_heads\": 3"), HasSubstr("heads has 2 entries, not 3"));
  EXPECT_THAT(error("\"budget_share\": 0.5", "\"budget_share\": 0"), HasSubstr("heads[0].budget_share must be above"));
  EXPECT_THAT(error("\"window_mass\": 0.25", "\"window_mass\": 1.5"), HasSubstr("heads[0].window_mass is 1.5"));
  EXPECT_THAT(error("\"streaming\": false", "\"streaming\": 0"), HasSubstr("heads[0].streaming is 0"));
  EXPECT_THAT(error("\"0.95\"", "\"0.96\""), HasSubstr("heads[0].0.95 is missing"));
  EXPECT_THAT(error("\"kv_head\": 1", "\"kv_head\": 0"), HasSubstr("heads[1].layer and kv_head are out of order"));
  EXPECT_THAT(error("{", "["), HasSubstr("p.json: is not a JSON object"));
  EXPECT_THAT(std::string(HeadProfile::Load("/nowhere/p.json").status().message()), HasSubstr("/nowhere/p.json"));
}

TEST(HeadProfile, IsOfOneShape) {
  const HeadProfile profile = Profile(2, 2, {0.25, 0.25, 0.25, 0.25});
  EXPECT_TRUE(profile.CheckShape(2, 2, "p.json").ok());
  EXPECT_THAT(std::string(profile.CheckShape(4, 1, "p.json").message()),
              HasSubstr("2 layers of 2 kv heads, this one has 4 of 1"));
}

TEST(WithHeadProfile, KeepsTheSumAndFollowsTheShares) {
  std::mt19937 random(5);
  std::exponential_distribution<double> share;
  for (int round = 0; round < 200; ++round) {
    const int lists = 1 + static_cast<int>(random() % 40);
    std::vector<double> shares;
    std::vector<bool> streaming;
    for (int i = 0; i < lists; ++i) {
      shares.push_back(share(random) + 1e-4);
      streaming.push_back(random() % 3 == 0);
    }
    const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& s : shares) s /= total;
    const uint32_t budget = 1 + random() % 3000;
    for (const ProfileUse use : {ProfileUse::kBudgets, ProfileUse::kBudgetsAndStreaming}) {
      const bool streams = use == ProfileUse::kBudgetsAndStreaming;
      const std::vector<uint32_t> budgets =
          WithHeadProfile(Spec(use, budget), Profile(lists, 1, shares, streaming)).head_budgets;
      ASSERT_EQ(budgets.size(), static_cast<size_t>(lists));
      double selecting = 0;
      uint64_t heads = 0;
      for (int i = 0; i < lists; ++i) {
        if (streams && streaming[i]) continue;
        selecting += shares[i];
        ++heads;
      }
      if (heads == 0) continue;
      EXPECT_EQ(Sum(budgets), uint64_t{budget} * lists);
      const double rest = static_cast<double>(uint64_t{budget} * lists - heads);
      for (int i = 0; i < lists; ++i) {
        if (streams && streaming[i]) {
          EXPECT_EQ(budgets[i], 0u);
        } else {
          EXPECT_GE(budgets[i], 1u);
          EXPECT_NEAR(budgets[i], 1 + rest * shares[i] / selecting, 1) << "by less than one row";
        }
      }
    }
  }
}

TEST(WithHeadProfile, GivesTheLargestRemaindersTheRestAndTiesToTheLowerList) {
  // 3 lists of 4: one row each, 9 shared as 1.8, 3.6, 3.6.
  EXPECT_EQ(WithHeadProfile(Spec(ProfileUse::kBudgets, 4), Profile(3, 1, {0.2, 0.4, 0.4})).head_budgets,
            (std::vector<uint32_t>{3, 5, 4}));
}

TEST(HeadProfile, SaysWhatSpeaksAgainstItsUse) {
  HeadProfile profile = Profile(1, 2, {0.5, 0.5}, {true, false});
  profile.model_digest = "measured";
  profile.sink_tokens = 4;
  profile.recent_tokens = 64;
  SelectionSpec spec = Spec(ProfileUse::kStreaming, 100);
  spec.sink_tokens = 4;
  spec.recent_tokens = 64;
  EXPECT_TRUE(profile.DoubtsAbout("measured", spec).empty());
  ASSERT_EQ(profile.DoubtsAbout("other", spec).size(), 1u);
  EXPECT_EQ(profile.DoubtsAbout("other", spec)[0], "was measured on another checkpoint of the same shape");
  spec.recent_tokens = 32;
  ASSERT_EQ(profile.DoubtsAbout("measured", spec).size(), 1u);
  EXPECT_EQ(
      profile.DoubtsAbout("measured", spec)[0],
      "was measured with 4 sinks and 64 recent rows; with 4 and 32 its streaming heads may miss more than it says");
  profile.heads[0].streaming = false;
  EXPECT_TRUE(profile.DoubtsAbout("measured", spec).empty()) << "budgets are only shares";
}

TEST(WithoutHeadProfile, TakesFromPresetsWhatOnlyAProfileCouldGive) {
  EXPECT_EQ(*WithoutHeadProfile(*FindPreset("winnow")), *FindPreset("winnow"));
  SelectionSpec want = *FindPreset("lserve");
  want.profile_use = ProfileUse::kNone;
  EXPECT_EQ(*WithoutHeadProfile(*FindPreset("lserve")), want);
  SelectionSpec asked = *FindPreset("winnow");
  asked.profile_use = ProfileUse::kBudgets;
  EXPECT_EQ(SpecErrorField(WithoutHeadProfile(asked).status()), "profile_use");
}

TEST(WithHeadProfile, DoesWhatTheSpecificationAsks) {
  const HeadProfile profile = Profile(1, 4, {0.1, 0.2, 0.3, 0.4}, {true, false, false, true});
  EXPECT_TRUE(WithHeadProfile(Spec(ProfileUse::kNone, 100), profile).head_budgets.empty());
  EXPECT_EQ(WithHeadProfile(Spec(ProfileUse::kStreaming, 100), profile).head_budgets,
            (std::vector<uint32_t>{0, 100, 100, 0}));
  SelectionSpec given = Spec(ProfileUse::kBudgets, 100);
  given.head_budgets = {1, 2, 3, 4};
  EXPECT_EQ(WithHeadProfile(given, profile), given);
  const SelectionSpec dense = *FindPreset("dense");
  EXPECT_EQ(WithHeadProfile(dense, profile), dense);
  EXPECT_EQ(FindPreset("winnow")->profile_use, ProfileUse::kNone);
  EXPECT_EQ(FindPreset("lserve")->profile_use, ProfileUse::kStreaming);
  EXPECT_EQ(FindPreset("exact-token")->profile_use, ProfileUse::kNone);
}

}  // namespace
}  // namespace winnow
