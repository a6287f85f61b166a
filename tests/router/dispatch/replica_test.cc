// Where the replica of a sequence is to be, and how a request goes on with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "router/dispatch/routing_policy.h"
#include "tests/router/dispatch/dispatcher_fixture.h"
#include "winnow/v1/cache.grpc.pb.h"
#include "winnow/v1/replication.grpc.pb.h"

namespace winnow::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::Pair;

RankRecord Cache(const std::string& name, uint64_t free_bytes = 100) {
  RankRecord record;
  record.identity = CacheRank(name);
  record.load.set_free_bytes(free_bytes);
  return record;
}

std::string Chosen(std::vector<RankRecord> ranks, const std::string& primary, uint64_t kv_bytes = 10) {
  MembershipSnapshot snapshot;
  snapshot.ranks = std::move(ranks);
  const auto chosen = ChooseReplica(snapshot, KeyOf(CacheRank(primary)), kv_bytes);
  return chosen ? chosen->rank() : "";
}

TEST(ReplicaChoice, IsTheNextCacheRankByNameAndAfterTheLastTheFirst) {
  EXPECT_EQ(Chosen({Cache("b"), Cache("c"), Cache("a")}, "a"), "b");
  EXPECT_EQ(Chosen({Cache("b"), Cache("c"), Cache("a")}, "b"), "c");
  EXPECT_EQ(Chosen({Cache("b"), Cache("c"), Cache("a")}, "c"), "a");
}

TEST(ReplicaChoice, LeavesOutRanksThatTakeNoWorkOrHaveNoRoom) {
  RankRecord suspect = Cache("b"), hosted = Cache("c"), draining = Cache("d");
  suspect.suspect = true;
  hosted.hosted_by_rank = "inference-0";
  draining.load.set_draining(true);
  EXPECT_EQ(Chosen({Cache("a"), suspect, hosted, draining, Cache("e", 9), Cache("f")}, "a"), "f");
  EXPECT_EQ(Chosen({Cache("a"), suspect, hosted, draining, Cache("e", 9)}, "a"), "");
  EXPECT_EQ(Chosen({Cache("a")}, "a"), "");
}

// Records what it is told.
class ToldCacheRank {
 public:
  explicit ToldCacheRank(const std::string& name) : identity_(CacheRank(name)), orders_(this), cache_(this) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&orders_);
    builder.RegisterService(&cache_);
    server_ = builder.BuildAndStart();
    identity_.set_address("127.0.0.1:" + std::to_string(port));
  }
  ~ToldCacheRank() { server_->Shutdown(); }

  const v1::Identity& identity() const { return identity_; }
  // (sequence, rank of its replica)
  std::vector<std::pair<uint64_t, std::string>> AwaitReplicas(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return replicas_.size() >= count; }));
    return replicas_;
  }
  std::vector<uint64_t> AwaitFreed(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, seconds(60), [&] { return freed_.size() >= count; }));
    return freed_;
  }

 private:
  struct Orders final : v1::ReplicationService::Service {
    explicit Orders(ToldCacheRank* rank) : rank(rank) {}
    grpc::Status KeepReplica(grpc::ServerContext*, const v1::KeepReplicaRequest* request,
                             v1::KeepReplicaResponse*) override {
      std::lock_guard lock(rank->mutex_);
      rank->replicas_.emplace_back(request->sequence_id(), request->replica().rank());
      rank->changed_.notify_all();
      return grpc::Status::OK;
    }
    ToldCacheRank* const rank;
  };
  struct CacheOrders final : v1::CacheService::Service {
    explicit CacheOrders(ToldCacheRank* rank) : rank(rank) {}
    grpc::Status ReleaseSequence(grpc::ServerContext*, const v1::ReleaseSequenceRequest* request,
                                 v1::ReleaseSequenceResponse*) override {
      std::lock_guard lock(rank->mutex_);
      rank->freed_.push_back(request->sequence_id());
      rank->changed_.notify_all();
      return grpc::Status::OK;
    }
    ToldCacheRank* const rank;
  };

  v1::Identity identity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<uint64_t, std::string>> replicas_;
  std::vector<uint64_t> freed_;
  Orders orders_;
  CacheOrders cache_;
  std::unique_ptr<grpc::Server> server_;
};

class ReplicaTest : public DispatcherTest {
 protected:
  void SetUp() override {
    StartDispatcher({rank_.identity(), first_.identity(), second_.identity()}, {.replicas = 2});
    stream_ = Start(Request(), &recorder_);
    submit_ = rank_.AwaitSubmit(1);
  }
  void SendToken(const ScriptedRank::Submit& submit, uint32_t index) {
    rank_.SendTokens(submit.request_id(), index, {10 + index});
    recorder_.AwaitTokens(index + 1);
  }
  void LoseCacheRank(const ScriptedRank::Submit& submit) {
    registry_.Leave(submit.cache_ranks(0));
    rank_.SendFailed(submit.request_id(), /*retryable=*/true, /*sequence_lost=*/false);
  }

  ScriptedRank rank_{"inference-0"};
  ToldCacheRank first_{"cache-0"}, second_{"cache-1"};
  Recorder recorder_;
  std::unique_ptr<TokenStream> stream_;
  ScriptedRank::Submit submit_;
};

TEST_F(ReplicaTest, TheCacheRankOfASequenceIsToldWhereItsReplicaIsToBe) {
  ASSERT_EQ(submit_.cache_ranks_size(), 1) << "the inference rank knows nothing of it";
  ASSERT_EQ(submit_.cache_ranks(0).rank(), "cache-0");
  EXPECT_THAT(first_.AwaitReplicas(1), ElementsAre(Pair(submit_.sequence_id(), "cache-1")));
  rank_.SendFinished(submit_.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_THAT(second_.AwaitFreed(1), ElementsAre(submit_.sequence_id())) << "its feed may have ended before it";
}

TEST_F(ReplicaTest, ALostCacheRankIsReplacedByTheReplicaAndThatGetsOne) {
  SendToken(submit_, 0);
  ToldCacheRank third("cache-2");
  Join(third.identity());
  LoseCacheRank(submit_);
  const ScriptedRank::Submit again = rank_.AwaitSubmit(2);
  EXPECT_TRUE(again.attach());
  EXPECT_EQ(again.sequence_id(), submit_.sequence_id());
  ASSERT_EQ(again.cache_ranks_size(), 1);
  EXPECT_EQ(again.cache_ranks(0).rank(), "cache-1");
  EXPECT_THAT(second_.AwaitReplicas(1), ElementsAre(Pair(submit_.sequence_id(), "cache-2")));
  EXPECT_THAT(first_.AwaitFreed(1), ElementsAre(submit_.sequence_id())) << "it may only have stopped";
  SendToken(again, 1);
  rank_.SendFinished(again.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_EQ(dispatcher_->counters().promotions, 1u);
  EXPECT_EQ(dispatcher_->counters().failovers_recompute, 0u);
  ExpectNothingLeft();
}

TEST_F(ReplicaTest, ASequenceThatItsCacheRankHasLostIsTheReplicas) {
  SendToken(submit_, 0);
  rank_.SendFailed(submit_.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const ScriptedRank::Submit again = rank_.AwaitSubmit(2);
  EXPECT_TRUE(again.attach());
  EXPECT_EQ(again.cache_ranks(0).rank(), "cache-1");
}

// As after a connection that broke, whose rank had the cache rank free the sequence, which freed the replica.
TEST_F(ReplicaTest, WhatNeitherHasIsComputedAgainAndNotLookedForInAReplicaOfTheReplica) {
  SendToken(submit_, 0);
  rank_.SendFailed(submit_.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const ScriptedRank::Submit promoted = rank_.AwaitSubmit(2);
  EXPECT_TRUE(promoted.attach());
  second_.AwaitReplicas(1);
  rank_.SendFailed(promoted.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const ScriptedRank::Submit again = rank_.AwaitSubmit(3);
  EXPECT_FALSE(again.attach());
  EXPECT_NE(again.sequence_id(), submit_.sequence_id());
  EXPECT_EQ(dispatcher_->counters().promotions, 1u);
}

TEST_F(ReplicaTest, APromptThatIsBeingComputedGoesOnBehindWhatTheReplicaHasOfIt) {
  first_.AwaitReplicas(1);
  LoseCacheRank(submit_);
  const ScriptedRank::Submit again = rank_.AwaitSubmit(2);
  EXPECT_TRUE(again.attach());
  EXPECT_EQ(again.sequence_id(), submit_.sequence_id());
  EXPECT_EQ(again.cache_ranks(0).rank(), "cache-1");
  EXPECT_EQ(dispatcher_->counters().promotions, 1u);
}

TEST_F(ReplicaTest, APromptOfWhichTheReplicaHasNothingIsComputedAgain) {
  first_.AwaitReplicas(1);
  LoseCacheRank(submit_);
  const ScriptedRank::Submit promoted = rank_.AwaitSubmit(2);
  rank_.SendFailed(promoted.request_id(), /*retryable=*/true, /*sequence_lost=*/true);
  const ScriptedRank::Submit again = rank_.AwaitSubmit(3);
  EXPECT_FALSE(again.attach());
  EXPECT_NE(again.sequence_id(), submit_.sequence_id());
  EXPECT_EQ(dispatcher_->counters().promotions, 1u);
}

TEST_F(ReplicaTest, ALostReplicaIsMadeAnewAndNobodyElseNotices) {
  SendToken(submit_, 0);
  first_.AwaitReplicas(1);
  registry_.Leave(second_.identity());
  EXPECT_EQ(dispatcher_->counters().failovers_reattach, 0u);
  ToldCacheRank third("cache-2");
  Join(third.identity());
  EXPECT_THAT(first_.AwaitReplicas(2),
              ElementsAre(Pair(submit_.sequence_id(), "cache-1"), Pair(submit_.sequence_id(), "cache-2")));
  EXPECT_EQ(dispatcher_->counters().without_replica, 0);
  rank_.SendFinished(submit_.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_THAT(third.AwaitFreed(1), ElementsAre(submit_.sequence_id()));
  EXPECT_THAT(second_.AwaitFreed(1), ElementsAre(submit_.sequence_id())) << "it may only have stopped";
}

TEST_F(ReplicaTest, WithoutAPlaceTheRequestGoesOnAndIsCounted) {
  SendToken(submit_, 0);
  registry_.Leave(second_.identity());
  while (dispatcher_->counters().without_replica != 1) std::this_thread::sleep_for(milliseconds(1));
  rank_.SendFinished(submit_.request_id());
  EXPECT_TRUE(recorder_.AwaitEnd().ok());
  EXPECT_EQ(dispatcher_->counters().without_replica, 0);
}

}  // namespace
}  // namespace winnow::test
