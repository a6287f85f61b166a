#include "cache_rank/store/device/sequence_copies.h"

#include <gtest/gtest.h>

#include <random>

#include "cache_rank/store/sequence_store.h"
#include "common/selection/presets.h"
#include "tests/support/host_gpu/host_device.h"
#include "tests/support/host_gpu/host_table.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

constexpr KvLayout kLayout = {
    .num_layers = 2, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = Dtype::kBf16};
constexpr uint32_t kMaxPositions = 600;

SelectionSpec Spec() {
  SelectionSpec spec = FindPreset("exact-token").value();
  spec.budget_tokens = 64;
  spec.key_copy = KeyCopy::kInt8;
  return spec;
}

// Where the rows of sequences have room, in quarters of two sequences: in the GPU's memory alone, in both, in the
// host's alone. With one and a half the second sequence has rows in both.
struct Room {
  const char* name;
  int device = 4, host = 0;
};

class SequenceCopiesTest : public testing::TestWithParam<Room> {
 protected:
  // Room for two sequences.
  SequenceCopiesTest() {
    DeviceKvShape shape = DeviceKvShapeFor(Spec(), kLayout, 2, kMaxPositions, 0);
    shape.num_blocks = 2 * shape.BlocksOf(kMaxPositions);
    const DeviceKvBytes bytes = BytesOf(shape);
    copies_ = SequenceCopies::Create(&test::HostGpuTable(), device_.get(), shape, Spec(),
                                     bytes.rows / 4 * GetParam().device + bytes.index(),
                                     bytes.rows / 4 * GetParam().host, executor_.get())
                  .value();
  }

  CachedSequence& Open(uint64_t id) {
    return **store_.Open(1, {.sequence_id = id, .spec = Spec(), .max_positions = kMaxPositions, .prompt_tokens = 500});
  }
  // Random rows behind what the sequence has; returns them, [num_kv_heads][count][2 * head_dim].
  std::vector<std::byte> Append(CachedSequence& sequence, int layer, uint32_t count) {
    std::vector<std::byte> rows(kLayout.num_kv_heads * count * kLayout.row_bytes());
    for (std::byte& byte : rows) byte = static_cast<std::byte>(random_() % 64);
    EXPECT_THAT(sequence.kv.Append(layer, sequence.kv.rows(layer), count, rows.data()), IsOkStatus());
    return rows;
  }
  void AppendAll(CachedSequence& sequence, uint32_t count) {
    for (int layer = 0; layer < kLayout.num_layers; ++layer) Append(sequence, layer, count);
  }
  // Every row of the sequence below its watermark lies in the copy's blocks.
  void ExpectCopied(const CachedSequence& sequence, const SequenceCopy& copy) {
    std::vector<std::byte> row(kLayout.row_bytes());
    for (size_t list = 0; list < kLayout.num_lists(); ++list) {
      const int layer = static_cast<int>(list) / kLayout.num_kv_heads,
                head = static_cast<int>(list) % kLayout.num_kv_heads;
      const uint32_t* blocks = copies_->kv().blocks() + copies_->kv().FirstBlock(copy.place(), list);
      for (uint32_t position = 0; position < sequence.kv.watermark(); ++position) {
        sequence.kv.CopyRows(layer, head, position, 1, row.data());
        const size_t at = size_t{blocks[position / kBlockTokens]} * kBlockTokens + position % kBlockTokens;
        const auto* stored = static_cast<const std::byte*>(copies_->kv().row_pool()) + at * row.size();
        ASSERT_TRUE(std::equal(row.begin(), row.end(), stored)) << "list " << list << ", position " << position;
      }
    }
  }

  std::mt19937 random_{7};
  const std::unique_ptr<device::Device> device_ = test::OpenHostDevice(0).value();
  const std::unique_ptr<Executor> executor_ = CpuKernels().value()->new_executor(2);
  const std::unique_ptr<KvBlockPool> pool_ = KvBlockPool::Create(size_t{64} << 20, kLayout).value();
  SequenceStore store_{pool_.get(), CpuKernels().value(), kLayout, std::chrono::milliseconds(1000)};
  std::unique_ptr<SequenceCopies> copies_;
};

INSTANTIATE_TEST_SUITE_P(Rooms, SequenceCopiesTest,
                         testing::Values(Room{"Device", 4, 0}, Room{"Both", 3, 1}, Room{"Host", 0, 4}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(SequenceCopiesTest, CopiesRowsAsTheyArrive) {
  CachedSequence& sequence = Open(1);
  for (int layer = 0; layer < kLayout.num_layers; ++layer) {
    for (const uint32_t count : {1u, 31u, 300u, 168u}) {
      const uint32_t first = sequence.kv.rows(layer);
      const std::vector<std::byte> rows = Append(sequence, layer, count);
      copies_->OnRows(sequence, layer, first, count, rows.data());
    }
  }
  const auto copy = copies_->Complete(sequence, nullptr).value();
  EXPECT_EQ(copy->rows(0), 500u);
  ExpectCopied(sequence, *copy);
}

TEST_P(SequenceCopiesTest, CopiesRowsThatAreInItsMemory) {
  CachedSequence& sequence = Open(1);
  for (int layer = 0; layer < kLayout.num_layers; ++layer) {
    for (const uint32_t count : {33u, 300u}) {
      const uint32_t first = sequence.kv.rows(layer);
      const std::vector<std::byte> rows = Append(sequence, layer, count);
      copies_->OnDeviceRows(sequence, layer, first, count, rows.data());
    }
  }
  const auto copy = copies_->Complete(sequence, nullptr).value();
  EXPECT_EQ(copy->rows(0), 333u);
  ExpectCopied(sequence, *copy);
}

TEST_P(SequenceCopiesTest, MakesUpForWhatItMissedPartByPart) {
  CachedSequence& sequence = Open(1);
  AppendAll(sequence, 200);
  const std::vector<std::byte> unseen_before = Append(sequence, 0, 10);
  copies_->OnRows(sequence, 0, 200, 10, unseen_before.data());  // behind a gap: left out
  while (!copies_->Advance(sequence)) {
  }
  ExpectCopied(sequence, *copies_->Complete(sequence, nullptr).value());
}

TEST_P(SequenceCopiesTest, GoesOnWithRowsThatPlansHaveAppended) {
  CachedSequence& sequence = Open(1);
  AppendAll(sequence, 100);
  const auto copy = copies_->Complete(sequence, nullptr).value();
  copy->TakePosition(100);
  EXPECT_EQ(copy->rows(1), 101u);
  copy->TakePosition(105);  // of no plan that follows: what is between is missed
  EXPECT_EQ(copy->rows(1), 101u);
}

TEST_P(SequenceCopiesTest, RowsAboveARestartAreCopiedAnew) {
  CachedSequence& sequence = Open(1);
  AppendAll(sequence, 100);
  const auto copy = copies_->Complete(sequence, nullptr).value();
  ASSERT_THAT(sequence.kv.Truncate(70), IsOkStatus());
  copies_->Truncate(1, 70);
  EXPECT_EQ(copy->rows(0), 64u);  // a block's begin: bounds of pages are built from there
  AppendAll(sequence, 50);
  ExpectCopied(sequence, *copies_->Complete(sequence, nullptr).value());
}

TEST_P(SequenceCopiesTest, RefusesWhatHasNoRoomUntilACopyIsLetGo) {
  const uint64_t free = copies_->kv().free_blocks();
  auto held = copies_->Complete(Open(1), nullptr).value();
  ASSERT_THAT(copies_->Complete(Open(2), nullptr).status(), IsOkStatus());
  EXPECT_THAT(copies_->Complete(Open(3), nullptr).status(),
              FailsWith(absl::StatusCode::kResourceExhausted, testing::HasSubstr("no room")));
  copies_->Forget(2);
  copies_->Forget(1);
  EXPECT_LT(copies_->kv().free_blocks(), free);  // a plan of it is under way
  held.reset();
  EXPECT_EQ(copies_->kv().free_blocks(), free);
}

// What is full first is the GPU's memory, and what is given back there is taken first again.
TEST_P(SequenceCopiesTest, TakesHostMemoryForWhatTheGpuHasNoRoomFor) {
  const auto use = [&] { return copies_->kv().block_use(); };
  const uint64_t each = copies_->kv().shape().BlocksOf(kMaxPositions);
  const uint64_t on_device = 2 * each / 4 * GetParam().device, in_dram = 2 * each / 4 * GetParam().host;
  ASSERT_EQ(use().device, on_device);
  ASSERT_EQ(use().dram, in_dram);
  for (uint64_t id = 1; id <= 2; ++id) {
    CachedSequence& sequence = Open(id);
    AppendAll(sequence, 600);
    ExpectCopied(sequence, *copies_->Complete(sequence, nullptr).value());
    EXPECT_EQ(use().device_used, std::min(id * each, on_device));
    EXPECT_EQ(use().dram_used, id * each - use().device_used);
  }
  copies_->Forget(1);
  EXPECT_EQ(use().device_used + use().dram_used, each);
  CachedSequence& third = Open(3);
  AppendAll(third, 600);
  ExpectCopied(third, *copies_->Complete(third, nullptr).value());
  EXPECT_EQ(use().device_used, on_device);
}

// It has fewer lists than the peer link's plans go through.
TEST_P(SequenceCopiesTest, TakesNoShards) {
  CachedSequence& shard = **store_.Open(1, {.sequence_id = 1,
                                            .spec = Spec(),
                                            .max_positions = kMaxPositions,
                                            .prompt_tokens = 500,
                                            .shard = CutIntoShards(kLayout, 4).value()[3]});
  const std::vector<std::byte> rows(100 * kLayout.row_bytes());
  ASSERT_THAT(shard.kv.Append(0, 0, 100, rows.data()), IsOkStatus());
  EXPECT_TRUE(copies_->Advance(shard)) << "nothing to do";
  EXPECT_FALSE(copies_->Complete(shard, nullptr).ok());
}

TEST_P(SequenceCopiesTest, TakesSequencesOfItsSelectionAlone) {
  SelectionSpec other = Spec();
  other.budget_tokens = 32;
  CachedSequence& sequence =
      **store_.Open(1, {.sequence_id = 9, .spec = other, .max_positions = kMaxPositions, .prompt_tokens = 10});
  EXPECT_TRUE(copies_->Advance(sequence));
  EXPECT_FALSE(copies_->Complete(sequence, nullptr).ok());
}

}  // namespace
}  // namespace winnow
