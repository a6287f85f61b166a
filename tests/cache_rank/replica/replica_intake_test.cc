// A replica is the sequence: whoever attaches to it goes on with the same selections.
#include "cache_rank/replica/replica_intake.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cache_rank/replica/replica_rows.h"
#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

using std::chrono::seconds;

constexpr uint64_t kId = 1, kSeed = 17, kFeed = 5;
constexpr uint32_t kPrompt = 170;

// A cache rank that holds a sequence, and one that holds its replica.
class ReplicaTest : public testing::Test {
 protected:
  ReplicaTest() : rank_(primary_.NewRank()), other_rank_(second_.NewRank()) {}

  FakeSequence* Prefill(const SelectionSpec& spec) {
    FakeSequence* const sequence = rank_->Prefill(kId, kSeed, spec, kPrompt);
    primary_.PumpCacheRank();
    return sequence;
  }
  CachedSequence& held() { return *primary_.data_plane->store().Find(kId); }
  CachedSequence* replica() { return second_.data_plane->store().Find(kId); }

  v1::ReplicaState Take(const v1::ReplicaUpdate& update, uint64_t feed = kFeed) {
    v1::FeedRequest request;
    *request.add_updates() = update;
    const v1::FeedResponse response = intake_.Take(*second_.data_plane, feed, request);
    EXPECT_EQ(response.states_size(), 1);
    EXPECT_EQ(response.states(0).sequence_id(), kId);
    return response.states(0);
  }
  v1::ReplicaState Open(uint64_t feed = kFeed) {
    v1::ReplicaUpdate update;
    update.set_sequence_id(kId);
    *update.mutable_opening() = OpeningOf(held());
    return Take(update, feed);
  }
  v1::ReplicaState Copy(uint32_t first, uint32_t end) {
    v1::ReplicaUpdate update;
    update.set_sequence_id(kId);
    *update.mutable_rows() = RowsOf(held(), first, end - first, primary_.executor.get());
    return Take(update);
  }
  void CopyAll() {
    const uint32_t watermark = held().kv.watermark();
    for (uint32_t first = replica()->kv.watermark(); first < watermark; first += 60) {
      const v1::ReplicaState state = Copy(first, std::min(first + 60, watermark));
      ASSERT_EQ(state.code(), 0u) << state.message();
    }
    ASSERT_EQ(replica()->kv.watermark(), watermark);
  }

  TestCluster primary_{{.data_plane = TestCluster::SmallDataPlane()}};
  TestCluster second_{{.data_plane = TestCluster::SmallDataPlane()}};
  std::unique_ptr<FakeRank> rank_, other_rank_;
  const ReplicaIntake intake_{second_.executor.get(), &second_.metrics};
};

class Predicted : public ReplicaTest, public testing::WithParamInterface<Predictor> {};

TEST_P(Predicted, WhoeverAttachesToAReplicaSelectsWhatItsPrimaryWouldHave) {
  const SelectionSpec spec = SmallSpec(GetParam());
  FakeSequence* const sequence = Prefill(spec);
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(rank_->Decode({sequence}));
  // It is opened late, and lags.
  ASSERT_EQ(Open().code(), 0u);
  CopyAll();
  for (int step = 0; step < 9; ++step) {
    ASSERT_TRUE(rank_->Decode({sequence}));
    primary_.PumpCacheRank();
    if (step < 7) CopyAll();
  }
  const uint32_t copied = replica()->kv.watermark();
  FakeSequence* const promoted = other_rank_->Attach(*sequence);
  ASSERT_NE(promoted, nullptr);
  EXPECT_EQ(promoted->next_position, copied) << "what was copied is not decoded again";
  EXPECT_FALSE(replica()->is_replica);
  for (int step = 0; step < 6; ++step) {
    if (promoted->next_position == sequence->next_position) {
      ASSERT_TRUE(rank_->Decode({sequence}));
    }
    ASSERT_TRUE(other_rank_->Decode({promoted}));
  }
  for (uint32_t position = copied; position < promoted->next_position; ++position) {
    EXPECT_EQ(promoted->selections[position], sequence->selections[position]) << position;
  }
  EXPECT_EQ(other_rank_->Errors(), "");
  EXPECT_EQ(second_.metrics.Snapshot().replicas_promoted, 1u);
}

INSTANTIATE_TEST_SUITE_P(Replicas, Predicted,
                         testing::Values(Predictor::kDense, Predictor::kExact, Predictor::kLast, Predictor::kTemporal,
                                         Predictor::kDepth));

TEST_F(ReplicaTest, RowsThatAreReplacedAtThePrimaryAreReplacedInTheReplica) {
  FakeSequence* sequence = Prefill(SmallSpec(Predictor::kLast));
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(rank_->Decode({sequence}));
  primary_.PumpCacheRank();
  ASSERT_EQ(Open().code(), 0u);
  CopyAll();
  const FakeSequence before = *sequence;
  sequence = rank_->Attach(before, kPrompt + 2);
  EXPECT_EQ(held().rewound_to, kPrompt + 2);
  EXPECT_EQ(Copy(kPrompt + 1, kPrompt + 2).stored_positions(), kPrompt + 2);
  EXPECT_EQ(replica()->kv.watermark(), kPrompt + 2) << "what lay behind them is gone";
}

TEST_F(ReplicaTest, AGapIsRefused) {
  Prefill(SmallSpec(Predictor::kExact));
  ASSERT_EQ(Open().code(), 0u);
  EXPECT_EQ(Copy(100, 120).code(), static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(replica()->kv.watermark(), 0u);
}

TEST_F(ReplicaTest, RowsOfAnotherShapeAreRefused) {
  Prefill(SmallSpec(Predictor::kLast));
  ASSERT_EQ(Open().code(), 0u);
  v1::ReplicaUpdate update;
  update.set_sequence_id(kId);
  *update.mutable_rows() = RowsOf(held(), 0, kPrompt, nullptr);
  const v1::ReplicaUpdate good = update;
  update.mutable_rows()->mutable_kv_rows()->pop_back();
  EXPECT_EQ(Take(update).code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  update = good;
  update.mutable_rows()->set_num_queries(update.rows().num_queries() + 1);
  EXPECT_EQ(Take(update).code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  update = good;
  update.mutable_rows()->set_num_positions(0);
  EXPECT_EQ(Take(update).code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(replica()->kv.watermark(), 0u);
  EXPECT_EQ(Take(good).stored_positions(), kPrompt);
}

TEST_F(ReplicaTest, AnOpeningThatIsRefusedLeavesTheReplicaThatIsThere) {
  Prefill(SmallSpec(Predictor::kExact));
  ASSERT_EQ(Open().code(), 0u);
  CopyAll();
  v1::ReplicaUpdate update;
  update.set_sequence_id(kId);
  *update.mutable_opening() = OpeningOf(held());
  update.mutable_opening()->set_prompt_tokens(update.opening().max_positions() + 1);
  EXPECT_EQ(Take(update).code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  update.mutable_opening()->Clear();
  EXPECT_EQ(Take(update).code(), static_cast<uint32_t>(absl::StatusCode::kInvalidArgument)) << "no specification";
  ASSERT_NE(replica(), nullptr);
  EXPECT_EQ(replica()->kv.watermark(), kPrompt);
}

// Streaming lists have given the rows of the middle back: nothing can be written behind them.
TEST_F(ReplicaTest, RowsThatBeginAmongThoseThatWereGivenBackAreRefused) {
  SelectionSpec spec = SmallSpec(Predictor::kExact);
  for (size_t list = 0; list < primary_.shape.layout.num_lists(); ++list) {
    spec.head_budgets.push_back(list % 2 == 0 ? 0 : 48);
  }
  constexpr uint32_t kLongPrompt = 350;
  rank_->Prefill(kId, kSeed, spec, kLongPrompt);
  primary_.PumpCacheRank();
  ASSERT_EQ(Open().code(), 0u);
  CopyAll();
  const uint32_t kept = replica()->kv.FirstKeptBelow(kLongPrompt);
  ASSERT_GT(kept, 2u * kBlockTokens);
  EXPECT_EQ(Copy(kept - 10, kLongPrompt).code(), static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(replica()->kv.watermark(), kLongPrompt) << "what was refused has changed nothing";
  EXPECT_EQ(Copy(kept + 10, kLongPrompt).code(), 0u);
  EXPECT_EQ(replica()->kv.watermark(), kLongPrompt);
}

TEST_F(ReplicaTest, IsRefusedToItsFeedOnceSomebodyHasAttached) {
  FakeSequence* const sequence = Prefill(SmallSpec(Predictor::kExact));
  ASSERT_EQ(Open().code(), 0u);
  CopyAll();
  ASSERT_NE(other_rank_->Attach(*sequence), nullptr);
  const auto exists = static_cast<uint32_t>(absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Copy(0, 10).code(), exists);
  EXPECT_EQ(Open().code(), exists);
  v1::ReplicaUpdate release;
  release.set_sequence_id(kId);
  release.set_release(true);
  EXPECT_EQ(Take(release).code(), exists);
  EXPECT_NE(replica(), nullptr);
}

TEST_F(ReplicaTest, GoesWithItsSequenceAndWhatItHeldIsFree) {
  Prefill(SmallSpec(Predictor::kExact));
  ASSERT_EQ(Open().code(), 0u);
  CopyAll();
  EXPECT_EQ(second_.metrics.Snapshot().replicas, 1u);
  EXPECT_EQ(second_.metrics.Snapshot().detached_sequences, 0u) << "it waits for nobody";
  v1::ReplicaUpdate release;
  release.set_sequence_id(kId);
  release.set_release(true);
  EXPECT_EQ(Take(release, kFeed + 1).code(), 0u);
  EXPECT_NE(replica(), nullptr) << "another feed has it";
  EXPECT_EQ(Take(release).code(), 0u);
  EXPECT_EQ(replica(), nullptr);
  EXPECT_EQ(second_.data_plane->blocks().used(), 0u);
  EXPECT_EQ(second_.data_plane->blocks().reserved(), 0u);
}

TEST_F(ReplicaTest, IsKeptWhileItIsFedAndForTheTtlAfterwards) {
  Prefill(SmallSpec(Predictor::kExact));
  ASSERT_EQ(Open().code(), 0u);
  const auto now = std::chrono::steady_clock::now();
  second_.data_plane->Tick(now + seconds(3600));
  ASSERT_NE(replica(), nullptr);
  second_.data_plane->store().EndFeed(kFeed, now);
  second_.data_plane->Tick(now + seconds(59));
  EXPECT_NE(replica(), nullptr);
  second_.data_plane->Tick(now + seconds(60));
  EXPECT_EQ(replica(), nullptr);
}

TEST_F(ReplicaTest, BeginsAnewUnderAnotherFeed) {
  Prefill(SmallSpec(Predictor::kExact));
  ASSERT_EQ(Open().code(), 0u);
  CopyAll();
  second_.data_plane->store().EndFeed(kFeed, std::chrono::steady_clock::now());
  EXPECT_EQ(Open(kFeed + 1).stored_positions(), 0u);
  EXPECT_EQ(Copy(0, 10).code(), static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition)) << "of the old feed";
}

}  // namespace
}  // namespace winnow::test
