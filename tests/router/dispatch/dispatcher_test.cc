#include "router/dispatch/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/router/dispatch/dispatcher_fixture.h"

namespace winnow::test {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(DispatcherTest, CarriesARequestToARankAndItsTokensBack) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  TokenRequest request = Request({4, 5, 6});
  request.top_logprobs = 2;
  request.priority = -7;
  request.stopping.add_stop_token_ids(9);
  auto stream = Start(request, &recorder);

  const ScriptedRank::Submit submit = rank.AwaitSubmit(1);
  EXPECT_THAT(submit.prompt_token_ids(), ElementsAre(4, 5, 6));
  EXPECT_EQ(submit.generated_token_ids_size(), 0);
  EXPECT_FALSE(submit.attach());
  EXPECT_EQ(submit.cache_ranks(0).rank(), "cache-0");
  EXPECT_EQ(submit.sampling().seed(), 5u);
  EXPECT_EQ(submit.stopping().max_tokens(), 100u);
  EXPECT_THAT(submit.stopping().stop_token_ids(), ElementsAre(9));
  EXPECT_EQ(submit.top_logprobs(), 2u);
  EXPECT_EQ(submit.priority(), -7);
  EXPECT_EQ(submit.selection().predictor(), v1::PREDICTOR_DEPTH);
  EXPECT_NE(submit.sequence_id(), 0u);
  EXPECT_GT(submit.deadline_unix_nanos(), 0u);
  EXPECT_EQ(dispatcher_->counters().running, 1);

  rank.SendTokens(submit.request_id(), 0, {10, 11});
  rank.SendTokens(submit.request_id(), 2, {12});
  rank.SendFinished(submit.request_id(), v1::FINISH_REASON_STOP);
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_EQ(recorder.reason(), v1::FINISH_REASON_STOP);
  EXPECT_THAT(recorder.ids(), ElementsAre(10, 11, 12));
  EXPECT_EQ(dispatcher_->counters().tokens, 3u);
  ExpectNothingLeft();
}

TEST_F(DispatcherTest, TellsHowFarThePromptIsUntilTheFirstToken) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")}, {.retry = {.first = milliseconds(1)}});
  Recorder recorder;
  TokenRequest request = Request();
  request.prompt_progress = true;
  auto stream = Start(request, &recorder);
  const ScriptedRank::Submit first = rank.AwaitSubmit(1);
  EXPECT_TRUE(first.prompt_progress());
  rank.SendPromptProgress(first.request_id(), 1, 1);
  rank.SendPromptProgress(first.request_id(), 2, 1);
  rank.SendFailed(first.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  // Another attempt begins the prompt anew.
  const ScriptedRank::Submit second = rank.AwaitSubmit(2);
  EXPECT_TRUE(second.prompt_progress());
  rank.SendPromptProgress(second.request_id(), 0, 0);
  rank.SendTokens(second.request_id(), 0, {10});
  recorder.AwaitTokens(1);
  EXPECT_THAT(recorder.prompt_progress(), ElementsAre(std::pair(1u, 1u), std::pair(2u, 1u), std::pair(0u, 0u)));
  // Behind the first token nobody wants to know.
  rank.SendFailed(second.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const ScriptedRank::Submit third = rank.AwaitSubmit(3);
  EXPECT_FALSE(third.prompt_progress());
  rank.SendPromptProgress(third.request_id(), 3, 0);
  rank.SendTokens(third.request_id(), 1, {11});
  rank.SendFinished(third.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  EXPECT_EQ(recorder.prompt_progress().size(), 3u);
  ExpectNothingLeft();
}

// A rank that is lost in the middle of a prompt leaves neither a gap nor a repeat.
TEST_F(DispatcherTest, TellsHowLikelyEachTokenOfThePromptWasOnce) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")}, {.retry = {.first = milliseconds(1)}});
  Recorder recorder;
  TokenRequest request = Request({4, 5, 6, 7});
  request.prompt_top_logprobs = 3;
  request.skip_prefix_cache = true;
  auto stream = Start(request, &recorder);
  const ScriptedRank::Submit first = rank.AwaitSubmit(1);
  EXPECT_EQ(first.prompt_top_logprobs(), 3u);
  EXPECT_TRUE(first.skip_prefix_cache());
  rank.SendPromptTokens(first.request_id(), 1, {5, 6});
  rank.SendFailed(first.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  const ScriptedRank::Submit second = rank.AwaitSubmit(2);
  EXPECT_FALSE(second.attach()) << "only an attempt that computes the prompt can tell";
  EXPECT_EQ(second.prompt_top_logprobs(), 3u);
  rank.SendPromptTokens(second.request_id(), 1, {5, 6, 7});
  rank.SendTokens(second.request_id(), 0, {10});
  recorder.AwaitTokens(1);
  EXPECT_THAT(recorder.prompt_ids(), ElementsAre(5, 6, 7));
  rank.SendFailed(second.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  const ScriptedRank::Submit third = rank.AwaitSubmit(3);
  EXPECT_TRUE(third.attach());
  EXPECT_FALSE(third.has_prompt_top_logprobs());
  rank.SendTokens(third.request_id(), 1, {11});
  rank.SendFinished(third.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  ExpectNothingLeft();
}

TEST_F(DispatcherTest, ARankThatLeavesOutLogProbabilitiesOfThePromptIsDataLoss) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  TokenRequest request = Request({4, 5, 6});
  request.prompt_top_logprobs = 0;
  auto stream = Start(request, &recorder);
  const uint64_t id = rank.AwaitSubmit(1).request_id();
  rank.SendPromptTokens(id, 1, {5});
  rank.SendTokens(id, 0, {10});
  EXPECT_EQ(recorder.AwaitEnd().code(), absl::StatusCode::kDataLoss);
}

TEST_F(DispatcherTest, AFailureThatIsTheRequestsOwnIsFinal) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  rank.SendFailed(rank.AwaitSubmit(1).request_id(), /*retryable=*/false, false, /*code=*/3);
  EXPECT_EQ(recorder.AwaitEnd().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rank.submit_count(), 1u);
  ExpectNothingLeft();
}

TEST_F(DispatcherTest, WaitsForRoomOnTheCacheRankWhileOthersAreThere) {
  constexpr uint32_t kResourceExhausted = 8;
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")},
                  {.max_attach_failures = 1, .retry = {.first = milliseconds(1)}});
  Recorder other_recorder;
  auto other = Start(Request(), &other_recorder);
  rank.AwaitSubmit(1);
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  // More often than it would be tried after a loss.
  for (size_t attempt = 2; attempt <= 6; ++attempt) {
    const ScriptedRank::Submit submit = rank.AwaitSubmit(attempt);
    EXPECT_FALSE(submit.attach());
    rank.SendFailed(submit.request_id(), /*retryable=*/false, false, kResourceExhausted);
  }
  const uint64_t id = rank.AwaitSubmit(7).request_id();
  EXPECT_EQ(dispatcher_->counters().failovers_recompute, 0u);
  // Alone, it will never fit.
  other.reset();
  rank.SendFailed(id, /*retryable=*/false, false, kResourceExhausted);
  EXPECT_EQ(recorder.AwaitEnd().code(), absl::StatusCode::kResourceExhausted);
  ExpectNothingLeft();
}

// What does not fit one cache rank may fit another. Where it fits none, the last one's words are the answer.
TEST_F(DispatcherTest, TriesOtherCacheRanksThanThoseThatCouldNeverHoldIt) {
  constexpr uint32_t kOutOfRange = 11;
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0"), CacheRank("cache-1")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const ScriptedRank::Submit first = rank.AwaitSubmit(1);
  EXPECT_EQ(first.cache_ranks(0).rank(), "cache-0");
  rank.SendFailed(first.request_id(), /*retryable=*/false, false, kOutOfRange);
  const ScriptedRank::Submit second = rank.AwaitSubmit(2);
  EXPECT_EQ(second.cache_ranks(0).rank(), "cache-1");
  EXPECT_FALSE(second.attach());
  rank.SendTokens(second.request_id(), 0, {10});
  rank.SendFinished(second.request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());

  Recorder too_large_recorder;
  auto too_large = Start(Request(), &too_large_recorder);
  for (size_t attempt = 3; attempt <= 4; ++attempt) {
    rank.SendFailed(rank.AwaitSubmit(attempt).request_id(), /*retryable=*/false, false, kOutOfRange);
  }
  EXPECT_EQ(too_large_recorder.AwaitEnd().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rank.submit_count(), 4u);
  EXPECT_EQ(dispatcher_->counters().failovers_recompute, 0u);
  ExpectNothingLeft();
}

TEST_F(DispatcherTest, ARequestWhoseStoredRowsAreDamagedIsComputedAnewUntilItHappensTooOften) {
  constexpr uint32_t kDataLoss = 15;
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")}, {.max_damages = 3, .retry = {.first = milliseconds(1)}});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  for (size_t attempt = 1; attempt <= 3; ++attempt) {
    const ScriptedRank::Submit submit = rank.AwaitSubmit(attempt);
    EXPECT_FALSE(submit.attach()) << "nothing that is stored is used again";
    if (attempt == 1) rank.SendTokens(submit.request_id(), 0, {10});
    rank.SendFailed(submit.request_id(), /*retryable=*/true, /*sequence_lost=*/true, kDataLoss);
  }
  EXPECT_EQ(recorder.AwaitEnd().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(rank.submit_count(), 3u);
  ExpectNothingLeft();
}

TEST_F(DispatcherTest, AGapInTheTokensIsDataLoss) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const uint64_t id = rank.AwaitSubmit(1).request_id();
  rank.SendTokens(id, 0, {10});
  rank.SendTokens(id, 2, {12});
  EXPECT_EQ(recorder.AwaitEnd().code(), absl::StatusCode::kDataLoss);
  rank.AwaitCancel(id);
}

TEST_F(DispatcherTest, ASilentRankDoesNotOutliveTheDeadline) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  TokenRequest request = Request();
  request.deadline = std::chrono::system_clock::now() + milliseconds(150);
  auto stream = Start(request, &recorder);
  const uint64_t id = rank.AwaitSubmit(1).request_id();
  EXPECT_EQ(recorder.AwaitEnd().code(), absl::StatusCode::kDeadlineExceeded);
  rank.AwaitCancel(id);
  ExpectNothingLeft();
  EXPECT_EQ(dispatcher_->Start(request, &recorder).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(DispatcherTest, ARequestWithoutARankWaitsOnlySoLong) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")}, {.rank_wait = milliseconds(100)});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  rank.AwaitSubmit(1);
  rank.Kill();
  registry_.Leave(rank.identity());
  const absl::Status status = recorder.AwaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no inference rank"));
  ExpectNothingLeft();
}

TEST_F(DispatcherTest, RefusesWhatItCannotServeOrQueue) {
  MakeDispatcher({.max_queue = 2});
  Recorder recorder;
  EXPECT_EQ(dispatcher_->Start(Request(), &recorder).status().code(), absl::StatusCode::kUnavailable);
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  EXPECT_EQ(dispatcher_->Start(Request(), &recorder).status().code(), absl::StatusCode::kUnavailable);
  Join(CacheRank("cache-0"));

  Recorder first_recorder;
  Recorder second_recorder;
  auto first = Start(Request(), &first_recorder);
  auto second = Start(Request(), &second_recorder);
  const absl::Status status = dispatcher_->Start(Request(), &recorder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("queue is full"));
  second.reset();
  auto third = Start(Request(), &recorder);
}

// Ranks that were there may come back: a request waits for them within the queue, like those that are under way.
TEST_F(DispatcherTest, ANewRequestWaitsForRanksThatAreAwayForAMoment) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")}, {.max_queue = 1});
  registry_.Leave(CacheRank("cache-0"));
  registry_.ReportUnreachable(rank.identity());
  Recorder recorder, refused;
  auto stream = Start(Request(), &recorder);
  EXPECT_EQ(dispatcher_->counters().waiting, 1);
  EXPECT_EQ(dispatcher_->Start(Request(), &refused).status().code(), absl::StatusCode::kResourceExhausted);
  Join(rank.identity());
  EXPECT_EQ(rank.submit_count(), 0u);
  Join(CacheRank("cache-0"));
  rank.SendFinished(rank.AwaitSubmit(1).request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  ExpectNothingLeft();
}

TEST_F(DispatcherTest, ANewRequestThatNoRankComesForEndsInTime) {
  StartDispatcher({ScriptedRank("inference-0").identity(), CacheRank("cache-0")},
                  {.rank_wait = milliseconds(1), .why_no_rank = [] { return "cannot reach cache-0 at 10.0.0.2:50"; }});
  registry_.Leave(CacheRank("cache-0"));
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const absl::Status status = recorder.AwaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no cache rank can take work"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(cannot reach cache-0 at 10.0.0.2:50)"));
  ExpectNothingLeft();
}

// On a machine without free cores leases run out, and what lives takes its time to register again.
TEST_F(DispatcherTest, ARequestWaitsUntilItsDeadlineForRanksThatAreLate) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")}, {.rank_wait = milliseconds(20)});
  while (!registry_.Snapshot().ranks.empty()) {
    std::this_thread::sleep_for(milliseconds(20));
    registry_.ExpireLeases();
  }
  registry_.Knocked(rank.identity());
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(dispatcher_->counters().waiting, 1);
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  rank.SendFinished(rank.AwaitSubmit(1).request_id());
  EXPECT_TRUE(recorder.AwaitEnd().ok());
  ExpectNothingLeft();
}

TEST_F(DispatcherTest, AnObserverMayDestroyItsStreamInACallback) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  struct Impatient : TokenObserver {
    void OnTokens(uint32_t, const std::vector<v1::Token>&) override {
      std::unique_lock lock(mutex);
      ready.wait(lock, [this] { return stream != nullptr; });
      auto doomed = std::move(stream);
      lock.unlock();
      doomed.reset();
      lock.lock();
      ++calls;
      ready.notify_all();
    }
    void OnFinished(v1::FinishReason, const v1::SelectionStats&) override { ADD_FAILURE(); }
    void OnFailed(const absl::Status&) override { ADD_FAILURE(); }
    std::mutex mutex;
    std::condition_variable ready;
    std::unique_ptr<TokenStream> stream;
    int calls = 0;
  } observer;
  auto stream = Start(Request(), &observer);
  {
    std::lock_guard lock(observer.mutex);
    observer.stream = std::move(stream);
  }
  const uint64_t id = rank.AwaitSubmit(1).request_id();
  rank.SendTokens(id, 0, {10});
  rank.SendTokens(id, 1, {11});
  rank.AwaitCancel(id);
  std::unique_lock lock(observer.mutex);
  observer.ready.wait(lock, [&] { return observer.calls == 1; });
  ExpectNothingLeft();
}

TEST_F(DispatcherTest, RequestsUnderWayFailWhenTheDispatcherGoes) {
  ScriptedRank rank("inference-0");
  StartDispatcher({rank.identity(), CacheRank("cache-0")});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  rank.AwaitSubmit(1);
  dispatcher_.reset();
  EXPECT_EQ(recorder.AwaitEnd().code(), absl::StatusCode::kUnavailable);
  rank.AwaitIdle();
}

// Streams that are destroyed at any moment of their life, on several threads, while ranks answer, fail, and die.
TEST_F(DispatcherTest, AThousandCancelledStreamsLeaveNothingBehind) {
  std::mutex random_mutex;
  std::mt19937 random(11);
  auto draw = [&](int n) {
    std::lock_guard lock(random_mutex);
    return static_cast<int>(random() % n);
  };
  auto behave = [&](ScriptedRank& rank, const ScriptedRank::Submit& submit) {
    const auto known = static_cast<uint32_t>(submit.generated_token_ids_size());
    const int tokens = draw(4);
    for (int i = 0; i < tokens; ++i) rank.SendTokens(submit.request_id(), known + i, {known + i});
    switch (draw(4)) {
      case 0:
        return rank.SendFinished(submit.request_id());
      case 1:
        return rank.SendFailed(submit.request_id(), /*retryable=*/true, /*sequence_lost=*/draw(2) == 0);
      default:
        return;  // silence
    }
  };
  auto first = std::make_unique<ScriptedRank>("inference-0", behave);
  ScriptedRank second("inference-1", behave);
  Join(first->identity());
  Join(second.identity());
  Join(CacheRank("cache-0"));
  Join(CacheRank("cache-1"));
  constexpr int kStreams = 1000;
  MakeDispatcher({.max_queue = kStreams, .retry = {.first = milliseconds(1)}});

  std::vector<std::thread> threads;
  std::atomic<int> started{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kStreams / 4; ++i) {
        Recorder recorder;
        auto stream = dispatcher_->Start(Request(), &recorder);
        if (!stream.ok()) continue;
        ++started;
        if (const int phase = draw(3); phase == 1) {
          std::this_thread::yield();
        } else if (phase == 2) {
          std::this_thread::sleep_for(std::chrono::microseconds(draw(3000)));
        }
        stream->reset();
      }
    });
  }
  second.AwaitSubmit(50);
  first.reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(started, kStreams / 2);
  ExpectNothingLeft();
  second.AwaitIdle();
  // Every place in the queue is free again.
  std::vector<std::unique_ptr<Recorder>> recorders;
  std::vector<std::unique_ptr<TokenStream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    recorders.push_back(std::make_unique<Recorder>());
    streams.push_back(Start(Request(), recorders.back().get()));
  }
  streams.clear();
  second.AwaitIdle();
  ExpectNothingLeft();
}

}  // namespace
}  // namespace winnow::test
