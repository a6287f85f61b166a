// Replicas follow their sequences: over real streams, between the stores of two cache ranks.
#include "cache_rank/replica/replicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cache_rank/replica/replica_intake.h"
#include "common/rpc/channel.h"
#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

using Clock = std::chrono::steady_clock;

// The other cache rank's end: what comes is applied to its data plane.
class FedCacheRank final : public v1::ReplicationService::Service {
 public:
  FedCacheRank() : cluster({.data_plane = TestCluster::SmallDataPlane()}) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    identity.set_rank("cache-1");
    identity.set_incarnation(8);
    identity.set_address("127.0.0.1:" + std::to_string(port));
  }
  ~FedCacheRank() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Feed(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::FeedResponse, v1::FeedRequest>* stream) override {
    const uint64_t feed = ++feeds;
    v1::FeedRequest request;
    while (stream->Read(&request)) {
      std::lock_guard lock(mutex);
      if (breaks.exchange(false)) return {grpc::StatusCode::UNAVAILABLE, "it breaks"};
      v1::FeedResponse response = intake_.Take(*cluster.data_plane, feed, request);
      if (refuses) {
        for (v1::ReplicaState& state : *response.mutable_states()) state.set_code(8);  // RESOURCE_EXHAUSTED
      }
      ++requests;
      if (!stream->Write(response)) break;
    }
    std::lock_guard lock(mutex);
    cluster.data_plane->store().EndFeed(feed, Clock::now());
    return grpc::Status::OK;
  }
  // Positions that the replica has; -1: there is none.
  int64_t Stored(uint64_t id) {
    std::lock_guard lock(mutex);
    const CachedSequence* const replica = cluster.data_plane->store().Find(id);
    return replica == nullptr ? -1 : int64_t{replica->kv.watermark()};
  }

  TestCluster cluster;
  v1::Identity identity;
  std::atomic<uint64_t> feeds = 0;
  std::atomic<int> requests = 0;
  std::atomic<bool> breaks = false, refuses = false;
  std::mutex mutex;  // of the cluster

 private:
  const ReplicaIntake intake_{cluster.executor.get(), &cluster.metrics};
  std::unique_ptr<grpc::Server> server_;
};

class ReplicatorTest : public testing::Test {
 protected:
  ReplicatorTest() : rank_(primary_.NewRank()) {}
  ~ReplicatorTest() override { replicator_.Stop(); }

  Replicator::Options Options() {
    return {.identity = {},
            .channels = [](const std::string& address) { return NewChannel(address); },
            .post =
                [this](std::function<void()> command) {
                  std::lock_guard lock(mutex_);
                  commands_.push_back(std::move(command));
                },
            .message_bytes = 20'000,
            .retry = std::chrono::milliseconds(20)};
  }
  SequenceStore& store() { return primary_.data_plane->store(); }
  FakeSequence* Prefill(uint64_t id, uint64_t seed, uint32_t tokens = 200) {
    FakeSequence* const sequence = rank_->Prefill(id, seed, SmallSpec(Predictor::kExact), tokens);
    primary_.PumpCacheRank();
    return sequence;
  }
  void Keep(uint64_t id) { ASSERT_TRUE(replicator_.Keep(id, &other_.identity, Clock::now()).ok()); }
  // Turns of the data plane until that is so.
  bool TurnUntil(const std::function<bool()>& condition) {
    for (const Clock::time_point end = Clock::now() + std::chrono::seconds(60); Clock::now() < end;) {
      std::vector<std::function<void()>> commands;
      {
        std::lock_guard lock(mutex_);
        commands.swap(commands_);
      }
      for (const auto& command : commands) command();
      replicator_.RunOnce(store(), {}, primary_.executor.get(), /*busy=*/false, Clock::now());
      replicator_.Tick(store(), Clock::now());
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  CacheRankSnapshot Snapshot() const { return primary_.metrics.Snapshot(); }

  TestCluster primary_{{.data_plane = TestCluster::SmallDataPlane()}};
  FedCacheRank other_;
  std::unique_ptr<FakeRank> rank_;
  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;  // guarded by mutex_
  Replicator replicator_{Options(), &primary_.metrics};
};

TEST_F(ReplicatorTest, AReplicaFollowsItsSequenceAndGoesWithIt) {
  Keep(1);  // before it is there
  EXPECT_FALSE(other_.requests > 0);
  FakeSequence* const sequence = Prefill(1, 17);
  ASSERT_TRUE(TurnUntil([&] { return other_.Stored(1) == 200; }));
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(rank_->Decode({sequence}));
  primary_.PumpCacheRank();
  ASSERT_TRUE(TurnUntil([&] { return other_.Stored(1) == 205 && Snapshot().replica_lag_tokens == 0; }));
  EXPECT_EQ(Snapshot().replicas_fed, 1u);
  EXPECT_EQ(Snapshot().replicas_missing, 0u);
  EXPECT_EQ(Snapshot().replica_sent_bytes, 205 * primary_.shape.layout.token_bytes());
  EXPECT_EQ(other_.feeds, 1u);
  ASSERT_TRUE(primary_.data_plane->ReleaseSequence(1, SequenceStore::kAnyEpoch).ok());
  EXPECT_TRUE(TurnUntil([&] { return other_.Stored(1) == -1; }));
  EXPECT_EQ(Snapshot().replicas_fed, 0u);
}

TEST_F(ReplicatorTest, SamplesOfOnePromptShareItsBlocksInReplicasAsWell) {
  constexpr uint32_t kPrompt = 200;
  const KvLayout& layout = primary_.shape.layout;
  const SequenceStore::OpenOptions options{.sequence_id = 1,
                                           .spec = SmallSpec(Predictor::kExact),
                                           .max_positions = 400,
                                           .prompt_tokens = kPrompt,
                                           .prompt_token_ids = std::vector<uint32_t>(kPrompt, 7),
                                           .prefix_salt = "model"};
  ASSERT_TRUE(primary_.data_plane->OpenSequence(rank_->link(), options).ok());
  for (uint64_t id = 1; id <= 3; ++id) Keep(id);
  CachedSequence& sequence = *store().Find(1);
  const std::vector<std::byte> rows(kPrompt * layout.token_bytes() / layout.num_layers);
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    ASSERT_TRUE(sequence.kv.Append(layer, 0, kPrompt, rows.data()).ok());
  }
  store().KeepPrefix(sequence);
  for (const uint64_t id : {2, 3}) {
    ASSERT_TRUE(primary_.data_plane->ForkSequence(rank_->link(), 1, id, 400).ok());
  }
  ASSERT_TRUE(TurnUntil(
      [&] { return other_.Stored(1) == kPrompt && other_.Stored(2) == kPrompt && other_.Stored(3) == kPrompt; }));
  const uint32_t shared = PrefixLimit(options.spec, kPrompt);
  ASSERT_GT(shared, 0u);
  EXPECT_EQ(Snapshot().replica_sent_bytes, (3 * kPrompt - 2 * shared) * layout.token_bytes());
}

TEST_F(ReplicatorTest, ARefusedReplicaIsTriedAgain) {
  other_.refuses = true;
  Prefill(1, 17);
  Keep(1);
  ASSERT_TRUE(TurnUntil([&] { return Snapshot().replicas_refused >= 2; }));
  EXPECT_EQ(Snapshot().replicas_missing, 1u);
  other_.refuses = false;
  EXPECT_TRUE(TurnUntil([&] { return other_.Stored(1) == 200; }));
}

TEST_F(ReplicatorTest, AReplicaThatItsRouterHasFreedWasNotRefused) {
  FakeSequence* const sequence = Prefill(1, 17);
  Keep(1);
  ASSERT_TRUE(TurnUntil([&] { return other_.Stored(1) == 200; }));
  {
    std::lock_guard lock(other_.mutex);
    ASSERT_TRUE(other_.cluster.data_plane->ReleaseSequence(1, SequenceStore::kAnyEpoch).ok());
  }
  ASSERT_TRUE(rank_->Decode({sequence}));
  primary_.PumpCacheRank();
  EXPECT_TRUE(TurnUntil([&] { return other_.Stored(1) == 201; })) << "its sequence is still there";
  EXPECT_EQ(Snapshot().replicas_refused, 0u);
}

TEST_F(ReplicatorTest, AfterTheEndOfItsStreamAReplicaIsMadeAnew) {
  FakeSequence* const sequence = Prefill(1, 17);
  Keep(1);
  ASSERT_TRUE(TurnUntil([&] { return other_.Stored(1) == 200; }));
  other_.breaks = true;
  ASSERT_TRUE(rank_->Decode({sequence}));
  primary_.PumpCacheRank();
  EXPECT_TRUE(TurnUntil([&] { return other_.feeds == 2 && other_.Stored(1) == 201; }));
}

TEST_F(ReplicatorTest, RowsAfterARestartReplaceThoseBefore) {
  FakeSequence* sequence = Prefill(1, 17);
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(rank_->Decode({sequence}));
  primary_.PumpCacheRank();
  Keep(1);
  ASSERT_TRUE(TurnUntil([&] { return other_.Stored(1) == 205; }));
  const FakeSequence before = *sequence;
  sequence = rank_->Attach(before, 202);
  ASSERT_TRUE(rank_->Decode({sequence}));
  primary_.PumpCacheRank();
  EXPECT_TRUE(TurnUntil([&] { return other_.Stored(1) == 203; }));
}

TEST_F(ReplicatorTest, AReplicaMovesWhenItIsWantedElsewhere) {
  FedCacheRank third;
  third.identity.set_incarnation(9);
  Prefill(1, 17);
  Keep(1);
  ASSERT_TRUE(TurnUntil([&] { return other_.Stored(1) == 200; }));
  ASSERT_TRUE(replicator_.Keep(1, &third.identity, Clock::now()).ok());
  EXPECT_TRUE(TurnUntil([&] { return third.Stored(1) == 200 && other_.Stored(1) == -1; }));
  ASSERT_TRUE(replicator_.Keep(1, nullptr, Clock::now()).ok());
  EXPECT_TRUE(TurnUntil([&] { return third.Stored(1) == -1; }));
  replicator_.Stop();  // before the server that it feeds
}

// It would have checksums there that hold.
TEST_F(ReplicatorTest, ADamagedRowIsNotCopied) {
  constexpr uint32_t kDamaged = 150;
  Prefill(1, 17);
  const SequenceKv& kv = store().Find(1)->kv;
  const void* const block = kv.row_blocks(1, 0)[kDamaged / kBlockTokens];
  auto* const row =
      static_cast<std::byte*>(const_cast<void*>(block)) + kDamaged % kBlockTokens * primary_.shape.layout.row_bytes();
  row[3] ^= std::byte{4};
  Keep(1);
  ASSERT_TRUE(TurnUntil([&] { return kv.is_damaged(); }));
  for (int turn = 0; turn < 20; ++turn) ASSERT_TRUE(TurnUntil([] { return true; }));
  EXPECT_LE(other_.Stored(1), int64_t{kDamaged});
}

TEST_F(ReplicatorTest, AReplicaOutlivesASequenceThatIsGivenUpForDamage) {
  Prefill(1, 17);
  Keep(1);
  ASSERT_TRUE(TurnUntil([&] { return Snapshot().replicas_fed == 1; }));
  replicator_.Leave(1);
  ASSERT_TRUE(primary_.data_plane->ReleaseSequence(1, SequenceStore::kAnyEpoch).ok());
  const auto is_fed = [&] {
    std::lock_guard lock(other_.mutex);
    return other_.cluster.data_plane->store().Find(1)->feed != 0;
  };
  EXPECT_TRUE(TurnUntil([&] { return !is_fed(); })) << "a replica that nobody feeds goes with the TTL";
  EXPECT_EQ(other_.Stored(1), 200);
  EXPECT_EQ(Snapshot().replicas_fed, 0u);
}

// Who reads the gauges must be able to tell by them whether the primary may be lost.
TEST_F(ReplicatorTest, AReplicaThatIsMadeAnewIsNotTakenForTheOneBefore) {
  FedCacheRank third;
  third.identity.set_incarnation(9);
  Prefill(1, 17);
  Keep(1);
  ASSERT_TRUE(TurnUntil([&] { return Snapshot().replicas_copying == 1; })) << "open, and without its prompt";
  EXPECT_EQ(Snapshot().replicas_fed, 0u);
  ASSERT_TRUE(TurnUntil([&] { return Snapshot().replicas_fed == 1; }));
  EXPECT_EQ(other_.Stored(1), 200);
  ASSERT_TRUE(replicator_.Keep(1, &third.identity, Clock::now()).ok());
  replicator_.RunOnce(store(), {}, primary_.executor.get(), /*busy=*/false, Clock::now());
  EXPECT_EQ(Snapshot().replicas_fed, 0u) << "before its opening could reach the other cache rank";
  EXPECT_EQ(Snapshot().replicas_missing, 1u);
  EXPECT_TRUE(TurnUntil([&] { return Snapshot().replicas_fed == 1; }));
  EXPECT_EQ(third.Stored(1), 200);
  replicator_.Stop();  // before the server that it feeds
}

}  // namespace
}  // namespace winnow::test
