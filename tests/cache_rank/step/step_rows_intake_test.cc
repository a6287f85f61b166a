#include "cache_rank/step/step_rows_intake.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

class StepRowsIntakeTest : public testing::Test {
 protected:
  StepRowsIntakeTest() : cluster_({.data_plane = TestCluster::SmallDataPlane()}), rank_(cluster_.NewRank()) {}

  FakeSequence* Prefill(uint64_t id, uint64_t seed) { return rank_->Prefill(id, seed, kDense, 70); }
  wire::StepRowEntry Entry(const FakeSequence& sequence, uint32_t position) const {
    return {.sequence_id = sequence.id,
            .attach_epoch = sequence.attach_epoch,
            .position = position,
            .token_id = 1000 + position,
            .first_kv_head = 0,
            .num_kv_heads = static_cast<uint16_t>(layout().num_kv_heads),
            .first_layer = 0,
            .num_layers = static_cast<uint16_t>(layout().num_layers),
            .reserved = 0};
  }
  // The entries' rows, of sequences of these seeds, behind them.
  void Send(const std::vector<wire::StepRowEntry>& entries, const std::vector<uint64_t>& seeds, size_t cut_off = 0) {
    std::vector<std::byte> payload(wire::AlignUp(entries.size() * sizeof(wire::StepRowEntry), wire::kRowAlignment));
    std::memcpy(payload.data(), entries.data(), entries.size() * sizeof(wire::StepRowEntry));
    for (size_t i = 0; i < entries.size(); ++i) {
      for (int layer = 0; layer < layout().num_layers; ++layer) {
        for (int head = 0; head < layout().num_kv_heads; ++head) {
          const std::vector<float> row = cluster_.TruthRow(seeds[i], layer, head, entries[i].position);
          const auto* bytes = reinterpret_cast<const std::byte*>(row.data());
          payload.insert(payload.end(), bytes, bytes + layout().row_bytes());
        }
      }
    }
    payload.resize(payload.size() - cut_off);
    wire::FrameHeader header{};
    header.type = wire::FrameType::kStepRows;
    header.row_count = static_cast<uint32_t>(entries.size());
    rank_->Send(header, payload);
    cluster_.PumpUntil(*rank_, [] { return false; });
  }
  const KvLayout& layout() const { return cluster_.shape.layout; }
  const SequenceKv& kv(uint64_t id) const { return cluster_.data_plane->store().Find(id)->kv; }

  static inline const SelectionSpec kDense{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  TestCluster cluster_;
  std::unique_ptr<FakeRank> rank_;
};

TEST_F(StepRowsIntakeTest, RowsOfAllLayersAreStoredAndAWatermarkSaysSo) {
  FakeSequence *one = Prefill(1, 17), *other = Prefill(2, 18);
  Send({Entry(*one, 70), Entry(*other, 70)}, {17, 18});
  Send({Entry(*one, 71)}, {17});
  EXPECT_EQ(rank_->watermarks[1], 72u);
  EXPECT_EQ(rank_->watermarks[2], 71u);
  std::vector<float> row(2 * layout().head_dim);
  for (int layer = 0; layer < layout().num_layers; ++layer) {
    for (int head = 0; head < layout().num_kv_heads; ++head) {
      kv(1).CopyRows(layer, head, 71, 1, reinterpret_cast<std::byte*>(row.data()));
      EXPECT_EQ(row, cluster_.TruthRow(17, layer, head, 71)) << "layer " << layer << ", head " << head;
    }
  }
  EXPECT_EQ(rank_->Errors(), "");
}

TEST_F(StepRowsIntakeTest, RefusesRowsThatDoNotContinueTheirSequenceAndTakesTheOthers) {
  FakeSequence* gap = Prefill(1, 17);
  FakeSequence* good = Prefill(2, 18);
  SelectionSpec guarded = SmallSpec(Predictor::kLast);
  guarded.min_captured_mass = 0.5f;
  FakeSequence* verified = rank_->Prefill(3, 19, guarded, 70);
  Send({Entry(*gap, 71), Entry(*verified, 70), Entry(*good, 70)}, {17, 19, 18});
  EXPECT_EQ(rank_->failed, (std::vector<std::pair<uint64_t, uint32_t>>{{1, 0}, {3, 0}}));
  EXPECT_EQ(rank_->watermarks[2], 71u);
  EXPECT_EQ(kv(1).watermark(), 70u);
}

TEST_F(StepRowsIntakeTest, SequencesThatLookBackGoOnBehindTheirPromptAlone) {
  FakeSequence* looks_back = rank_->Prefill(3, 19, SmallSpec(Predictor::kLast), 70);
  Send({Entry(*looks_back, 70)}, {19});
  Send({Entry(*looks_back, 71)}, {19});
  EXPECT_EQ(rank_->watermarks[3], 72u);
  EXPECT_EQ(cluster_.data_plane->store().Find(3)->RestartPosition(100), 70u) << "no queries came with the rows";
}

TEST_F(StepRowsIntakeTest, FencesAnEarlierHolder) {
  FakeSequence* lost = Prefill(1, 17);
  cluster_.PumpCacheRank();
  auto other = cluster_.NewRank();
  other->Attach(*lost);
  rank_->Progress();
  rank_->fenced.clear();
  Send({Entry(*lost, 70)}, {17});
  EXPECT_EQ(rank_->fenced, (std::vector<std::pair<uint64_t, uint32_t>>{{1, 2}}));
  EXPECT_EQ(kv(1).watermark(), 70u);
}

TEST_F(StepRowsIntakeTest, ClosesTheLinkOfAPeerWhoseRowsAreMissing) {
  FakeSequence* sequence = Prefill(1, 17);
  Send({Entry(*sequence, 70)}, {17}, /*cut_off=*/layout().row_bytes());
  EXPECT_EQ(cluster_.metrics.Snapshot().frames_malformed, 1u);
  EXPECT_EQ(kv(1).watermark(), 70u);
}

TEST_F(StepRowsIntakeTest, ClosesTheLinkOfAPeerWithRowsOfAnotherModel) {
  FakeSequence* sequence = Prefill(1, 17);
  wire::StepRowEntry entry = Entry(*sequence, 70);
  entry.num_layers = 200;
  Send({entry}, {17});
  EXPECT_EQ(cluster_.metrics.Snapshot().frames_malformed, 1u);
  EXPECT_EQ(kv(1).watermark(), 70u);
}

}  // namespace
}  // namespace winnow::test
