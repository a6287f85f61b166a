#include "cache_rank/step/device/gpu_peer_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cache_rank/store/sequence_store.h"
#include "common/selection/presets.h"
#include "tests/cache_rank/step/device/call_log_device.h"
#include "tests/cache_rank/step/device/inference_gpu.h"
#include "tests/support/host_gpu/host_device.h"
#include "tests/support/host_gpu/host_table.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr KvLayout kLayout = {
    .num_layers = 2, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = Dtype::kBf16};
constexpr uint32_t kMaxPositions = 600, kPrompt = 300;
constexpr int kBatchRows = 4;

class GpuPeerLinkTest : public testing::Test {
 protected:
  explicit GpuPeerLinkTest(const char* preset = "exact-token", uint32_t sink_tokens = 4)
      : offer_(OfferFor(preset, sink_tokens)) {
    offer_.address = peer_.address();
    DeviceKvShape shape = DeviceKvShapeFor(offer_.spec, kLayout, 4, kMaxPositions, 0);
    shape.num_blocks = 4 * shape.BlocksOf(kMaxPositions);
    const DeviceKvBytes bytes = BytesOf(shape);
    copies_ = SequenceCopies::Create(&test::HostGpuTable(), &device_, shape, offer_.spec, bytes.rows + bytes.index(), 0,
                                     executor_.get())
                  .value();
    model_.rope.inv_freq.assign(kLayout.head_dim / 2, 0.5f);
    peer_link_ = GpuPeerLink::Create(&test::HostGpuTable(), &device_, copies_.get(),
                                     {.rope = model_.rope, .attention_scale = 0.125f, .queries = nullptr}, offer_)
                     .value();
  }
  static PeerOffer OfferFor(const char* preset, uint32_t sink_tokens) {
    PeerOffer offer{.address = {},
                    .spec = FindPreset(preset).value(),
                    .max_rows = kBatchRows,
                    .hidden_size = 256,
                    .max_positions = kMaxPositions,
                    .synthetic_model = {},
                    .shard = WholeModel(kLayout)};
    offer.spec.budget_tokens = 64;
    offer.spec.sink_tokens = sink_tokens;
    return offer;
  }

  CachedSequence& Open(uint64_t id, uint32_t prompt_tokens) {
    CachedSequence& sequence = **store_.Open(
        1, {.sequence_id = id, .spec = offer_.spec, .max_positions = kMaxPositions, .prompt_tokens = prompt_tokens});
    const std::vector<std::byte> rows(kLayout.num_kv_heads * prompt_tokens * kLayout.row_bytes());
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      EXPECT_THAT(sequence.kv.Append(layer, 0, prompt_tokens, rows.data()), IsOkStatus());
    }
    return sequence;
  }
  absl::Status AssignRow(int batch_row, const CachedSequence& sequence) {
    constexpr size_t kPagesPerList = 6;  // what lists of this specification may have at most
    const std::vector<uint32_t> pages(kLayout.num_lists() * kPagesPerList);
    return peer_link_->AssignRow(batch_row, sequence, pages);
  }
  static DevicePeerLink::Row RowOf(const CachedSequence& sequence, int batch_row, uint32_t position) {
    return {.sequence_id = sequence.id,
            .attach_epoch = sequence.attach_epoch,
            .position = position,
            .batch_row = batch_row};
  }
  std::vector<uint64_t> TakeRows() {
    std::vector<uint64_t> ids;
    peer_link_->TakeRows(/*wait=*/true, [&](const DevicePeerLink::Row& row, const std::byte*, std::span<const float>,
                                            const DevicePeerLink::RowCounts&) { ids.push_back(row.sequence_id); });
    return ids;
  }
  // K and V of a position in all lists of the sequence's copy.
  std::vector<std::byte> CopiedRow(const CachedSequence& sequence, uint32_t position) {
    const auto copy = copies_->Complete(sequence, nullptr).value();
    const DeviceKvStore& kv = copies_->kv();
    std::vector<std::byte> row;
    for (size_t list = 0; list < kLayout.num_lists(); ++list) {
      const uint32_t block = kv.blocks()[kv.FirstBlock(copy->place(), list) + position / kBlockTokens];
      const auto* from = static_cast<const std::byte*>(kv.row_pool()) +
                         (size_t{block} * kBlockTokens + position % kBlockTokens) * kLayout.row_bytes();
      row.insert(row.end(), from, from + kLayout.row_bytes());
    }
    return row;
  }

  PeerOffer offer_;
  const test::InferenceGpu peer_{GpuPeerLink::ExchangeOf(offer_, kLayout)};
  test::CallLogDevice device_{test::OpenHostDevice(0).value()};
  const std::unique_ptr<Executor> executor_ = CpuKernels().value()->new_executor(1);
  const std::unique_ptr<KvBlockPool> pool_ = KvBlockPool::Create(size_t{64} << 20, kLayout).value();
  SequenceStore store_{pool_.get(), CpuKernels().value(), kLayout, std::chrono::milliseconds(1000)};
  std::unique_ptr<SequenceCopies> copies_;
  SelectionModel model_;
  std::unique_ptr<GpuPeerLink> peer_link_;
};

TEST_F(GpuPeerLinkTest, HasThreePlansUnderWayAndRefusesAFourth) {
  peer_.RunAhead(peer_link_->address());
  const CachedSequence& sequence = Open(1, kPrompt);
  ASSERT_THAT(AssignRow(2, sequence), IsOkStatus());
  const auto launch = [&](uint32_t step, uint32_t position) {
    return peer_link_->Launch(step, std::vector{RowOf(sequence, 2, position)});
  };
  ASSERT_THAT(launch(1, kPrompt), IsOkStatus());
  ASSERT_THAT(launch(2, kPrompt + 1), IsOkStatus());
  ASSERT_THAT(launch(3, kPrompt + 2), IsOkStatus());
  EXPECT_THAT(launch(4, kPrompt + 3), FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("3 before it")));
  EXPECT_THAT(TakeRows(), ElementsAre(1, 1, 1));
  EXPECT_THAT(launch(4, kPrompt + 3), IsOkStatus()) << "nothing was begun";
  EXPECT_THAT(TakeRows(), ElementsAre(1));
}

TEST_F(GpuPeerLinkTest, ASequenceHasOneBatchRowOfOneAttachment) {
  CachedSequence& sequence = Open(1, kPrompt);
  ASSERT_THAT(AssignRow(0, sequence), IsOkStatus());
  EXPECT_TRUE(peer_link_->HasRow(RowOf(sequence, 0, kPrompt)));
  EXPECT_FALSE(peer_link_->HasRow(RowOf(sequence, 0, kPrompt + 1)));
  ASSERT_THAT(AssignRow(1, sequence), IsOkStatus());
  EXPECT_FALSE(peer_link_->HasRow(RowOf(sequence, 0, kPrompt)));
  EXPECT_TRUE(peer_link_->HasRow(RowOf(sequence, 1, kPrompt)));
  ++sequence.attach_epoch;
  EXPECT_FALSE(peer_link_->HasRow(RowOf(sequence, 1, kPrompt)));
  peer_link_->ReleaseRow(1);
  --sequence.attach_epoch;
  EXPECT_FALSE(peer_link_->HasRow(RowOf(sequence, 1, kPrompt)));
}

// The device decodes what it was told of last. Here the next plan changes nothing itself.
TEST_F(GpuPeerLinkTest, WhoseBatchRowIsGivenAwayIsDecodedNoFurther) {
  peer_.RunAhead(peer_link_->address());
  const CachedSequence &before = Open(1, kPrompt), &beside = Open(2, kPrompt), &after = Open(3, kPrompt);
  ASSERT_THAT(AssignRow(0, before), IsOkStatus());
  ASSERT_THAT(AssignRow(1, beside), IsOkStatus());
  ASSERT_THAT(peer_link_->Launch(1, std::vector{RowOf(before, 0, kPrompt), RowOf(beside, 1, kPrompt)}), IsOkStatus());
  EXPECT_THAT(TakeRows(), ElementsAre(1, 2));
  const std::vector<std::byte> was = CopiedRow(before, kPrompt + 1);
  ASSERT_THAT(AssignRow(0, after), IsOkStatus());
  ASSERT_THAT(peer_link_->Launch(2, std::vector{RowOf(beside, 1, kPrompt + 1)}), IsOkStatus());
  EXPECT_THAT(TakeRows(), ElementsAre(2));
  EXPECT_EQ(CopiedRow(before, kPrompt + 1), was);
}

TEST_F(GpuPeerLinkTest, TakesNoRowsOfAPushThatIsNotTheNext) {
  CachedSequence& sequence = Open(1, 0);
  ASSERT_FALSE(peer_link_->Stage(2, &sequence, 0, 0, 32).ok());
  EXPECT_EQ(copies_->Complete(sequence, nullptr).value()->rows(0), 0u);
  EXPECT_THAT(peer_link_->Stage(1, &sequence, 0, 0, 32), IsOkStatus());
  EXPECT_EQ(copies_->Complete(sequence, nullptr).value()->rows(0), 32u);
}

class GpuPeerLinkWithPastQueriesTest : public GpuPeerLinkTest {
 protected:
  GpuPeerLinkWithPastQueriesTest() : GpuPeerLinkTest("async-token", /*sink_tokens=*/0) {}
};

// Another sequence may ask for a batch row at once, and its queries go through the same pinned memory.
TEST_F(GpuPeerLinkWithPastQueriesTest, TellsWhenPinnedQueriesAreCopiedAlsoWhereTheBatchRowIsRefusedThen) {
  CachedSequence& sequence = Open(1, 0);
  // Of the last layer, queries that end where it does, and begin nowhere before.
  sequence.layers.back().queries.Push(UINT32_MAX);
  device_.calls.clear();
  ASSERT_THAT(AssignRow(0, sequence),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("queries up to position")));
  const auto copy = std::find(device_.calls.rbegin(), device_.calls.rend(), absl::StrCat("copy ", sizeof(uint32_t)));
  ASSERT_NE(copy, device_.calls.rend()) << "where the queries of the first layer begin";
  EXPECT_THAT(std::vector(device_.calls.rbegin(), copy), Contains("record"));
}

}  // namespace
}  // namespace winnow
