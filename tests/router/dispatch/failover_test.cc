#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "router/dispatch/failing_ranks.h"
#include "tests/router/dispatch/dispatcher_fixture.h"

namespace winnow::test {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FailoverTest : public DispatcherTest {};

// One attempt, so.
MATCHER_P(LostBy, loss, "") {
  for (size_t i = 0; i < arg.size(); ++i) {
    if (arg[i] != (i == static_cast<size_t>(loss) ? 1u : 0u)) return false;
  }
  return true;
}

TEST_F(FailoverTest, ALostInferenceRankIsReplacedByAttachingToTheSequence) {
  ScriptedRank first("inference-0");
  StartDispatcher({first.identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const ScriptedRank::Submit submit = first.AwaitSubmit(1);
  first.SendTokens(submit.request_id(), 0, {10, 11, 12});
  recorder.AwaitTokens(3);

  ScriptedRank second("inference-1");
  Join(second.identity());
  first.Kill();
  const ScriptedRank::Submit again = second.AwaitSubmit(1);
  EXPECT_TRUE(again.attach());
  EXPECT_FALSE(submit.repeats());
  EXPECT_TRUE(again.repeats()) << "it does not wait behind new ones";
  EXPECT_EQ(again.sequence_id(), submit.sequence_id());
  EXPECT_NE(again.request_id(), submit.request_id());
  EXPECT_EQ(again.cache_ranks(0).SerializeAsString(), submit.cache_ranks(0).SerializeAsString());
  EXPECT_THAT(again.prompt_token_ids(), ElementsAre(1, 2, 3));
  EXPECT_THAT(again.generated_token_ids(), ElementsAre(10, 11, 12));
  EXPECT_EQ(again.sampling().SerializeAsString(), submit.sampling().SerializeAsString());

  // The new rank replays one token that was delivered already.
  second.SendTokens(again.request_id(), 2, {12, 13});
  second.SendTokens(again.request_id(), 4, {14});
  second.SendFinished(again.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_THAT(recorder.ids(), ElementsAre(10, 11, 12, 13, 14));
  EXPECT_EQ(dispatcher_->counters().failovers_reattach, 1u);
  EXPECT_EQ(dispatcher_->counters().failovers_recompute, 0u);
  EXPECT_THAT(dispatcher_->counters().lost_attempts, LostBy(Loss::kRankEnded));
  EXPECT_EQ(dispatcher_->counters().replayed_tokens, 1u);
  EXPECT_EQ(dispatcher_->counters().mismatched_tokens, 0u);
  ExpectNothingLeft();
}

// Ranks whose kernels round or add up differently may go on for each other, and the answer says so.
TEST_F(FailoverTest, GoingOnUnderOtherNumericsIsMarked) {
  const auto join = [&](const v1::Identity& identity, const char* numerics) {
    v1::RegisterRequest request = Registration(identity);
    request.mutable_fingerprint()->set_numerics(numerics);
    ASSERT_TRUE(registry_.Register(request).ok());
  };
  StartDispatcher({CacheRank("cache-0")});
  uint64_t marked = 0;
  for (const char* numerics : {"cuda-9.0/bf16/bf16/tp2", "cuda-9.0/bf16/bf16"}) {
    ScriptedRank first("inference-0"), second("inference-1");
    join(first.identity(), "cuda-9.0/bf16/bf16/tp2");
    Recorder recorder;
    auto stream = Start(Request(), &recorder);
    first.SendTokens(first.AwaitSubmit(1).request_id(), 0, {10});
    recorder.AwaitTokens(1);
    join(second.identity(), numerics);
    first.Kill();
    const ScriptedRank::Submit again = second.AwaitSubmit(1);
    second.SendTokens(again.request_id(), 1, {11});
    second.SendFinished(again.request_id());
    EXPECT_TRUE(recorder.AwaitEnd().ok());
    EXPECT_EQ(dispatcher_->counters().not_identical, marked++) << numerics;
  }
}

TEST_F(FailoverTest, AnotherTokenDrawnAgainIsMarked) {
  ScriptedRank first("inference-0");
  StartDispatcher({first.identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  first.SendTokens(first.AwaitSubmit(1).request_id(), 0, {10, 11});
  recorder.AwaitTokens(2);
  ScriptedRank second("inference-1");
  Join(second.identity());
  first.Kill();
  const ScriptedRank::Submit again = second.AwaitSubmit(1);
  second.SendTokens(again.request_id(), 1, {99, 12});
  second.SendFinished(again.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_THAT(recorder.ids(), ElementsAre(10, 11, 12));
  EXPECT_EQ(dispatcher_->counters().mismatched_tokens, 1u);
  EXPECT_EQ(dispatcher_->counters().not_identical, 1u);
}

TEST_F(FailoverTest, AForkThatGoesOnUnderOtherNumericsThanItsSourceIsMarked) {
  StartDispatcher({CacheRank("cache-0")});
  ScriptedRank rank("inference-0");
  v1::RegisterRequest request = Registration(rank.identity());
  request.mutable_fingerprint()->set_numerics("b");
  ASSERT_TRUE(registry_.Register(request).ok());
  uint32_t submits = 0;
  uint64_t marked = 0;
  for (const auto& [numerics, not_identical] : {std::pair{"b", false}, {"a", false}, {"b", true}}) {
    ForkSource source;
    source.numerics = numerics;
    source.not_identical = not_identical;
    TokenRequest fork = Request();
    fork.fork = TokenFork{.source = source, .token_ids = {7, 8}};
    Recorder recorder;
    auto stream = Start(fork, &recorder);
    rank.SendFinished(rank.AwaitSubmit(++submits).request_id());
    EXPECT_TRUE(recorder.AwaitEnd().ok());
    marked += *numerics != 'b' || not_identical;
    EXPECT_EQ(dispatcher_->counters().not_identical, marked) << numerics;
  }
}

TEST_F(FailoverTest, WaitsForARestartOfTheOnlyRank) {
  auto first = std::make_unique<ScriptedRank>("inference-0");
  StartDispatcher({first->identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const ScriptedRank::Submit submit = first->AwaitSubmit(1);
  first->SendTokens(submit.request_id(), 0, {10});
  recorder.AwaitTokens(1);
  const v1::Identity old = first->identity();
  first.reset();
  registry_.Leave(old);

  ScriptedRank restarted("inference-0");
  Join(restarted.identity());
  const ScriptedRank::Submit again = restarted.AwaitSubmit(1);
  EXPECT_TRUE(again.attach());
  EXPECT_THAT(again.generated_token_ids(), ElementsAre(10));
  restarted.SendFinished(again.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
}

TEST_F(FailoverTest, ALostCacheRankMeansPrefillingAgainElsewhere) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const ScriptedRank::Submit submit = rank.AwaitSubmit(1);
  rank.SendTokens(submit.request_id(), 0, {10, 11});
  recorder.AwaitTokens(2);

  Join(CacheRank("cache-1"));
  registry_.Leave(CacheRank("cache-0"));
  rank.SendFailed(submit.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  const ScriptedRank::Submit again = rank.AwaitSubmit(2);
  EXPECT_FALSE(again.attach());
  EXPECT_NE(again.sequence_id(), submit.sequence_id());
  EXPECT_EQ(again.cache_ranks(0).rank(), "cache-1");
  EXPECT_THAT(again.generated_token_ids(), ElementsAre(10, 11));
  rank.SendTokens(again.request_id(), 2, {12});
  rank.SendFinished(again.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_THAT(recorder.ids(), ElementsAre(10, 11, 12));
  EXPECT_EQ(dispatcher_->counters().failovers_recompute, 1u);
}

TEST_F(FailoverTest, ALostSequenceIsOpenedAnewOnAnotherCacheRankIfThereIsOne) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0"), CacheRank("cache-1")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const ScriptedRank::Submit submit = rank.AwaitSubmit(1);
  rank.SendFailed(submit.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const ScriptedRank::Submit again = rank.AwaitSubmit(2);
  EXPECT_FALSE(again.attach());
  EXPECT_NE(again.sequence_id(), submit.sequence_id());
  EXPECT_NE(again.cache_ranks(0).rank(), submit.cache_ranks(0).rank());
  // What happens next to the new sequence is about that one alone.
  rank.SendFailed(again.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  const ScriptedRank::Submit third = rank.AwaitSubmit(3);
  EXPECT_TRUE(third.attach());
  EXPECT_EQ(third.sequence_id(), again.sequence_id());
  rank.SendFinished(third.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
}

TEST_F(FailoverTest, ASequenceWhoseCacheRankCannotBeReachedIsGivenUp) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0"), CacheRank("cache-1")},
                  {.max_attach_failures = 2, .retry = {.first = milliseconds(1)}});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const ScriptedRank::Submit first = rank.AwaitSubmit(1);
  rank.SendFailed(first.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  const ScriptedRank::Submit second = rank.AwaitSubmit(2);
  EXPECT_TRUE(second.attach());
  rank.SendFailed(second.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  const ScriptedRank::Submit third = rank.AwaitSubmit(3);
  EXPECT_FALSE(third.attach());
  EXPECT_NE(third.cache_ranks(0).rank(), first.cache_ranks(0).rank());
  rank.SendFinished(third.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
}

// What a rank that lives says of an attempt does not end the request while it has time.
TEST_F(FailoverTest, IsTriedUntilItsDeadlineHoweverOftenAttemptsFail) {
  constexpr size_t kFailures = 40;
  ScriptedRank rank("inference-0", [](ScriptedRank& self, const ScriptedRank::Submit& submit) {
    if (self.submit_count() <= kFailures) {
      return self.SendFailed(submit.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
    }
    self.SendTokens(submit.request_id(), 0, {50});
    self.SendFinished(submit.request_id());
  });
  StartDispatcher({rank.identity(), CacheRank("cache-0")},
                  {.retry = {.first = milliseconds(1), .most = milliseconds(1)}});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_EQ(rank.submit_count(), kFailures + 1);
  EXPECT_THAT(recorder.ids(), ElementsAre(50));
}

// As one that opens no data plane to the cache rank, and says that it serves.
TEST_F(FailoverTest, ARankOnWhichEveryAttemptFailsIsNotTriedByEveryRequest) {
  ScriptedRank fails("inference-0", [](ScriptedRank& self, const ScriptedRank::Submit& submit) {
    self.SendFailed(submit.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  });
  ScriptedRank works("inference-1", [](ScriptedRank& self, const ScriptedRank::Submit& submit) {
    self.SendTokens(submit.request_id(), 0, {50});
    self.SendFinished(submit.request_id());
  });
  StartDispatcher({fails.identity(), works.identity(), CacheRank("cache-0")});
  for (size_t before = SIZE_MAX; before != fails.submit_count();) {
    ASSERT_LT(fails.submit_count(), 20u) << "requests find out one by one";
    before = fails.submit_count();
    Recorder recorder;
    auto stream = Start(Request(), &recorder);
    ASSERT_TRUE(recorder.AwaitEnd().ok());
    std::this_thread::sleep_for(FailingRanks::kAtOnce);  // so that each counts
  }
  EXPECT_GE(fails.submit_count(), FailingRanks::kFailures);
}

TEST_F(FailoverTest, ADeadlineThatPassesBetweenAttemptsTellsOfThem) {
  ScriptedRank rank("inference-0", [](ScriptedRank& self, const ScriptedRank::Submit& submit) {
    self.SendFailed(submit.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  });
  StartDispatcher({rank.identity(), CacheRank("cache-0")}, {.retry = {.first = milliseconds(1)}});
  Recorder recorder;
  TokenRequest request = Request();
  request.deadline = std::chrono::system_clock::now() + milliseconds(1000);
  auto stream = Start(request, &recorder);
  const absl::Status status = recorder.AwaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the last of them: scripted failure"));
}

// The request may be what kills them.
TEST_F(FailoverTest, GivesUpWhenRanksDieUnderARequestThatBringsNoToken) {
  constexpr uint32_t kMaxRankDeaths = 3;
  StartDispatcher({CacheRank("cache-0")}, {.max_rank_deaths = kMaxRankDeaths, .retry = {.first = milliseconds(1)}});
  auto rank = std::make_unique<ScriptedRank>("inference-0");
  Join(rank->identity());
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  // The first two bring a token each, so that the count begins with the second one's death.
  for (uint32_t i = 0; i < 1 + kMaxRankDeaths; ++i) {
    const uint64_t id = rank->AwaitSubmit(1).request_id();
    if (i < 2) {
      rank->SendTokens(id, i, {50});
      recorder.AwaitTokens(i + 1);
    }
    const Registry::StreamId stream_of_rank = registry_.NewStream();
    v1::HeartbeatRequest beat;
    *beat.mutable_identity() = rank->identity();
    registry_.Heartbeat(stream_of_rank, beat);
    rank.reset();
    registry_.StreamEnded(stream_of_rank);
    if (i == kMaxRankDeaths) break;
    rank = std::make_unique<ScriptedRank>("inference-" + std::to_string(i + 1));
    Join(rank->identity());
  }
  const absl::Status status = recorder.AwaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 inference ranks"));
  ExpectNothingLeft();
}

TEST_F(FailoverTest, ReplayedTokensAreDroppedAndComparedWithWhatWasDelivered) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const uint64_t id = rank.AwaitSubmit(1).request_id();
  rank.SendTokens(id, 0, {10, 11, 12});
  rank.SendTokens(id, 0, {10, 99});
  rank.SendTokens(id, 1, {11, 12, 13});
  rank.SendFinished(id);
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_THAT(recorder.ids(), ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(dispatcher_->counters().replayed_tokens, 4u);
  EXPECT_EQ(dispatcher_->counters().mismatched_tokens, 1u);
}

TEST_F(FailoverTest, ARankThatLeavesTheTableLosesItsRequestsAtOnce) {
  // It is stopped, not dead: its socket stays open, and only the lease shows it.
  ScriptedRank stuck("inference-0");
  StartDispatcher({stuck.identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const uint64_t old_id = stuck.AwaitSubmit(1).request_id();
  ScriptedRank second("inference-1");
  Join(second.identity());
  registry_.Leave(stuck.identity());
  const uint64_t id = second.AwaitSubmit(1).request_id();
  // When it wakes up, nobody listens.
  stuck.SendTokens(old_id, 0, {66});
  second.SendTokens(id, 0, {10});
  second.SendFinished(id);
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_THAT(recorder.ids(), ElementsAre(10));
  EXPECT_THAT(dispatcher_->counters().lost_attempts, LostBy(Loss::kRankLeft));
}

// Silent for longer than a lease, but there is nobody who could take its answers, and it comes back.
TEST_F(FailoverTest, ARankThatComesBackWhileItsAnswersWaitKeepsThem) {
  ScriptedRank first("inference-0"), second("inference-1");
  StartDispatcher({first.identity(), second.identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  while (first.submit_count() + second.submit_count() == 0) std::this_thread::sleep_for(milliseconds(1));
  ScriptedRank& rank = first.submit_count() > 0 ? first : second;
  const uint64_t id = rank.AwaitSubmit(1).request_id();
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(milliseconds(100));
    registry_.ExpireLeases();
  }
  EXPECT_FALSE(registry_.Snapshot().ranks.back().takes_work());
  rank.SendTokens(id, 0, {10});
  rank.SendFinished(id);
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_EQ(first.submit_count() + second.submit_count(), 1u);
  for (const auto& lost : dispatcher_->counters().lost_attempts) EXPECT_EQ(lost, 0u);
}

TEST_F(FailoverTest, CountsHowAttemptsWereLostByTheWordsOfRanks) {
  EXPECT_EQ(LossOf(absl::StatusCode::kDeadlineExceeded, false), Loss::kCacheLate);
  EXPECT_EQ(LossOf(absl::StatusCode::kUnavailable, false), Loss::kCacheLost);
  EXPECT_EQ(LossOf(absl::StatusCode::kAborted, false), Loss::kTakenOver);
  EXPECT_EQ(LossOf(absl::StatusCode::kAborted, true), Loss::kSequenceLost);
  EXPECT_EQ(LossOf(absl::StatusCode::kDataLoss, true), Loss::kDamaged);
  EXPECT_EQ(LossOf(absl::StatusCode::kDataLoss, false), Loss::kFailed);
}

}  // namespace
}  // namespace winnow::test
