// Cache ranks are told at once which sequences no request will come back to.
#include "router/dispatch/cache_rank_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/channel.h"
#include "router/dispatch/dispatcher.h"
#include "tests/router/dispatch/scripted_rank.h"
#include "winnow/v1/cache.grpc.pb.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address) {
  return NewChannel(address);
}

// Records which sequences it is asked to free.
class RecordingCacheRank : public v1::CacheService::Service {
 public:
  explicit RecordingCacheRank(const std::string& name) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    identity_.set_cluster("test");
    identity_.set_role(v1::ROLE_CACHE_RANK);
    identity_.set_rank(name);
    identity_.set_incarnation(7);
    identity_.set_address("127.0.0.1:" + std::to_string(port));
  }
  ~RecordingCacheRank() override { server_->Shutdown(); }

  grpc::Status ReleaseSequence(grpc::ServerContext*, const v1::ReleaseSequenceRequest* request,
                               v1::ReleaseSequenceResponse*) override {
    EXPECT_EQ(request->attach_epoch(), 0u);
    EXPECT_FALSE(request->detach());
    std::lock_guard lock(mutex_);
    if (++calls_ <= unanswered_) return {grpc::StatusCode::UNAVAILABLE, "later"};
    freed_.push_back(request->sequence_id());
    changed_.notify_all();
    return grpc::Status::OK;
  }
  std::vector<uint64_t> AwaitFreed(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return freed_.size() >= count; }));
    return freed_;
  }
  std::vector<uint64_t> freed() { return AwaitFreed(0); }
  // The first so many calls are in vain.
  void LeaveUnanswered(int calls) {
    std::lock_guard lock(mutex_);
    unanswered_ = calls;
  }
  const v1::Identity& identity() const { return identity_; }

 private:
  v1::Identity identity_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> freed_;
  int calls_ = 0, unanswered_ = 0;
};

class EndObserver : public TokenObserver {
 public:
  void OnTokens(uint32_t, const std::vector<v1::Token>& tokens) override { Count(tokens.size(), false); }
  void OnFinished(v1::FinishReason, const v1::SelectionStats&) override { Count(0, true); }
  void OnFailed(const absl::Status&) override { Count(0, true); }
  void AwaitTokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return tokens_ >= count; }));
  }
  void AwaitEnd() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return ended_; }));
  }

 private:
  void Count(size_t tokens, bool ended) {
    std::lock_guard lock(mutex_);
    tokens_ += tokens;
    ended_ |= ended;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t tokens_ = 0;
  bool ended_ = false;
};

class GivenUpSequences : public ::testing::Test {
 protected:
  void SetUp() override {
    Join(rank_.identity());
    for (const RecordingCacheRank* cache : {&first_, &second_}) Join(cache->identity());
  }
  void Join(const v1::Identity& identity) {
    v1::RegisterRequest request;
    *request.mutable_identity() = identity;
    if (identity.role() == v1::ROLE_INFERENCE_RANK) {
      request.mutable_limits()->set_vocab_size(100);
      request.mutable_limits()->set_max_context_tokens(1000);
    }
    ASSERT_TRUE(registry_.Register(request).ok());
  }
  void MakeDispatcher(milliseconds rank_wait) {
    dispatcher_ = std::make_unique<Dispatcher>(
        DispatcherOptions{.rank_wait = rank_wait, .shards = {.least = 2, .most = 2}}, &registry_, &timers_);
  }
  std::unique_ptr<TokenStream> Start() {
    TokenRequest request;
    request.prompt_token_ids = {1, 2, 3};
    request.stopping.set_max_tokens(100);
    request.deadline = std::chrono::system_clock::now() + seconds(60);
    auto stream = dispatcher_->Start(std::move(request), &observer_);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return stream.ok() ? *std::move(stream) : nullptr;
  }
  uint64_t given_up() const { return dispatcher_->counters().sequences_given_up; }

  Registry registry_{{.cluster = "test"}};
  TimerQueue timers_;
  ScriptedRank rank_{"inference-0"};
  RecordingCacheRank first_{"cache-0"}, second_{"cache-1"};
  EndObserver observer_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(GivenUpSequences, ShardsWhoseSiblingIsLostAreFreedWhenTheRequestBeginsAnew) {
  MakeDispatcher(seconds(60));
  const auto stream = Start();
  const ScriptedRank::Submit lost = rank_.AwaitSubmit(1);
  ASSERT_EQ(lost.cache_ranks_size(), 2);
  rank_.SendTokens(lost.request_id(), 0, {10});
  observer_.AwaitTokens(1);
  registry_.Leave(first_.identity());
  rank_.SendFailed(lost.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  // There is no second cache rank: the one that was cut off may come back with its shard.
  RecordingCacheRank third("cache-2");
  EXPECT_THAT(second_.freed(), IsEmpty());
  Join(third.identity());
  const ScriptedRank::Submit again = rank_.AwaitSubmit(2);
  EXPECT_FALSE(again.attach());
  EXPECT_THAT(second_.AwaitFreed(1), ElementsAre(lost.sequence_id()));
  rank_.SendFinished(again.request_id());
  observer_.AwaitEnd();
  EXPECT_EQ(given_up(), 1u);
  EXPECT_THAT(first_.AwaitFreed(1), ElementsAre(lost.sequence_id())) << "cut off, it has its shard still";
  EXPECT_THAT(third.freed(), IsEmpty());
}

TEST_F(GivenUpSequences, ARequestThatEndsBetweenTwoRanksLeavesNothing) {
  MakeDispatcher(milliseconds(20));
  const auto stream = Start();
  const ScriptedRank::Submit submit = rank_.AwaitSubmit(1);
  rank_.Kill();
  registry_.Leave(rank_.identity());
  observer_.AwaitEnd();
  EXPECT_THAT(first_.AwaitFreed(1), ElementsAre(submit.sequence_id()));
  EXPECT_THAT(second_.AwaitFreed(1), ElementsAre(submit.sequence_id()));
}

TEST_F(GivenUpSequences, WhatEndsOnItsRankIsFreedByThatRank) {
  MakeDispatcher(seconds(60));
  auto stream = Start();
  rank_.SendFinished(rank_.AwaitSubmit(1).request_id());
  observer_.AwaitEnd();
  EXPECT_EQ(given_up(), 0u);
}

TEST(CacheRankOrders, AsksACacheRankThatDoesNotAnswerAgainAndOthersMeanwhile) {
  RecordingCacheRank stopped("cache-0"), other("cache-1");
  stopped.LeaveUnanswered(5);
  CacheRankOrders orders(ChannelTo, {.retries = {.first_pause = milliseconds(1), .longest_pause = milliseconds(4)}});
  for (uint64_t id = 1; id <= 3; ++id) orders.Release(id, stopped.identity());
  for (uint64_t id = 4; id <= 6; ++id) orders.Release(id, other.identity());
  EXPECT_THAT(other.AwaitFreed(3), ElementsAre(4, 5, 6));
  EXPECT_THAT(stopped.AwaitFreed(3), ElementsAre(1, 2, 3));
}

TEST(CacheRankOrders, GivesACacheRankUpThatNeverAnswers) {
  RecordingCacheRank lost("cache-0"), other("cache-1");
  lost.LeaveUnanswered(1);
  CacheRankOrders orders(ChannelTo, {.retries = {.first_pause = milliseconds(1), .patience = milliseconds(0)}});
  orders.Release(1, lost.identity());
  orders.Release(2, other.identity());
  EXPECT_THAT(other.AwaitFreed(1), ElementsAre(2));
  orders.Stop();
  EXPECT_THAT(lost.freed(), IsEmpty());
}

TEST(CacheRankOrders, EndsWhileACacheRankDoesNotAnswer) {
  CacheRankOrders orders(ChannelTo, {.call_timeout = milliseconds(50)});
  v1::Identity nobody;
  nobody.set_address("192.0.2.1:9");  // TEST-NET-1: packets go nowhere
  for (uint64_t id = 1; id <= 100; ++id) orders.Release(id, nobody);
  orders.Stop();
  orders.Release(101, nobody);
}

}  // namespace
}  // namespace winnow
