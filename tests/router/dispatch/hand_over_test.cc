#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include "tests/router/dispatch/dispatcher_fixture.h"

namespace winnow::test {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

// One rank for prefill, one that decodes, one cache rank.
class HandOverTest : public DispatcherTest {
 protected:
  HandOverTest() {
    Join(prefill_.identity(), v1::PHASES_PREFILL);
    Join(decode_.identity(), v1::PHASES_DECODE, /*decode_prefill_tokens=*/2);
    Join(CacheRank("cache-0"));
    MakeDispatcher({.retry = {.first = milliseconds(1)}});
  }
  // The request that the rank for prefill has handed over after token 10.
  ScriptedRank::Submit HandOver() {
    ScriptedRank::Submit submit = prefill_.AwaitSubmit(1);
    prefill_.SendTokens(submit.request_id(), 0, {10});
    prefill_.SendHandedOver(submit.request_id());
    return submit;
  }

  ScriptedRank prefill_{"prefill-0"};
  ScriptedRank decode_{"decode-0"};
  Recorder recorder_;
};

TEST_F(HandOverTest, ThePromptIsComputedOnOneRankAndAnotherGoesOn) {
  auto stream = Start(Request(), &recorder_);
  const ScriptedRank::Submit submit = HandOver();
  EXPECT_TRUE(submit.hand_over());
  EXPECT_FALSE(submit.attach());
  const ScriptedRank::Submit next = decode_.AwaitSubmit(1);
  EXPECT_FALSE(next.hand_over());
  EXPECT_TRUE(next.attach());
  EXPECT_EQ(next.sequence_id(), submit.sequence_id());
  EXPECT_EQ(next.cache_ranks(0).SerializeAsString(), submit.cache_ranks(0).SerializeAsString());
  EXPECT_THAT(next.generated_token_ids(), ElementsAre(10));
  decode_.SendTokens(next.request_id(), 1, {11});
  prefill_.AwaitCancel(submit.request_id());  // which frees what the rank remembers of it
  decode_.SendFinished(next.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_THAT(recorder_.ids(), ElementsAre(10, 11));
  const DispatcherCounters& counters = dispatcher_->counters();
  EXPECT_EQ(counters.hand_overs, 1u);
  EXPECT_EQ(counters.failovers_reattach, 0u);
  EXPECT_EQ(counters.failovers_recompute, 0u);
  const std::vector<uint64_t> timed = counters.hand_over_seconds.counts();
  EXPECT_EQ(std::accumulate(timed.begin(), timed.end(), uint64_t{0}), 1u);
  EXPECT_GT(counters.hand_over_seconds.sum(), 0);
  ExpectNothingLeft();
}

TEST_F(HandOverTest, AShortPromptStaysOnTheRankThatDecodes) {
  auto stream = Start(Request({1, 2}), &recorder_);
  const ScriptedRank::Submit submit = decode_.AwaitSubmit(1);
  EXPECT_FALSE(submit.hand_over());
  EXPECT_FALSE(submit.attach());
  decode_.SendFinished(submit.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_EQ(prefill_.submit_count(), 0u);
}

TEST_F(HandOverTest, AnAnswerThatEndsWithItsFirstTokenIsNotHandedOver) {
  auto stream = Start(Request(), &recorder_);
  const ScriptedRank::Submit submit = prefill_.AwaitSubmit(1);
  prefill_.SendTokens(submit.request_id(), 0, {10});
  prefill_.SendFinished(submit.request_id(), v1::FINISH_REASON_STOP);
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_EQ(decode_.submit_count(), 0u);
}

TEST_F(HandOverTest, ARequestThatEndsInBetweenIsFreedOnBothRanks) {
  auto stream = Start(Request(), &recorder_);
  const ScriptedRank::Submit submit = HandOver();
  const ScriptedRank::Submit next = decode_.AwaitSubmit(1);
  stream.reset();
  prefill_.AwaitCancel(submit.request_id());
  decode_.AwaitCancel(next.request_id());
  ExpectNothingLeft();
}

TEST_F(HandOverTest, ALostRankThatDecodesIsReplacedByOneOfItsKind) {
  ScriptedRank other("decode-1");
  auto stream = Start(Request(), &recorder_);
  HandOver();
  const ScriptedRank::Submit next = decode_.AwaitSubmit(1);
  decode_.SendTokens(next.request_id(), 1, {11});
  recorder_.AwaitTokens(2);
  Join(other.identity(), v1::PHASES_DECODE);
  decode_.Kill();
  const ScriptedRank::Submit again = other.AwaitSubmit(1);
  EXPECT_TRUE(again.attach());
  EXPECT_THAT(again.generated_token_ids(), ElementsAre(10, 11));
  other.SendFinished(again.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_EQ(prefill_.submit_count(), 1u);
  EXPECT_EQ(dispatcher_->counters().failovers_reattach, 1u);
}

TEST_F(HandOverTest, WithoutARankThatDecodesTheOneForPrefillGoesOn) {
  auto stream = Start(Request(), &recorder_);
  const ScriptedRank::Submit submit = HandOver();
  decode_.AwaitSubmit(1);
  registry_.Leave(decode_.identity());
  decode_.Kill();
  const ScriptedRank::Submit again = prefill_.AwaitSubmit(2);
  EXPECT_TRUE(again.attach());
  EXPECT_FALSE(again.hand_over());
  EXPECT_EQ(again.sequence_id(), submit.sequence_id());
  prefill_.SendFinished(again.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
}

TEST_F(HandOverTest, ALostRankForPrefillIsReplacedByOneOfItsKind) {
  ScriptedRank other("prefill-1");
  auto stream = Start(Request(), &recorder_);
  prefill_.AwaitSubmit(1);
  Join(other.identity(), v1::PHASES_PREFILL);
  prefill_.Kill();
  const ScriptedRank::Submit again = other.AwaitSubmit(1);
  EXPECT_TRUE(again.hand_over());
  EXPECT_EQ(decode_.submit_count(), 0u);
  // It was lost before it had handed over: what it drew is known, and its prompt may be incomplete.
  other.SendTokens(again.request_id(), 0, {10});
  recorder_.AwaitTokens(1);
  ScriptedRank third("prefill-2");
  Join(third.identity(), v1::PHASES_PREFILL);
  other.Kill();
  const ScriptedRank::Submit after = third.AwaitSubmit(1);
  EXPECT_TRUE(after.hand_over());
  EXPECT_THAT(after.generated_token_ids(), ElementsAre(10));
  third.SendHandedOver(after.request_id());
  const ScriptedRank::Submit next = decode_.AwaitSubmit(1);
  EXPECT_TRUE(next.attach());
  decode_.SendFinished(next.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_THAT(recorder_.ids(), ElementsAre(10));
}

TEST_F(HandOverTest, WithoutARankForPrefillTheOneThatDecodesDoesAll) {
  auto stream = Start(Request(), &recorder_);
  prefill_.AwaitSubmit(1);
  registry_.Leave(prefill_.identity());
  prefill_.Kill();
  const ScriptedRank::Submit again = decode_.AwaitSubmit(1);
  EXPECT_FALSE(again.hand_over());
  decode_.SendTokens(again.request_id(), 0, {10});
  decode_.SendFinished(again.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
}

TEST_F(HandOverTest, ASequenceThatWasLostMeanwhileGoesThroughPrefillAgain) {
  auto stream = Start(Request(), &recorder_);
  const ScriptedRank::Submit submit = HandOver();
  const ScriptedRank::Submit next = decode_.AwaitSubmit(1);
  decode_.SendFailed(next.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const ScriptedRank::Submit again = prefill_.AwaitSubmit(2);
  EXPECT_TRUE(again.hand_over());
  EXPECT_FALSE(again.attach());
  EXPECT_NE(again.sequence_id(), submit.sequence_id());
  EXPECT_THAT(again.generated_token_ids(), ElementsAre(10));
  prefill_.AwaitCancel(submit.request_id());
  prefill_.SendHandedOver(again.request_id());
  const ScriptedRank::Submit last = decode_.AwaitSubmit(2);
  EXPECT_EQ(last.sequence_id(), again.sequence_id());
  decode_.SendFinished(last.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_EQ(dispatcher_->counters().failovers_recompute, 1u);
}

}  // namespace
}  // namespace winnow::test
