#include "inference_rank/step/prefetch_commit.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace winnow {
namespace {

// One sequence of one layer and two kv heads with a selection, and frames made by hand.
class PrefetchCommitTest : public testing::Test {
 protected:
  PrefetchCommitTest() : slots_(*SlotPool::Create(layout_.row_bytes(), 100)) {
    set_.emplace(*WorkingSet::Create(slots_, layout_, spec_, 5000, /*prompt_tokens=*/990));
    for (uint32_t index = 0; index < 8; ++index) {
      const std::vector<float> row = Row(static_cast<float>(index));
      EXPECT_TRUE(
          set_->CommitStreamed(0, 1, std::vector<uint32_t>{index}, reinterpret_cast<const std::byte*>(row.data()))
              .ok());
    }
    EXPECT_TRUE(set_->SetSelection(0, 1, 1000, selected_).ok());
  }

  static wire::DeltaEntry Entry(uint16_t kv_head, uint32_t streamed, uint32_t selected = 0, uint32_t local = 0) {
    wire::DeltaEntry entry{};
    entry.kv_head = kv_head;
    entry.num_selected = selected;
    entry.num_streamed = streamed;
    entry.num_local = local;
    return entry;
  }
  std::vector<float> Row(float value) const { return std::vector<float>(2 * layout_.head_dim, value); }
  // Entries of kv head 1 with these indices and rows.
  ReceivedFrame Frame(const wire::DeltaEntry& entry, const std::vector<uint32_t>& indices,
                      const std::vector<float>& rows, int layer = 0) {
    bytes_.assign(1024, std::byte{0});
    std::memcpy(bytes_.data(), &entry, sizeof entry);
    std::memcpy(bytes_.data() + sizeof entry, indices.data(), indices.size() * sizeof(uint32_t));
    const size_t offset = wire::AlignUp(sizeof entry + indices.size() * sizeof(uint32_t), wire::kRowAlignment);
    std::memcpy(bytes_.data() + offset, rows.data(), rows.size() * sizeof(float));
    wire::FrameHeader header{};
    header.type = wire::FrameType::kDelta;
    header.phase = wire::Phase::kPrefetch;
    header.layer_first = static_cast<uint16_t>(layer);
    header.row_count = 1;
    const size_t size = offset + rows.size() * sizeof(float);
    return ReceivedFrame(header, {bytes_.data(), size}, nullptr, [](void*, const std::byte*, size_t) {});
  }
  // The first elements of what attention would read now from the pool.
  std::vector<float> Attended() const {
    std::vector<float> first;
    for (uint32_t i = 0; i < selected_.size(); ++i) {
      float value;
      std::memcpy(&value, slots_.row(set_->Slots(0, 1)[spec_.sink_tokens + i]), sizeof value);
      first.push_back(value);
    }
    return first;
  }
  absl::StatusCode Code(const wire::DeltaEntry& entry, const std::vector<uint32_t>& indices,
                        const std::vector<float>& rows, int layer = 0) {
    return CommitPrefetch(layout_, WholeModel(layout_), Frame(entry, indices, rows, layer), *set_).status().code();
  }

  const KvLayout layout_{1, 4, 2, 4, Dtype::kF32};
  const SelectionSpec spec_{.budget_tokens = 4, .sink_tokens = 4, .recent_tokens = 64, .pool_factor = 2};
  const std::vector<uint32_t> selected_ = {5, 0, 3, 1};
  SlotPool slots_;
  std::optional<WorkingSet> set_;
  std::vector<std::byte> bytes_;
};

TEST_F(PrefetchCommitTest, RowsComeBesideTheListThatAttentionReads) {
  std::vector<float> rows = Row(60);
  const std::vector<float> second = Row(20);
  rows.insert(rows.end(), second.begin(), second.end());
  const auto committed = CommitPrefetch(layout_, WholeModel(layout_), Frame(Entry(1, 2), {6, 2}, rows), *set_);
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(*committed, 2u);
  EXPECT_EQ(Attended(), (std::vector<float>{5, 0, 3, 1})) << "the list is what it was";
  // A later selection finds them there without having been sent anything.
  ASSERT_TRUE(set_->SetSelection(0, 1, 1001, std::vector<uint32_t>{6, 2, 7, 4}).ok());
  EXPECT_EQ(Attended(), (std::vector<float>{60, 20, 7, 4}));
}

TEST_F(PrefetchCommitTest, RefusesWhatNoCorrectPeerSends) {
  const auto kBad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(Code(Entry(1, 1), {2}, Row(9)), absl::StatusCode::kOk);
  EXPECT_EQ(Code(Entry(1, 1), {8}, Row(9)), kBad) << "outside the grant";
  EXPECT_EQ(Code(Entry(2, 1), {2}, Row(9)), kBad) << "no such head";
  EXPECT_EQ(Code(Entry(1, 1), {2}, Row(9), 1), kBad) << "no such layer";
  EXPECT_EQ(Code(Entry(1, 2), {2, 4}, Row(9)), kBad) << "a row is missing";
  EXPECT_EQ(Code(Entry(1, UINT32_MAX), {2}, Row(9)), kBad) << "sizes that overflow";
  EXPECT_EQ(Code(Entry(1, 0, /*selected=*/1), {2}, {}), kBad) << "a selection";
  EXPECT_EQ(Code(Entry(1, 0, 0, /*local=*/1), {2, 3}, {}), kBad) << "ring copies";
}

}  // namespace
}  // namespace winnow
