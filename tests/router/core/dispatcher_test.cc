#include "router/dispatcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/router/core/scripted_rank.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Checks the observer's contract while it records.
class Recorder : public TokenObserver {
 public:
  void OnTokens(uint32_t first_index, const std::vector<v1::Token>& tokens) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_);
    EXPECT_EQ(first_index, ids_.size());
    for (const v1::Token& token : tokens) ids_.push_back(token.id());
    changed_.notify_all();
  }
  void OnFinished(v1::FinishReason reason, const v1::SelectionStats&) override {
    reason_ = reason;
    End(absl::OkStatus());
  }
  void OnFailed(const absl::Status& status) override { End(status); }

  std::vector<uint32_t> AwaitTokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return ids_.size() >= count; }));
    return ids_;
  }
  absl::Status AwaitEnd() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return ended_; }));
    return status_;
  }
  std::vector<uint32_t> ids() {
    std::lock_guard lock(mutex_);
    return ids_;
  }
  v1::FinishReason reason() {
    std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  void End(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_) << "more than one terminal event";
    ended_ = true;
    status_ = status;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> ids_;
  bool ended_ = false;
  v1::FinishReason reason_ = v1::FINISH_REASON_UNSPECIFIED;
  absl::Status status_;
};

v1::RegisterRequest Registration(const v1::Identity& identity) {
  v1::RegisterRequest request;
  *request.mutable_identity() = identity;
  if (identity.role() == v1::ROLE_INFERENCE_RANK) {
    request.mutable_limits()->set_vocab_size(100);
    request.mutable_limits()->set_max_context_tokens(1000);
  }
  return request;
}

v1::Identity CacheRank(const std::string& name, uint64_t incarnation = 7) {
  v1::Identity identity;
  identity.set_cluster("test");
  identity.set_role(v1::ROLE_CACHE_RANK);
  identity.set_rank(name);
  identity.set_incarnation(incarnation);
  identity.set_address("127.0.0.1:1");
  return identity;
}

class DispatcherTest : public ::testing::Test {
 protected:
  void Join(const v1::Identity& identity) { ASSERT_TRUE(registry_.Register(Registration(identity)).ok()); }
  void Join(const v1::Identity& identity, v1::Phases phases, uint32_t decode_prefill_tokens = 0) {
    v1::RegisterRequest request = Registration(identity);
    request.set_phases(phases);
    request.set_decode_prefill_tokens(decode_prefill_tokens);
    ASSERT_TRUE(registry_.Register(request).ok());
  }
  void MakeDispatcher(DispatcherOptions options = {}) {
    dispatcher_ = std::make_unique<Dispatcher>(std::move(options), &registry_, &timers_);
  }
  static TokenRequest Request(std::vector<uint32_t> prompt = {1, 2, 3}) {
    TokenRequest request;
    request.prompt_token_ids = std::move(prompt);
    request.sampling.set_seed(5);
    request.stopping.set_max_tokens(100);
    request.deadline = std::chrono::system_clock::now() + seconds(60);
    return request;
  }
  std::unique_ptr<TokenStream> Start(TokenRequest request, TokenObserver* observer) {
    auto stream = dispatcher_->Start(std::move(request), observer);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return stream.ok() ? *std::move(stream) : nullptr;
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(dispatcher_->counters().running, 0);
    EXPECT_EQ(dispatcher_->counters().waiting, 0);
  }

  Registry registry_{{.cluster = "test"}};
  TimerQueue timers_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(DispatcherTest, CarriesARequestToARankAndItsTokensBack) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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

TEST_F(DispatcherTest, ALostInferenceRankIsReplacedByAttachingToTheSequence) {
  ScriptedRank first("inference-0");
  Join(first.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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
  EXPECT_EQ(dispatcher_->counters().replayed_tokens, 1u);
  EXPECT_EQ(dispatcher_->counters().mismatched_tokens, 0u);
  ExpectNothingLeft();
}

// Ranks whose kernels round or add up differently may go on for each other, and the answer says so.
TEST_F(DispatcherTest, GoingOnUnderOtherNumericsIsMarked) {
  const auto join = [&](const v1::Identity& identity, const char* numerics) {
    v1::RegisterRequest request = Registration(identity);
    request.mutable_fingerprint()->set_numerics(numerics);
    ASSERT_TRUE(registry_.Register(request).ok());
  };
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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

TEST_F(DispatcherTest, WaitsForARestartOfTheOnlyRank) {
  auto first = std::make_unique<ScriptedRank>("inference-0");
  Join(first->identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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

TEST_F(DispatcherTest, ALostCacheRankMeansPrefillingAgainElsewhere) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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

TEST_F(DispatcherTest, ALostSequenceIsOpenedAnewOnAnotherCacheRankIfThereIsOne) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  Join(CacheRank("cache-1"));
  MakeDispatcher();
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

TEST_F(DispatcherTest, AFailureThatIsTheRequestsOwnIsFinal) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher({.max_attempts = 3, .first_backoff = milliseconds(1)});
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

TEST_F(DispatcherTest, ASequenceWhoseCacheRankCannotBeReachedIsGivenUp) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  Join(CacheRank("cache-1"));
  MakeDispatcher({.max_attempts = 4, .first_backoff = milliseconds(1)});
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

TEST_F(DispatcherTest, GivesUpAfterSoManyAttemptsWithoutProgress) {
  ScriptedRank rank("inference-0", [](ScriptedRank& self, const ScriptedRank::Submit& submit) {
    // The first two attempts bring a token each, which is progress.
    if (submit.generated_token_ids_size() < 2) {
      self.SendTokens(submit.request_id(), submit.generated_token_ids_size(), {50});
    }
    self.SendFailed(submit.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  });
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher({.max_attempts = 4, .first_backoff = milliseconds(1)});
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const absl::Status status = recorder.AwaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4 attempts, the last one: scripted failure"));
  // Attempt 1 brings token 0 and fails, as attempt 2 with token 1; both leave one failure on the count, and 3 more
  // make 4.
  EXPECT_EQ(rank.submit_count(), 5u);
  EXPECT_THAT(recorder.ids(), ElementsAre(50, 50));
}

TEST_F(DispatcherTest, AGapInTheTokensIsDataLoss) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
  Recorder recorder;
  auto stream = Start(Request(), &recorder);
  const uint64_t id = rank.AwaitSubmit(1).request_id();
  rank.SendTokens(id, 0, {10});
  rank.SendTokens(id, 2, {12});
  EXPECT_EQ(recorder.AwaitEnd().code(), absl::StatusCode::kDataLoss);
  rank.AwaitCancel(id);
}

TEST_F(DispatcherTest, ReplayedTokensAreDroppedAndComparedWithWhatWasDelivered) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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

TEST_F(DispatcherTest, ASilentRankDoesNotOutliveTheDeadline) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher({.rank_wait = milliseconds(100)});
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

TEST_F(DispatcherTest, ARankThatLeavesTheTableLosesItsRequestsAtOnce) {
  // It is stopped, not dead: its socket stays open, and only the lease shows it.
  ScriptedRank stuck("inference-0");
  Join(stuck.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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
}

TEST_F(DispatcherTest, SamplesOfOneGroupShareTheirRanks) {
  ScriptedRank a("inference-0");
  ScriptedRank b("inference-1");
  Join(a.identity());
  Join(b.identity());
  Join(CacheRank("cache-0"));
  Join(CacheRank("cache-1"));
  MakeDispatcher();
  std::vector<std::unique_ptr<Recorder>> recorders;
  std::vector<std::unique_ptr<TokenStream>> streams;
  auto start = [&](uint64_t group) {
    TokenRequest request = Request();
    request.group = group;
    recorders.push_back(std::make_unique<Recorder>());
    streams.push_back(Start(request, recorders.back().get()));
  };
  for (int i = 0; i < 4; ++i) start(1);
  for (int i = 0; i < 4; ++i) start(2);
  std::set<std::string> caches;
  for (size_t i = 1; i <= 4; ++i) {
    caches.insert("a" + a.AwaitSubmit(i).cache_ranks(0).rank());
    caches.insert("b" + b.AwaitSubmit(i).cache_ranks(0).rank());
  }
  EXPECT_EQ(caches.size(), 2u);
}

TEST_F(DispatcherTest, TheFirstSampleOfAGroupLeadsAndTheOthersForkIt) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
  Recorder recorders[3];
  std::vector<std::unique_ptr<TokenStream>> streams;
  for (Recorder& recorder : recorders) {
    TokenRequest request = Request();
    request.group = 1;
    request.group_size = 3;
    streams.push_back(Start(request, &recorder));
  }
  const auto leader = rank.AwaitSubmit(1);
  EXPECT_EQ(leader.fork_sequence_id(), 0u);
  EXPECT_EQ(leader.followers(), 2u);
  for (size_t i = 2; i <= 3; ++i) {
    const auto follower = rank.AwaitSubmit(i);
    EXPECT_EQ(follower.fork_sequence_id(), leader.sequence_id());
    EXPECT_FALSE(follower.fork_at_current_token());
    EXPECT_EQ(follower.followers(), 0u);
  }
  // A leader that has lost its sequence opens another one, which nobody waits for.
  rank.SendFailed(leader.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const auto again = rank.AwaitSubmit(4);
  EXPECT_NE(again.sequence_id(), leader.sequence_id());
  EXPECT_EQ(again.fork_sequence_id(), 0u);
  EXPECT_EQ(again.followers(), 0u);
  // A follower whose attempt is lost forks the new one.
  rank.SendFailed(rank.AwaitSubmit(2).request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  EXPECT_EQ(rank.AwaitSubmit(5).fork_sequence_id(), again.sequence_id());
}

TEST_F(DispatcherTest, AForkGoesToItsSourceOrIsOpenedWithItsTokens) {
  ScriptedRank a("inference-0");
  ScriptedRank b("inference-1");
  Join(a.identity());
  Join(b.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
  Recorder source, fork, lost;
  const auto source_stream = Start(Request(), &source);
  ASSERT_TRUE(source_stream->fork_source().has_value());
  const bool at_a = source_stream->fork_source()->inference.rank == "inference-0";
  ScriptedRank& near = at_a ? a : b;
  const auto submit = near.AwaitSubmit(1);
  EXPECT_EQ(source_stream->fork_source()->sequence_id, submit.sequence_id());
  TokenRequest request = Request();
  request.fork = TokenFork{.source = *source_stream->fork_source(), .token_ids = {7, 8}};
  const auto fork_stream = Start(request, &fork);
  const auto forked = near.AwaitSubmit(2);
  EXPECT_EQ(forked.fork_sequence_id(), submit.sequence_id());
  EXPECT_TRUE(forked.fork_at_current_token());
  EXPECT_EQ(forked.generated_token_ids_size(), 2);
  request.fork->source.inference.incarnation += 1;  // a rank that is not there any more
  const auto lost_stream = Start(request, &lost);
  const auto opened = (at_a ? b : a).AwaitSubmit(1);
  EXPECT_EQ(opened.fork_sequence_id(), 0u);
  EXPECT_EQ(opened.generated_token_ids_size(), 2);
}

TEST_F(DispatcherTest, AnObserverMayDestroyItsStreamInACallback) {
  ScriptedRank rank("inference-0");
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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
  Join(rank.identity());
  Join(CacheRank("cache-0"));
  MakeDispatcher();
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
  MakeDispatcher({.max_queue = kStreams, .first_backoff = milliseconds(1)});

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

// One rank for prefill, one that decodes, one cache rank.
class HandOverTest : public DispatcherTest {
 protected:
  HandOverTest() {
    Join(prefill_.identity(), v1::PHASES_PREFILL);
    Join(decode_.identity(), v1::PHASES_DECODE, /*decode_prefill_tokens=*/2);
    Join(CacheRank("cache-0"));
    MakeDispatcher({.first_backoff = milliseconds(1)});
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
  uint64_t timed = 0;
  for (const auto& bucket : counters.hand_over_times.buckets) timed += bucket;
  EXPECT_EQ(timed, 1u);
  EXPECT_GT(counters.hand_over_times.sum, 0);
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
}  // namespace winnow
