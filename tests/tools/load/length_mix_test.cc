#include "tools/load/length_mix.h"

#include <gmock/gmock.h>

#include <map>

namespace winnow {
namespace {

TEST(LengthMix, OneLength) {
  const absl::StatusOr<LengthMix> mix = LengthMix::Parse("8k");
  ASSERT_TRUE(mix.ok()) << mix.status();
  std::mt19937_64 random(1);
  EXPECT_EQ(mix->Draw(random), 8192u);
  EXPECT_EQ(mix->longest(), 8192u);
}

TEST(LengthMix, RangesIncludeBothEnds) {
  const absl::StatusOr<LengthMix> mix = LengthMix::Parse("3-5");
  ASSERT_TRUE(mix.ok());
  std::mt19937_64 random(1);
  std::map<uint32_t, int> seen;
  for (int i = 0; i < 300; ++i) ++seen[mix->Draw(random)];
  EXPECT_THAT(seen, testing::ElementsAre(testing::Key(3), testing::Key(4), testing::Key(5)));
}

TEST(LengthMix, WeightsAreShares) {
  const absl::StatusOr<LengthMix> mix = LengthMix::Parse("10:3,100-200:1");
  ASSERT_TRUE(mix.ok());
  std::mt19937_64 random(7);
  constexpr int kDraws = 4000;
  int tens = 0;
  for (int i = 0; i < kDraws; ++i) tens += mix->Draw(random) == 10;
  EXPECT_NEAR(tens, 0.75 * kDraws, 5 * std::sqrt(kDraws * 0.75 * 0.25));
}

TEST(LengthMix, SaysWhatIsMalformed) {
  for (const char* text : {"", "x", "0", "5-3", "1-2-3", "7:0", "7:-1", "7:1:2", "10,", "-4", "1:nan", "400000k"}) {
    const absl::StatusOr<LengthMix> mix = LengthMix::Parse(text);
    EXPECT_FALSE(mix.ok()) << text;
    EXPECT_THAT(std::string(mix.status().message()), testing::HasSubstr("is no length"));
  }
}

}  // namespace
}  // namespace winnow
