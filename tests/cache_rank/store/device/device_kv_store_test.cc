#include "cache_rank/store/device/device_kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "cache_rank/select/device/device_plan.h"
#include "common/selection/presets.h"
#include "tests/support/host_gpu/host_device.h"
#include "tests/support/host_gpu/host_table.h"
#include "tests/support/status_matchers.h"

namespace winnow {
namespace {

using testing::HasSubstr;

constexpr KvLayout kLayout = {
    .num_layers = 2, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 64, .dtype = Dtype::kBf16};

SelectionSpec Spec() {
  SelectionSpec spec = FindPreset("winnow").value();
  spec.budget_tokens = 128;
  return spec;
}

class DeviceKvStoreTest : public testing::Test {
 protected:
  DeviceKvStoreTest() : shape_(DeviceKvShapeFor(Spec(), kLayout, 3, 1000, 1500)) {
    store_ = DeviceKvStore::Create(&table_, device_.get(), shape_).value();
  }
  // The blocks of a list, as kernels find them.
  std::set<uint32_t> Blocks(uint32_t sequence, size_t list, uint32_t positions) const {
    const uint32_t* table = store_->blocks() + store_->FirstBlock(sequence, list);
    return {table, table + (positions + kBlockTokens - 1) / kBlockTokens};
  }

  const device::DeviceTable table_;
  const std::unique_ptr<device::Device> device_ = test::OpenHostDevice(0).value();
  const DeviceKvShape shape_;
  std::unique_ptr<DeviceKvStore> store_;
};

TEST_F(DeviceKvStoreTest, ListsShareNoBlock) {
  const uint32_t a = store_->Open(700, nullptr).value(), b = store_->Open(300, nullptr).value();
  std::set<uint32_t> all;
  for (size_t list = 0; list < kLayout.num_lists(); ++list) {
    all.merge(Blocks(a, list, 700));
    all.merge(Blocks(b, list, 300));
  }
  EXPECT_EQ(all.size(), (22 + 10) * kLayout.num_lists());
  EXPECT_LT(*all.rbegin(), shape_.num_blocks);
  EXPECT_EQ(store_->free_blocks(), shape_.num_blocks - all.size());
}

TEST_F(DeviceKvStoreTest, RowsInPlaceTakeTheirBlocksFromTheInferenceRank) {
  DeviceKvShape shape = DeviceKvShapeFor(Spec(), kLayout, 2, 100, 200, RowTier::kInPlace);
  shape.num_blocks = 1000;
  std::vector<std::byte> slots(64);
  const auto store = DeviceKvStore::Create(&table_, device_.get(), shape, slots.data()).value();
  EXPECT_EQ(store->row_pool(), slots.data());
  std::vector<uint32_t> blocks(4 * kLayout.num_lists());
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint32_t>(999 - 7 * i);
  constexpr uint32_t sequence = 1;
  ASSERT_THAT(store->OpenAt(sequence, 100, blocks, store->shape().own_index(), nullptr), IsOkStatus());
  for (size_t list = 0; list < kLayout.num_lists(); ++list) {
    const uint32_t* table = store->blocks() + store->FirstBlock(sequence, list);
    EXPECT_TRUE(std::equal(table, table + 4, blocks.begin() + static_cast<int64_t>(4 * list))) << list;
  }
  store->Release(sequence);
  EXPECT_THAT(store->OpenAt(sequence, 100, blocks, store->shape().own_index(), nullptr), IsOkStatus());
}

// Whether rows come together or one by one, in a sequence of their own or with blocks of another.
TEST_F(DeviceKvStoreTest, BoundsOfGroupsAreThoseOfAllTheirRows) {
  constexpr uint32_t kRows = 600, kGroups = 2, kFeatures = 2 * 64;
  SelectionSpec spec = Spec();
  spec.min_candidate_tokens = 0;
  spec.group_candidate_tokens = 1;
  DeviceKvShape shape = DeviceKvShapeFor(spec, kLayout, 2, 1000, 2000);
  ASSERT_TRUE(shape.page_groups);
  const auto store = DeviceKvStore::Create(&test::HostGpuTable(), device_.get(), shape).value();
  const uint32_t sequence = store->Open(1000, nullptr).value();
  std::mt19937 random(1);
  std::vector<uint16_t> rows(size_t{2} * kRows * kFeatures);  // of both kv heads, of one sign and size
  for (uint16_t& element : rows) element = static_cast<uint16_t>(0x3f00 + random() % 0x100);
  const auto part = [&](uint32_t first, uint32_t count) {
    std::vector<uint16_t> out;
    for (size_t head = 0; head < 2; ++head) {
      const auto begin = rows.begin() + static_cast<int64_t>((head * kRows + first) * kFeatures);
      out.insert(out.end(), begin, begin + int64_t{count} * kFeatures);
    }
    return out;
  };
  ASSERT_THAT(store->AppendRange(sequence, 1, 0, 300, part(0, 300).data(), nullptr), IsOkStatus());
  ASSERT_THAT(store->AppendRange(sequence, 1, 300, 200, part(300, 200).data(), nullptr), IsOkStatus());
  for (uint32_t row = 500; row < kRows; ++row) {
    ASSERT_THAT(store->AppendRange(sequence, 1, row, 1, part(row, 1).data(), nullptr), IsOkStatus());
  }
  const auto bounds_of = [&](size_t head) {
    const size_t first = store->FirstBlock(sequence, kLayout.list(1, static_cast<int>(head))) / device::GroupBlocks(16);
    const auto* const bounds = static_cast<const uint16_t*>(store->pages().group_bounds) + first * kFeatures;
    return std::vector<uint16_t>(bounds, bounds + kGroups * kFeatures);
  };
  std::vector<std::vector<uint16_t>> expected;
  for (size_t head = 0; head < 2; ++head) {
    std::vector<uint16_t>& of_head = expected.emplace_back();
    for (uint32_t group = 0; group < kGroups; ++group) {
      std::vector<uint16_t> most(64, 0), least(64, 0xffff);
      for (uint32_t row = group * 256; row < (group + 1) * 256; ++row) {
        for (size_t d = 0; d < 64; ++d) {
          const uint16_t element = rows[(head * kRows + row) * kFeatures + d];
          most[d] = std::max(most[d], element);
          least[d] = std::min(least[d], element);
        }
      }
      of_head.insert(of_head.end(), most.begin(), most.end());
      of_head.insert(of_head.end(), least.begin(), least.end());
    }
    EXPECT_EQ(bounds_of(head), of_head) << head;
  }
  auto* const of_head = static_cast<uint16_t*>(const_cast<void*>(store->pages().group_bounds)) +
                        store->FirstBlock(sequence, kLayout.list(1, 0)) / device::GroupBlocks(16) * kFeatures;
  std::fill_n(of_head, kGroups * kFeatures, 0);
  store->BoundGroups(sequence, 1, kRows, nullptr);
  EXPECT_EQ(bounds_of(0), expected[0]);
}

TEST_F(DeviceKvStoreTest, GroupsAreKeptWhereContextsMayLeaveSomeOut) {
  SelectionSpec spec = FindPreset("winnow").value();
  const auto bytes_of = [&](uint32_t max_positions) {
    return BytesOf(DeviceKvShapeFor(spec, kLayout, 3, max_positions, 1000)).group_bounds;
  };
  EXPECT_EQ(bytes_of(131072), 0u) << "all of them stay";
  spec.group_candidate_tokens = 65536;
  EXPECT_EQ(bytes_of(65536), 0u);
  // 512 groups of 256 rows of each list, of each 64 greatest and least elements, and 15 behind the last.
  EXPECT_EQ(bytes_of(131072), (size_t{3} * kLayout.num_lists() * 512 + 15) * 256);
}

TEST_F(DeviceKvStoreTest, KeysThatNothingMayReadNeedACopy) {
  SelectionSpec spec = Spec();
  spec.key_copy = KeyCopy::kNone;
  DeviceKvShape shape = DeviceKvShapeFor(spec, kLayout, 2, 100, 200, RowTier::kInPlace);
  EXPECT_THAT(DeviceKvStore::Create(&table_, device_.get(), shape),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("key_copy")));
  shape.scores_keys = false;  // pages alone
  EXPECT_THAT(DeviceKvStore::Create(&table_, device_.get(), shape), IsOkStatus());
}

TEST_F(DeviceKvStoreTest, ReleasedBlocksAreGivenAgain) {
  const uint32_t a = store_->Open(1000, nullptr).value();
  EXPECT_THAT(store_->Open(1000, nullptr), FailsWith(absl::StatusCode::kResourceExhausted, HasSubstr("are free")));
  store_->Release(a);
  EXPECT_EQ(store_->free_blocks(), shape_.num_blocks);
  EXPECT_THAT(store_->Open(1000, nullptr), IsOkStatus());
}

TEST_F(DeviceKvStoreTest, RowsThatAreSentAreOfContextsOfLessThanAMillion) {
  DeviceKvShape shape = DeviceKvShapeFor(Spec(), kLayout, 1, 1 << 20, 1000);
  EXPECT_THAT(DeviceKvStore::Create(&table_, device_.get(), shape),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("at most 786432")));
  shape.pool_slots = 0;
  EXPECT_THAT(DeviceKvStore::Create(&table_, device_.get(), shape), IsOkStatus());
}

TEST_F(DeviceKvStoreTest, RefusesWhatWasNotPlannedFor) {
  EXPECT_THAT(store_->Open(1001, nullptr), FailsWith(absl::StatusCode::kOutOfRange, HasSubstr("1000")));
  for (int i = 0; i < 3; ++i) ASSERT_THAT(store_->Open(10, nullptr), IsOkStatus());
  EXPECT_THAT(store_->Open(10, nullptr), FailsWith(absl::StatusCode::kResourceExhausted, HasSubstr("all 3 sequences")));
}

TEST_F(DeviceKvStoreTest, ANewSequenceIsResidentNowhere) {
  const uint32_t first = store_->Open(100, nullptr).value();
  for (size_t list = 0; list < kLayout.num_lists(); ++list) {
    const device::ResidencyList residency = store_->Residency(first, list);
    for (uint32_t i = 0; i < residency.pool_slots; ++i) ASSERT_EQ(residency.position_of[i], ~0u);
    residency.position_of[3] = 7;
  }
  store_->ForgetResidency(first, nullptr);
  EXPECT_EQ(store_->Residency(first, 3).position_of[3], ~0u);
}

TEST_F(DeviceKvStoreTest, RowsInDramNeedAKeyCopy) {
  DeviceKvShape shape = shape_;
  shape.rows = RowTier::kPinnedHost;
  EXPECT_THAT(DeviceKvStore::Create(&table_, device_.get(), shape), IsOkStatus());
  shape.key_copy = false;
  EXPECT_THAT(DeviceKvStore::Create(&table_, device_.get(), shape),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("key_copy")));
}

TEST_F(DeviceKvStoreTest, APlansRowsNameTheirSequences) {
  const uint32_t a = store_->Open(200, nullptr).value(), b = store_->Open(300, nullptr).value();
  const auto plan = DevicePlan::Create(&table_, device_.get(), store_.get(), Spec(), 4).value();
  const std::vector<uint32_t> bases = {4, 5, 6, 7};
  plan->SetRow(0, b, 150, {.slot_pool = nullptr, .pool_bases = bases});
  plan->SetRow(2, a, 99, {.slot_pool = nullptr, .pool_bases = bases});
  plan->Upload(nullptr);
  EXPECT_EQ(plan->num_rows(), 3);
  EXPECT_EQ(plan->greatest_position(), 150u);
  EXPECT_EQ(plan->sequences()[2], a);
  const device::SelectionList& list = plan->lists(1)[2 * 2 + 1];
  EXPECT_EQ(list.first_block, store_->FirstBlock(a, kLayout.list(1, 1)));
  EXPECT_EQ(list.query, 5u);
  EXPECT_EQ(list.first, 4u);
  EXPECT_EQ(list.budget, 128u);
  EXPECT_EQ(plan->targets(1)[1].pool_base, 7u);
  EXPECT_EQ(plan->residency(0)[1].position_of, store_->Residency(b, 1).position_of);
}

TEST_F(DeviceKvStoreTest, APlanStopsAtTheEndOfASequence) {
  const uint32_t a = store_->Open(200, nullptr).value();
  const auto plan = DevicePlan::Create(&table_, device_.get(), store_.get(), Spec(), 4).value();
  const std::vector<uint32_t> bases(4);
  plan->SetRow(0, a, 199, {.slot_pool = nullptr, .pool_bases = bases});
  EXPECT_THAT(plan->CheckPositions(), IsOkStatus());
  plan->Advance();
  EXPECT_THAT(plan->CheckPositions(), FailsWith(absl::StatusCode::kOutOfRange, HasSubstr("ends at 200")));
  plan->Leave(0);
  EXPECT_THAT(plan->CheckPositions(), IsOkStatus());
  EXPECT_EQ(plan->num_rows(), 0);
}

}  // namespace
}  // namespace winnow
