#include "router/dispatch/prefix_routes.h"

#include <gtest/gtest.h>

#include <numeric>

namespace winnow {
namespace {

std::vector<uint32_t> Tokens(uint32_t first, uint32_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(PrefixRoutes, FindsTheRankOfTheLongestKnownPrefix) {
  PrefixRoutes routes;
  const std::vector<uint32_t> prompt = Tokens(0, 200);
  const std::vector<uint64_t> hashes = PrefixRoutes::HashesOf("", prompt);
  ASSERT_EQ(hashes.size(), 6u) << "whole blocks of 32";
  EXPECT_EQ(routes.Find(hashes), Placement());
  const Placement long_one{{"c0", 1}, {"c2", 1}}, short_one{{"c1", 1}};
  routes.Remember(hashes, long_one);
  routes.Remember(std::span(hashes).first(2), short_one);
  EXPECT_EQ(routes.Find(hashes), long_one);
  EXPECT_EQ(routes.Find(std::span(hashes).first(2)), short_one) << "the newest";

  std::vector<uint32_t> parts = prompt;
  parts[70] = 9999;
  EXPECT_EQ(routes.Find(PrefixRoutes::HashesOf("", parts)), short_one);
  parts[0] = 9999;
  EXPECT_EQ(routes.Find(PrefixRoutes::HashesOf("", parts)), Placement());
  EXPECT_EQ(routes.Find(PrefixRoutes::HashesOf("a tenant", prompt)), Placement());
}

TEST(PrefixRoutes, ForgetsWhatIsOld) {
  PrefixRoutes routes(/*max_blocks=*/8);
  const Placement rank{{"c0", 1}};
  const auto hashes = [](uint32_t first) { return PrefixRoutes::HashesOf("", Tokens(first, 64)); };
  for (uint32_t i = 0; i < 5; ++i) routes.Remember(hashes(1000 * i), rank);
  EXPECT_EQ(routes.Find(hashes(0)), Placement());
  EXPECT_EQ(routes.Find(hashes(3000)), rank);
  EXPECT_EQ(routes.Find(hashes(4000)), rank);
}

}  // namespace
}  // namespace winnow
