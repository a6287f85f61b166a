#include "router/openai/response/event_position.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

using Stage = ChoicePosition::Stage;

TEST(EventPosition, IdsSayAndReadBackThePositionOfEveryChoice) {
  const std::vector<ChoicePosition> positions = {{17, Stage::kTokens}, {20, Stage::kRest}, {12, Stage::kEnded}, {}};
  EXPECT_EQ(EventId(positions), "17.20r.12e.");
  const auto read = ParseEventId("17.20r.12e.", 4);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, positions);
  EXPECT_EQ(EventId({{5, Stage::kTokens}}), "5");
}

TEST(EventPosition, GrowsWithWhatTheClientHas) {
  const std::vector<ChoicePosition> order = {
      {}, {0, Stage::kTokens}, {1, Stage::kTokens}, {1, Stage::kRest}, {1, Stage::kEnded}, {2, Stage::kTokens}};
  for (size_t i = 1; i < order.size(); ++i) EXPECT_LT(order[i - 1], order[i]);
}

TEST(EventPosition, RefusesWhatIsNoIdOfTheAnswer) {
  for (const char* id : {"x", "1.2", "-1", "1f", "e", "99999999999"}) {
    EXPECT_EQ(ParseEventId(id, 1).status().code(), absl::StatusCode::kInvalidArgument) << id;
  }
  EXPECT_FALSE(ParseEventId("1", 2).ok());
}

}  // namespace
}  // namespace winnow
