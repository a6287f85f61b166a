// Requests leave a rank that drains, and nobody notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/router/dispatch/dispatcher_fixture.h"

namespace winnow::test {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

// Two inference ranks, the request on the first one, and a cache rank that both reach.
class MoveTest : public DispatcherTest {
 protected:
  MoveTest() {
    StartDispatcher({first_.identity(), CacheRank("cache-0")}, {.retry = {.first = milliseconds(1)}});
    stream_ = Start(Request(), &recorder_);
    submit_ = first_.AwaitSubmit(1);
    Join(second_.identity());
  }
  void GenerateOnFirst(uint32_t index, uint32_t id) {
    first_.SendTokens(submit_.request_id(), index, {id});
    recorder_.AwaitTokens(index + 1);
  }
  void Drain() { ASSERT_TRUE(registry_.SetDuty(first_.identity().rank(), RankDuty::kDrain).ok()); }
  uint64_t moved() const { return dispatcher_->counters().moved; }

  ScriptedRank first_{"inference-0"};
  ScriptedRank second_{"inference-1"};
  Recorder recorder_;
  std::unique_ptr<TokenStream> stream_;
  ScriptedRank::Submit submit_;
};

TEST_F(MoveTest, AnotherRankAttachesAndGoesOn) {
  GenerateOnFirst(0, 10);
  Drain();
  const ScriptedRank::Submit next = second_.AwaitSubmit(1);
  EXPECT_TRUE(next.attach());
  EXPECT_EQ(next.sequence_id(), submit_.sequence_id());
  EXPECT_EQ(next.cache_ranks(0).rank(), "cache-0");
  EXPECT_THAT(next.generated_token_ids(), ElementsAre(10));
  second_.SendTokens(next.request_id(), 1, {11});
  first_.AwaitCancel(submit_.request_id());
  second_.SendFinished(next.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_THAT(recorder_.ids(), ElementsAre(10, 11));
  EXPECT_EQ(moved(), 1u);
  EXPECT_EQ(dispatcher_->counters().failovers_reattach, 0u) << "a move is no failure";
  EXPECT_TRUE(dispatcher_->Assigned().empty());
  ExpectNothingLeft();
}

TEST_F(MoveTest, TheFirstRankIsHeardUntilTheSecondHasTheSequence) {
  GenerateOnFirst(0, 10);
  Drain();
  const ScriptedRank::Submit next = second_.AwaitSubmit(1);
  GenerateOnFirst(1, 11);
  GenerateOnFirst(2, 12);
  first_.SendFailed(submit_.request_id(), /*retryable=*/true, /*sequence_lost=*/false);  // fenced
  second_.SendTokens(next.request_id(), 1, {11, 12, 13});
  second_.SendFinished(next.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_THAT(recorder_.ids(), ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(dispatcher_->counters().replayed_tokens, 2u);
  EXPECT_EQ(dispatcher_->counters().mismatched_tokens, 0u);
  EXPECT_TRUE(dispatcher_->Assigned().empty());
}

TEST_F(MoveTest, AnAnswerThatEndsMeanwhileHasEnded) {
  GenerateOnFirst(0, 10);
  Drain();
  const ScriptedRank::Submit next = second_.AwaitSubmit(1);
  first_.SendFinished(submit_.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  second_.AwaitCancel(next.request_id());
  EXPECT_THAT(recorder_.ids(), ElementsAre(10));
  EXPECT_EQ(moved(), 0u);
  EXPECT_TRUE(dispatcher_->Assigned().empty());
  ExpectNothingLeft();
}

TEST_F(MoveTest, WhereTheSecondRankFailsTheFirstGoesOn) {
  GenerateOnFirst(0, 10);
  Drain();
  const ScriptedRank::Submit next = second_.AwaitSubmit(1);
  second_.SendFailed(next.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  GenerateOnFirst(1, 11);
  first_.SendFinished(submit_.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_THAT(recorder_.ids(), ElementsAre(10, 11));
  EXPECT_EQ(first_.submit_count(), 1u) << "nothing was begun anew";
  EXPECT_EQ(dispatcher_->counters().failovers_recompute, 0u);
  EXPECT_EQ(moved(), 0u);
  EXPECT_TRUE(dispatcher_->Assigned().empty());
}

TEST_F(MoveTest, APromptIsFinishedWhereItIs) {
  Drain();
  first_.SendTokens(submit_.request_id(), 0, {10});
  const ScriptedRank::Submit next = second_.AwaitSubmit(1);
  EXPECT_TRUE(next.attach());
  EXPECT_THAT(next.generated_token_ids(), ElementsAre(10));
  second_.SendTokens(next.request_id(), 1, {11});
  second_.SendFinished(next.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
}

TEST_F(MoveTest, ACordonedRankKeepsWhatItHasAndGetsNothingNew) {
  GenerateOnFirst(0, 10);
  ASSERT_TRUE(registry_.SetDuty("inference-0", RankDuty::kCordoned).ok());
  Recorder other;
  auto stream = Start(Request(), &other);
  const ScriptedRank::Submit elsewhere = second_.AwaitSubmit(1);
  EXPECT_FALSE(elsewhere.attach());
  EXPECT_NE(elsewhere.sequence_id(), submit_.sequence_id());
  GenerateOnFirst(1, 11);
  first_.SendFinished(submit_.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_EQ(second_.submit_count(), 1u);
}

TEST_F(MoveTest, ARequestThatIsAbandonedIsFreedOnBothRanks) {
  GenerateOnFirst(0, 10);
  Drain();
  const ScriptedRank::Submit next = second_.AwaitSubmit(1);
  stream_.reset();
  first_.AwaitCancel(submit_.request_id());
  second_.AwaitCancel(next.request_id());
  EXPECT_TRUE(dispatcher_->Assigned().empty());
  ExpectNothingLeft();
}

// The KV is in the process of the rank that drains, or nobody else is there.
TEST_F(MoveTest, WhatNobodyElseCanTakeStays) {
  registry_.Leave(second_.identity());
  GenerateOnFirst(0, 10);
  Drain();
  GenerateOnFirst(1, 11);
  Join(second_.identity());  // until somebody can
  const ScriptedRank::Submit next = second_.AwaitSubmit(1);
  EXPECT_THAT(next.generated_token_ids(), ElementsAre(10, 11));
  second_.SendTokens(next.request_id(), 2, {12});
  second_.SendFinished(next.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
}

}  // namespace
}  // namespace winnow::test
