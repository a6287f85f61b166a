#include "cmd/role/liveness.h"

#include "gtest/gtest.h"

namespace winnow {
namespace {

v1::RankLoad Load(uint32_t running, uint64_t progress) {
  v1::RankLoad load;
  load.set_running_sequences(running);
  load.set_progress_count(progress);
  return load;
}

TEST(Liveness, IsLostWhenNothingIsComputedForSequencesThatRun) {
  Liveness liveness;
  Liveness::Clock::time_point now{};
  EXPECT_TRUE(liveness.Observe(Load(0, 5), now).ok());
  now += 10 * Liveness::kLongestStandstill;
  EXPECT_TRUE(liveness.Observe(Load(0, 5), now).ok()) << "there is nothing to do";
  EXPECT_TRUE(liveness.Observe(Load(2, 5), now).ok()) << "work has just come";
  now += Liveness::kLongestStandstill / 2;
  EXPECT_TRUE(liveness.Observe(Load(2, 5), now).ok());
  now += Liveness::kLongestStandstill / 2;
  EXPECT_EQ(liveness.Observe(Load(2, 5), now).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(liveness.Observe(Load(2, 6), now).ok()) << "it moves again";
}

}  // namespace
}  // namespace winnow
