#include "cmd/up/restart_delays.h"

#include <set>

#include "gtest/gtest.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

TEST(RestartDelaysTest, DoubleUpToALimitAndStartOverAfterAReset) {
  RestartDelays delays(milliseconds(100), milliseconds(1'000), /*seed=*/1);
  for (int round = 0; round < 2; ++round) {
    for (const int most : {100, 200, 400, 800, 1'000, 1'000, 1'000}) {
      const milliseconds delay = delays.Next();
      EXPECT_GE(delay, milliseconds(most / 2));
      EXPECT_LE(delay, milliseconds(most));
    }
    delays.Reset();
  }
}

TEST(RestartDelaysTest, DifferByTheSeed) {
  std::set<milliseconds> delays;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    delays.insert(RestartDelays(milliseconds(30'000), milliseconds(30'000), seed).Next());
  }
  EXPECT_GT(delays.size(), 10u);
}

}  // namespace
}  // namespace winnow
