#include "cache_rank/step/peer_intake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr int kBatchRows = 4;
constexpr uint32_t kPrompt = 150;

// A peer link without a GPU: plans end when the test says so, and their rows are zeros.
class FakePeerLink final : public DevicePeerLink {
 public:
  explicit FakePeerLink(const ServedShape& shape) : layout_(shape.layout), shard_(WholeModel(shape.layout)) {}

  const std::string& address() const override { return address_; }
  const KvShard& shard() const override { return shard_; }
  int num_batch_rows() const override { return kBatchRows; }
  absl::Status AssignRow(int batch_row, const CachedSequence& sequence, std::span<const uint32_t>) override {
    ReleaseRow(sequence.id);
    batch_rows_[batch_row] = {.sequence_id = sequence.id,
                              .attach_epoch = sequence.attach_epoch,
                              .position = sequence.kv.watermark(),
                              .batch_row = batch_row};
    return absl::OkStatus();
  }
  bool HasRow(const Row& row) const override {
    const Row& entry = batch_rows_[row.batch_row];
    return entry.sequence_id == row.sequence_id && entry.attach_epoch == row.attach_epoch &&
           entry.position == row.position;
  }
  void ReleaseRow(uint64_t sequence_id) override {
    for (Row& entry : batch_rows_) {
      if (entry.sequence_id == sequence_id) entry = {};
    }
  }
  absl::Status Launch(uint32_t, std::span<const Row> rows) override {
    if (plans.size() == kMostPlans) return absl::InvalidArgumentError("too many plans");
    plans.emplace_back(rows.begin(), rows.end());
    for (const Row& row : rows) ++batch_rows_[row.batch_row].position;
    ++launches;
    return absl::OkStatus();
  }
  void TakeRows(bool wait, const TakeRow& take) override {
    const std::vector<std::byte> kv(layout_.num_lists() * layout_.row_bytes());
    for (; !plans.empty() && (wait || ends > 0); plans.pop_front()) {
      if (ends > 0) --ends;
      for (const Row& row : plans.front()) take(row, kv.data(), {}, {});
    }
  }
  bool has_plans() const override { return !plans.empty(); }
  absl::Status Stage(uint64_t, const CachedSequence*, int, uint32_t, uint32_t) override { return absl::OkStatus(); }
  absl::StatusOr<const std::byte*> OldestStaged(bool) override { return nullptr; }
  void PopStaged() override {}
  void Abort(const absl::Status&) override {}
  absl::Status status() const override { return absl::OkStatus(); }

  std::deque<std::vector<Row>> plans;  // under way
  int ends = 0;                        // of them that have ended
  int launches = 0;

 private:
  const std::string address_ = "fake";
  const KvLayout layout_;
  const KvShard shard_;
  std::array<Row, kBatchRows> batch_rows_;
};

class FakePeerLinks final : public DevicePeerLinks {
 public:
  absl::StatusOr<std::unique_ptr<DevicePeerLink>> Open(const PeerOffer&, const ServedShape& shape) override {
    auto opened = std::make_unique<FakePeerLink>(shape);
    peer_link = opened.get();
    return opened;
  }
  void UseExecutor(Executor*) override {}
  CopyBytes copy_bytes() const override { return {}; }
  void OnRows(const CachedSequence&, int, uint32_t, uint32_t, const std::byte*) override {}
  bool Advance(const CachedSequence&) override { return true; }
  void Truncate(uint64_t, uint32_t) override {}
  void Forget(uint64_t) override {}
  void Retain(const std::function<bool(uint64_t)>&) override {}

  FakePeerLink* peer_link = nullptr;
};

class PeerIntakeTest : public testing::Test {
 protected:
  PeerIntakeTest() {
    EXPECT_TRUE(cluster_.data_plane->OpenPeerLink(rank_->link(), {}).ok());
    for (uint64_t id = 1; id <= 3; ++id) {
      sequences_.push_back(rank_->Prefill(id, 10 + id, SmallSpec(Predictor::kExact), kPrompt));
    }
    cluster_.PumpCacheRank();
  }
  static DataPlane::Options WithPeerLinks(std::shared_ptr<DevicePeerLinks> peer_links) {
    DataPlane::Options options = TestCluster::SmallDataPlane();
    options.peer_links = std::move(peer_links);
    return options;
  }

  struct PlannedRow {
    uint64_t id;
    uint32_t position, batch_row;
    uint32_t attach_epoch = 1;
  };
  void SendPlan(const std::vector<PlannedRow>& rows) {
    std::vector<std::byte> payload(rows.size() * sizeof(wire::PlanRow));
    for (size_t i = 0; i < rows.size(); ++i) {
      wire::PlanRow row{};
      row.sequence_id = rows[i].id;
      row.attach_epoch = rows[i].attach_epoch;
      row.position = rows[i].position;
      row.token_id = 1000 + rows[i].position - 1;
      row.flags = rows[i].batch_row;
      std::memcpy(payload.data() + i * sizeof row, &row, sizeof row);
    }
    wire::FrameHeader header{};
    header.type = wire::FrameType::kStepPlan;
    header.flags = wire::kPlanByPeer;
    header.plan = ++plan_;
    header.apply_position = static_cast<uint32_t>(plan_);
    header.row_count = static_cast<uint32_t>(rows.size());
    rank_->Send(header, payload);
    cluster_.PumpCacheRank();
  }
  void AskForBatchRow(uint64_t id, uint32_t batch_row, uint32_t position = kPrompt, uint32_t attach_epoch = 1) {
    wire::FrameHeader header{};
    header.type = wire::FrameType::kBatchRow;
    header.sequence_id = id;
    header.attach_epoch = attach_epoch;
    header.apply_position = position;
    header.row_count = batch_row;
    rank_->Send(header, std::vector<std::byte>(sizeof(uint32_t)));
    cluster_.PumpCacheRank();
  }
  void EndPlans(int count) {
    peer_link().ends += count;
    cluster_.PumpCacheRank();
    rank_->Progress();
  }
  FakePeerLink& peer_link() { return *peer_links_->peer_link; }
  uint32_t WatermarkOf(uint64_t id) { return cluster_.data_plane->store().Find(id)->kv.watermark(); }
  // The link is over, and what it had attached is kept for others.
  void ExpectTheLinkEnds() {
    cluster_.data_plane->Tick(std::chrono::steady_clock::now());
    const auto snapshot = cluster_.metrics.Snapshot();
    EXPECT_EQ(snapshot.frames_malformed, 1u);
    EXPECT_EQ(snapshot.channels, 0u);
    EXPECT_EQ(cluster_.data_plane->store().detached(), sequences_.size());
  }

  const std::shared_ptr<FakePeerLinks> peer_links_ = std::make_shared<FakePeerLinks>();
  TestCluster cluster_{{.data_plane = WithPeerLinks(peer_links_)}};
  const std::unique_ptr<FakeRank> rank_ = cluster_.NewRank();
  std::vector<FakeSequence*> sequences_;
  uint64_t plan_ = 0;
};

TEST_F(PeerIntakeTest, StoresTheRowsOfPlansThatHaveEnded) {
  AskForBatchRow(1, 0);
  AskForBatchRow(2, 3);
  SendPlan({{1, kPrompt, 0}, {2, kPrompt, 3}});
  SendPlan({{1, kPrompt + 1, 0}});
  EXPECT_EQ(WatermarkOf(1), kPrompt) << "no plan has ended";
  EndPlans(1);
  EXPECT_EQ(WatermarkOf(1), kPrompt + 1);
  EXPECT_EQ(WatermarkOf(2), kPrompt + 1);
  EndPlans(1);
  EXPECT_EQ(WatermarkOf(1), kPrompt + 2);
  EXPECT_EQ(rank_->watermarks[1], kPrompt + 2);
  EXPECT_THAT(rank_->failed, IsEmpty());
}

// A plan is announced while its own token is still being drawn.
TEST_F(PeerIntakeTest, AJournalHasTheTokensThatWereKnownWhenAPlanWasAnnounced) {
  AskForBatchRow(1, 0);
  SendPlan({{1, kPrompt, 0}});
  SendPlan({{1, kPrompt + 1, 0}});
  const SequenceJournal& journal = cluster_.data_plane->store().Find(1)->journal;
  EXPECT_EQ(journal.first_position, kPrompt - 1);
  EXPECT_THAT(journal.token_ids, ElementsAre(1000 + kPrompt - 1, 1000 + kPrompt));
}

TEST_F(PeerIntakeTest, APlanWithASequenceTwiceEndsTheLink) {
  AskForBatchRow(1, 0);
  SendPlan({{1, kPrompt, 0}, {1, kPrompt, 1}});
  EXPECT_EQ(peer_link().launches, 0);
  ExpectTheLinkEnds();
}

TEST_F(PeerIntakeTest, APlanWithABatchRowTwiceEndsTheLink) {
  AskForBatchRow(1, 0);
  SendPlan({{1, kPrompt, 0}, {2, kPrompt, 0}});
  EXPECT_EQ(peer_link().launches, 0);
  ExpectTheLinkEnds();
}

TEST_F(PeerIntakeTest, APlanWithMoreRowsThanTheBatchEndsTheLink) {
  AskForBatchRow(1, 0);
  std::vector<PlannedRow> rows;
  for (uint32_t i = 0; i < 10 * kBatchRows; ++i) rows.push_back({1 + i, kPrompt, i});
  SendPlan(rows);
  EXPECT_EQ(peer_link().launches, 0);
  ExpectTheLinkEnds();
}

TEST_F(PeerIntakeTest, APlanWithABatchRowThatThereIsNotEndsTheLink) {
  AskForBatchRow(1, 0);
  SendPlan({{1, kPrompt, 0}, {2, kPrompt, kBatchRows}});
  EXPECT_EQ(peer_link().launches, 0);
  ExpectTheLinkEnds();
}

TEST_F(PeerIntakeTest, AskingForABatchRowThatThereIsNotEndsTheLink) {
  AskForBatchRow(1, kBatchRows);
  ExpectTheLinkEnds();
}

TEST_F(PeerIntakeTest, APlanThatComesWhileThreeAreUnderWayEndsTheLink) {
  AskForBatchRow(1, 0);
  SendPlan({{1, kPrompt, 0}});
  SendPlan({{1, kPrompt + 1, 0}});
  SendPlan({{1, kPrompt + 2, 0}});
  SendPlan({{1, kPrompt + 3, 0}});
  EXPECT_EQ(peer_link().launches, 3);
  ExpectTheLinkEnds();
  EXPECT_EQ(WatermarkOf(1), kPrompt + 3) << "what was under way is stored";
}

TEST_F(PeerIntakeTest, ASequenceWithoutABatchRowIsRefusedAloneAndTheOthersGoOn) {
  AskForBatchRow(1, 0);
  SendPlan({{1, kPrompt, 0}, {2, kPrompt, 1}});
  EndPlans(1);
  EXPECT_EQ(WatermarkOf(1), kPrompt + 1);
  EXPECT_THAT(rank_->failed, ElementsAre(Pair(2, 0)));
  EXPECT_EQ(cluster_.metrics.Snapshot().frames_malformed, 0u);
}

// A row came by frame for a position that a plan has, so that the plan's row fits nowhere.
TEST_F(PeerIntakeTest, ARowThatCannotBeStoredIsToldAndItsSequenceLeavesTheBatch) {
  AskForBatchRow(1, 0);
  AskForBatchRow(2, 1);
  SendPlan({{1, kPrompt, 0}, {2, kPrompt, 1}});
  const KvLayout& layout = cluster_.shape.layout;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    wire::FrameHeader header{};
    header.type = wire::FrameType::kAppendRange;
    header.sequence_id = 1;
    header.attach_epoch = 1;
    header.apply_position = kPrompt;
    header.layer_first = static_cast<uint16_t>(layer);
    header.row_count = 1;
    rank_->Send(header, std::vector<std::byte>(layout.num_kv_heads * layout.row_bytes()));
  }
  cluster_.PumpCacheRank();
  EndPlans(1);
  EXPECT_THAT(rank_->failed, ElementsAre(Pair(1, 0)));
  EXPECT_EQ(WatermarkOf(2), kPrompt + 1) << "the other row is stored";

  SendPlan({{1, kPrompt + 1, 0}, {2, kPrompt + 1, 1}});
  EndPlans(1);
  EXPECT_THAT(rank_->failed, ElementsAre(Pair(1, 0), Pair(1, 0))) << "it has no batch row any more";
  EXPECT_EQ(WatermarkOf(1), kPrompt + 1) << "nothing was decoded behind the row";
  EXPECT_EQ(WatermarkOf(2), kPrompt + 2);
}

TEST_F(PeerIntakeTest, RowsOfAnEarlierAttachmentAreDroppedWithoutAWord) {
  AskForBatchRow(1, 0);
  SendPlan({{1, kPrompt, 0}});
  ASSERT_TRUE(cluster_.data_plane->DetachSequence(1, 1).ok());
  ASSERT_TRUE(cluster_.data_plane->AttachSequence(rank_->link(), 1, kPrompt).ok());
  EndPlans(1);
  EXPECT_EQ(WatermarkOf(1), kPrompt);
  EXPECT_THAT(rank_->failed, IsEmpty());
  SendPlan({{1, kPrompt + 1, 0, /*attach_epoch=*/2}});
  rank_->Progress();
  EXPECT_THAT(rank_->failed, ElementsAre(Pair(1, 0))) << "the batch row was the earlier attachment's";
}

}  // namespace
}  // namespace winnow::test
