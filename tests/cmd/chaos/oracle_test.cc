// What counts as an answer that a fault has changed.
#include "cmd/chaos/load/oracle.h"

#include <gtest/gtest.h>

#include "cmd/chaos/faults/fault.h"

namespace winnow::chaos {
namespace {

Answer Complete() {
  Answer answer;
  answer.done = true;
  answer.choices[0] = {.ids = {5, 6, 7}, .text = "abc", .finish_reason = "length"};
  answer.choices[1] = {.ids = {8}, .text = "d", .finish_reason = "stop"};
  return answer;
}

Verdict VerdictOf(const Answer& answer) {
  return Judge(Complete(), answer).verdict;
}

TEST(Oracle, AnEqualAnswerIsTheSame) {
  EXPECT_EQ(VerdictOf(Complete()), Verdict::kSame);
}

TEST(Oracle, EveryOtherTokenTextOrEndIsSeen) {
  std::vector<Answer> others(6, Complete());
  others[0].choices[0].ids[1] = 9;
  others[1].choices[0].ids.pop_back();
  others[2].choices[1].ids.push_back(1);
  others[3].choices[1].text = "e";
  others[4].choices[0].finish_reason = "stop";
  others[5].choices.erase(1);
  for (Answer& answer : others) {
    EXPECT_EQ(VerdictOf(answer), Verdict::kOther);
    answer.not_identical = true;
    EXPECT_EQ(VerdictOf(answer), Verdict::kToldOther);
  }
}

TEST(Oracle, WhereTheTokensDifferIsSaid) {
  Answer answer = Complete();
  answer.choices[0].ids[1] = 9;
  answer.reattached = 2;
  EXPECT_EQ(Judge(Complete(), answer).why, "sample 0: token 1 of 3 is 9 in place of 6, moved 2 times");
}

TEST(Oracle, AnAnswerWithoutEndIsLostWhateverItHas) {
  Answer answer = Complete();
  answer.done = false;
  EXPECT_EQ(VerdictOf(answer), Verdict::kLost);
}

TEST(Oracle, ABrokenRuleOfStreamsCountsAlsoWithTheRightTokens) {
  Answer answer = Complete();
  answer.breach = "a sample ended twice";
  EXPECT_EQ(VerdictOf(answer), Verdict::kBrokenRule);
}

TEST(Faults, AreFoundByTheirNames) {
  const auto kinds = ParseFaults("kill-cache,starve");
  ASSERT_TRUE(kinds.ok()) << kinds.status();
  ASSERT_EQ(kinds->size(), 2u);
  EXPECT_EQ(kinds->front().role, "cache-rank");
  EXPECT_EQ(kinds->back().action, Action::kStarve);
}

TEST(Faults, OtherNamesAreRefused) {
  EXPECT_NE(ParseFaults("kil").status().message().find("is none of kill, kill-inference"), absl::string_view::npos);
}

TEST(Faults, SayWhatTheyNeed) {
  for (const FaultKind& kind : AllFaults()) {
    const bool is_of_links =
        kind.name.starts_with("cut") || kind.name.starts_with("isolate") || kind.name.starts_with("throttle");
    EXPECT_EQ(kind.Needs().networks, is_of_links) << kind.name;
    EXPECT_EQ(kind.Needs().small_disk, kind.name == "full-disk") << kind.name;
  }
}

}  // namespace
}  // namespace winnow::chaos
