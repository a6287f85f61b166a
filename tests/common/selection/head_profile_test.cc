#include "common/selection/head_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "common/selection/presets.h"
#include "common/selection/spec_field.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

// Mass with so many of the best rows: of a head whose j-th best row has a share that falls with j.
double MassWith(double window_mass, double spread, uint32_t rows) {
  return window_mass + (1 - window_mass) * (1 - std::exp(-static_cast<double>(rows) / spread));
}

HeadProfile Profile(int layers, int kv_heads, const std::vector<double>& spreads, std::vector<bool> streaming = {}) {
  HeadProfile profile{.model_digest = "abc",
                      .num_layers = layers,
                      .num_kv_heads = kv_heads,
                      .texts = {"a.md", "b.md"},
                      .tokens = 5000,
                      .queries = 64,
                      .sink_tokens = 4,
                      .recent_tokens = 64,
                      .heads = {}};
  streaming.resize(spreads.size());
  for (size_t i = 0; i < spreads.size(); ++i) {
    HeadProfile::Head head{
        .window_mass = 0.25, .window_mass_p5 = 0.125, .streaming = streaming[i], .tokens_needed = {1.5, 2.5, 100}};
    for (size_t k = 0; k < HeadProfile::kRows.size(); ++k) {
      head.mass_with_rows[k] = MassWith(0.25, spreads[i], HeadProfile::kRows[k]);
    }
    profile.heads.push_back(head);
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
  EXPECT_THAT(error("\"version\": 2", "\"version\": 1"), HasSubstr("p.json: version is 1"));
  EXPECT_THAT(error("\"num_layers\": 1", "\"num_layers\": \"x\""), HasSubstr("model.num_layers is \"x\""));
  EXPECT_THAT(error("\"num_kv_heads\": 2", "\"num_kv_heads\": 3"), HasSubstr("heads has 2 entries, not 3"));
  EXPECT_THAT(error("[\n    0.", "[\n    0.1, 0."), HasSubstr("heads[0].mass_with_rows has 27 numbers, not 26"));
  EXPECT_THAT(error("[\n    0.", "[\n    7."), HasSubstr("heads[0].mass_with_rows holds 7."));
  EXPECT_THAT(error("4096", "4097"), HasSubstr("p.json: rows are others than this version's"));
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

// Mass of a head with so many rows, straight between the measured ones.
double Interpolated(const HeadProfile::Head& head, uint32_t rows) {
  double mass = head.window_mass;
  uint32_t at = 0;
  for (size_t k = 0; k < HeadProfile::kRows.size() && at < rows; ++k) {
    const uint32_t next = HeadProfile::kRows[k];
    const double slope = (head.mass_with_rows[k] - mass) / (next - at);
    mass += slope * (std::min(rows, next) - at);
    at = next;
  }
  return mass;
}

TEST(WithHeadProfile, GivesEachRowToTheHeadWhoseMassItRaisesMost) {
  std::mt19937 random(5);
  std::exponential_distribution<double> spread(0.01);
  for (int round = 0; round < 100; ++round) {
    const int lists = 1 + static_cast<int>(random() % 12);
    std::vector<double> spreads;
    std::vector<bool> streaming;
    for (int i = 0; i < lists; ++i) {
      spreads.push_back(spread(random) + 1);
      streaming.push_back(random() % 3 == 0);
    }
    const HeadProfile profile = Profile(lists, 1, spreads, streaming);
    const uint32_t budget = 1 + random() % 400;
    for (const ProfileUse use : {ProfileUse::kBudgets, ProfileUse::kBudgetsAndStreaming}) {
      const auto takes_part = [&](int i) { return use == ProfileUse::kBudgets || !streaming[i]; };
      const std::vector<uint32_t> budgets = WithHeadProfile(Spec(use, budget), profile).head_budgets;
      ASSERT_EQ(budgets.size(), static_cast<size_t>(lists));
      // An eighth each, then one by one.
      std::vector<uint32_t> expected(lists);
      uint64_t left = uint64_t{budget} * lists;
      bool any = false;
      for (int i = 0; i < lists; ++i) {
        if (!takes_part(i)) continue;
        any = true;
        expected[i] = std::max(budget / 8, 1u);
        left -= expected[i];
      }
      if (!any) {
        EXPECT_EQ(Sum(budgets), 0u);
        continue;
      }
      for (; left > 0; --left) {
        int best = -1;
        double most = -1;
        for (int i = 0; i < lists; ++i) {
          if (!takes_part(i)) continue;
          const double gain =
              Interpolated(profile.heads[i], expected[i] + 1) - Interpolated(profile.heads[i], expected[i]);
          if (gain > most + 1e-12) best = i, most = gain;
        }
        ++expected[best];
      }
      EXPECT_EQ(Sum(budgets), uint64_t{budget} * lists);
      double mass = 0, best_mass = 0;
      for (int i = 0; i < lists; ++i) {
        if (!takes_part(i)) {
          EXPECT_EQ(budgets[i], 0u);
          continue;
        }
        EXPECT_GE(budgets[i], std::max(budget / 8, 1u));
        mass += Interpolated(profile.heads[i], budgets[i]);
        best_mass += Interpolated(profile.heads[i], expected[i]);
      }
      EXPECT_NEAR(mass, best_mass, 1e-9) << round;
    }
  }
}

TEST(WithHeadProfile, GivesTiesToTheLowerListAndSharesEvenlyWhatRaisesNoMass) {
  HeadProfile profile = Profile(1, 3, {1, 1, 1});
  for (HeadProfile::Head& head : profile.heads) head.mass_with_rows.fill(0.75);
  profile.heads[0].mass_with_rows.fill(0.25);  // as much as without any
  // One row each as the least, of 12. No other row raises a mass: three each, and none is left.
  EXPECT_EQ(WithHeadProfile(Spec(ProfileUse::kBudgets, 4), profile).head_budgets, (std::vector<uint32_t>{4, 4, 4}));
  // The second and the third row of lists 1 and 2 are worth the same, the second row of list 0 nothing.
  for (const size_t list : {1, 2}) {
    for (size_t k = 0; k < HeadProfile::kRows.size(); ++k) {
      profile.heads[list].mass_with_rows[k] = 0.25 + 0.125 * std::min(HeadProfile::kRows[k], 3u);
    }
  }
  EXPECT_EQ(WithHeadProfile(Spec(ProfileUse::kBudgets, 2), profile).head_budgets, (std::vector<uint32_t>{1, 3, 2}));
  EXPECT_EQ(WithHeadProfile(Spec(ProfileUse::kBudgets, 3), profile).head_budgets, (std::vector<uint32_t>{2, 4, 3}))
      << "two rows are left when nobody gains: the first lists get one each";
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

TEST(CheckNeedsNoHeadProfile, RefusesWhatOnlyAProfileCouldGiveAlsoInPresets) {
  EXPECT_TRUE(CheckNeedsNoHeadProfile(*FindPreset("winnow")).ok());
  SelectionSpec spec = *FindPreset("lserve");
  EXPECT_EQ(SpecErrorField(CheckNeedsNoHeadProfile(spec)), "profile_use");
  EXPECT_EQ(CheckNeedsNoHeadProfile(spec).message(),
            "selection.profile_use is streaming, which needs a head profile: a server is started with --head-profile "
            "FILE (`winnow profile-heads` measures one); profile_use=none does without, all heads alike");
  spec.profile_use = ProfileUse::kNone;
  EXPECT_TRUE(CheckNeedsNoHeadProfile(spec).ok());
  spec = *FindPreset("winnow");
  spec.profile_use = ProfileUse::kBudgets;
  EXPECT_EQ(SpecErrorField(CheckNeedsNoHeadProfile(spec)), "profile_use");
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
