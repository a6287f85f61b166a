#include "inference_rank/step/steps_under_way.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

// A sequence whose prompt is computed, and whose first token is drawn.
class StepsUnderWayTest : public testing::Test {
 protected:
  StepsUnderWayTest() {
    sequence_.prompt = {1, 2, 3, 4, 5};
    sequence_.generated = {70};
    sequence_.next_position = 5;
    sequence_.max_positions = 100;
    sequence_.stopping.set_max_tokens(4);
  }
  void Launch(bool is_drawn = true) {
    steps_.Add({.number = ++number_,
                .rows = {{.sequence = &sequence_,
                          .row = 0,
                          .position = sequence_.next_position + sequence_.steps_under_way,
                          .is_drawn = is_drawn}}});
  }
  void Take(uint32_t token) {
    steps_.TakeOldest();
    ++sequence_.next_position;
    sequence_.generated.push_back(token);
  }

  Sequence sequence_;
  StepsUnderWay steps_;
  uint64_t number_ = 0;
};

TEST_F(StepsUnderWayTest, AStepBehindOneUnderWayTakesTheTokenThatTheDeviceHas) {
  ASSERT_TRUE(steps_.NextOf(sequence_).has_value());
  EXPECT_EQ(steps_.NextOf(sequence_)->token_id, 70u);
  Launch();
  ASSERT_TRUE(steps_.NextOf(sequence_).has_value());
  EXPECT_EQ(steps_.NextOf(sequence_)->position, 6u);
  EXPECT_EQ(steps_.NextOf(sequence_)->token_id, std::nullopt);
  Take(71);
  EXPECT_EQ(steps_.NextOf(sequence_)->token_id, 71u);
}

TEST_F(StepsUnderWayTest, NothingFollowsATokenThatTheHostDraws) {
  Launch(/*is_drawn=*/false);
  EXPECT_FALSE(steps_.draws_all_tokens());
  EXPECT_FALSE(steps_.NextOf(sequence_).has_value());
  Take(71);
  EXPECT_TRUE(steps_.NextOf(sequence_).has_value());
}

TEST_F(StepsUnderWayTest, NothingFollowsTheLastTokenOfAnAnswer) {
  sequence_.stopping.set_max_tokens(2);
  Launch();
  EXPECT_FALSE(steps_.NextOf(sequence_).has_value());
}

TEST_F(StepsUnderWayTest, OfASequenceThatHasLeftNothingCounts) {
  Launch();
  Launch();
  EXPECT_EQ(sequence_.steps_under_way, 2u);
  steps_.Forget(sequence_);
  EXPECT_EQ(sequence_.steps_under_way, 0u);
  EXPECT_TRUE(steps_.draws_all_tokens());
  EXPECT_FALSE(steps_.TakeOldest().rows[0].is_wanted());
  EXPECT_FALSE(steps_.TakeOldest().rows[0].is_wanted());
  EXPECT_EQ(sequence_.steps_under_way, 0u);
}

}  // namespace
}  // namespace winnow
