#include <gtest/gtest.h>

#include <cstring>

#include "tests/cache_rank/store/gather_rows.h"
#include "tests/cache_rank/store/sequence_store_fixture.h"

namespace winnow {
namespace {

// Threads share out what one does otherwise, at any position.
TEST_F(SequenceStoreTest, ATeamStoresWhatOneThreadDoes) {
  const std::unique_ptr<Executor> team = kernels_->new_executor(3);
  CachedSequence* sequence = Open(1, 600).value();
  uint32_t position = 0;
  for (const uint32_t count : {65u, 3u, 200u, 64u, 31u, 129u}) {
    for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
      const std::vector<float> rows = Rows(7, layer, position, count);
      const auto* bytes = reinterpret_cast<const std::byte*>(rows.data());
      ASSERT_TRUE(sequence->kv.Append(layer, position, count, bytes, team.get()).ok());
    }
    position += count;
    EXPECT_EQ(sequence->kv.watermark(), position);
    ExpectRows(sequence->kv, 7, 0, position);
  }
  const std::vector<float> rows = Rows(7, 0, position, 300);
  const auto* bytes = reinterpret_cast<const std::byte*>(rows.data());
  EXPECT_FALSE(sequence->kv.Append(0, position, 300, bytes, team.get()).ok()) << "more than was reserved";
}

TEST_F(SequenceStoreTest, ATeamCopiesALayersRowsHeadByHead) {
  const std::unique_ptr<Executor> team = kernels_->new_executor(3);
  CachedSequence* sequence = Open(1, 600).value();
  constexpr uint32_t kRows = 500;
  for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
    const std::vector<float> rows = Rows(7, layer, 0, kRows);
    ASSERT_TRUE(sequence->kv.Append(layer, 0, kRows, reinterpret_cast<const std::byte*>(rows.data())).ok());
  }
  for (const auto& [first, count] : {std::pair{0u, 500u}, {17u, 400u}, {499u, 1u}, {3u, 64u}, {64u, 63u}}) {
    for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
      std::vector<float> copied(shape_.layout.num_kv_heads * count * shape_.layout.row_bytes() / sizeof(float), -1);
      sequence->kv.CopyLayerRows(layer, first, count, reinterpret_cast<std::byte*>(copied.data()), team.get());
      EXPECT_EQ(copied, Rows(7, layer, first, count)) << "layer " << layer << ", from " << first << ", " << count;
    }
  }
}

TEST_F(SequenceStoreTest, ATeamGathersScatteredRowsInTheirOrder) {
  const std::unique_ptr<Executor> team = kernels_->new_executor(3);
  CachedSequence* sequence = Open(1, 600).value();
  constexpr uint32_t kRows = 500;
  const std::vector<float> rows = Rows(7, 1, 0, kRows);
  ASSERT_TRUE(sequence->kv.Append(1, 0, kRows, reinterpret_cast<const std::byte*>(rows.data())).ok());
  const size_t row_floats = shape_.layout.row_bytes() / sizeof(float);
  for (const uint32_t stride : {1u, 3u, 7u, 499u}) {
    std::vector<uint32_t> positions;
    for (uint32_t p = stride % 5; p < kRows; p += stride) positions.push_back(p);
    for (int head = 0; head < shape_.layout.num_kv_heads; ++head) {
      std::vector<float> gathered(positions.size() * row_floats, -1), expected;
      for (const uint32_t p : positions) {
        const auto row = rows.begin() + (size_t{kRows} * head + p) * row_floats;
        expected.insert(expected.end(), row, row + row_floats);
      }
      test::GatherRows(sequence->kv, 1, head, positions, reinterpret_cast<std::byte*>(gathered.data()), team.get());
      EXPECT_EQ(gathered, expected) << "head " << head << ", every " << stride;
    }
  }
}

TEST_F(SequenceStoreTest, ATeamGathersRowsOfSeveralListsAtOnce) {
  const std::unique_ptr<Executor> team = kernels_->new_executor(3);
  constexpr uint32_t kRows = 300;
  CachedSequence* const sequences[] = {Open(1, 400).value(), Open(2, 400).value()};
  for (CachedSequence* sequence : sequences) {
    for (const int layer : {0, 1}) {
      const std::vector<float> rows = Rows(sequence->id, layer, 0, kRows);
      ASSERT_TRUE(sequence->kv.Append(layer, 0, kRows, reinterpret_cast<const std::byte*>(rows.data())).ok());
    }
  }
  const size_t row_bytes = shape_.layout.row_bytes();
  // More than a part, a part and one row, none, one.
  std::vector<std::vector<uint32_t>> positions(4);
  for (uint32_t p = 1; p < kRows; p += 3) positions[0].push_back(p);
  for (uint32_t p = 0; p < 33; ++p) positions[1].push_back(7 * p);
  positions[3] = {299};
  std::vector<WantedRows> wanted;
  std::vector<std::byte> expected;
  for (const CachedSequence* sequence : sequences) {
    for (size_t i = 0; i < positions.size(); ++i) {
      wanted.push_back({.kv = &sequence->kv, .layer = static_cast<int>(i % 2), .head = 1, .positions = positions[i]});
      for (const uint32_t p : positions[i]) {
        expected.resize(expected.size() + row_bytes);
        sequence->kv.CopyRows(static_cast<int>(i % 2), 1, p, 1, expected.data() + expected.size() - row_bytes);
      }
    }
  }
  std::vector<std::byte> gathered(expected.size());
  std::byte* out = gathered.data();
  for (WantedRows& of_list : wanted) out = (of_list.out = out) + of_list.positions.size() * row_bytes;
  SequenceKv::GatherRows(wanted, team.get());
  EXPECT_EQ(gathered, expected);
}

TEST_F(SequenceStoreTest, ATeamIndexesPagesAndQuantisedKeysAlike) {
  for (const IndexLayout& index : {IndexLayout{.page_tokens = 16, .scores_keys = true},
                                   IndexLayout{.page_tokens = 64, .cuboid = true, .key_dtype = Dtype::kI8}}) {
    Restart(400);  // what no page has been written to is zero
    const std::unique_ptr<Executor> team = kernels_->new_executor(2);
    SequenceKv alone = SequenceKv::Create(pool_.get(), kernels_, shape_.layout, 300, index).value();
    SequenceKv together = SequenceKv::Create(pool_.get(), kernels_, shape_.layout, 300, index).value();
    uint32_t position = 0;
    for (const uint32_t count : {100u, 70u, 90u}) {
      const std::vector<float> rows = Rows(9, 0, position, count);
      const auto* bytes = reinterpret_cast<const std::byte*>(rows.data());
      ASSERT_TRUE(alone.Append(0, position, count, bytes).ok());
      ASSERT_TRUE(together.Append(0, position, count, bytes, team.get()).ok());
      position += count;
    }
    EXPECT_EQ(together.rows(0), position);
    EXPECT_EQ(together.blocks(), alone.blocks());
    const size_t tile_bytes = IndexTileBytes(shape_.layout.head_dim, index.key_dtype.value_or(shape_.layout.dtype));
    const size_t page_bytes =
        IndexTileBytes(2 * shape_.layout.head_dim, index.page_dtype().value_or(shape_.layout.dtype));
    for (int head = 0; head < shape_.layout.num_kv_heads; ++head) {
      const HeadIndex a = alone.index(0, head), b = together.index(0, head);
      for (size_t block = 0; block < BlockList::BlocksFor(position); ++block) {
        EXPECT_EQ(std::memcmp(a.keys[block], b.keys[block], tile_bytes), 0) << "head " << head << ", block " << block;
      }
      for (size_t block = 0; block < BlockList::BlocksFor(CompletePages(index, position)); ++block) {
        EXPECT_EQ(std::memcmp(a.bounds[block], b.bounds[block], page_bytes), 0) << "head " << head;
        if (!index.cuboid) continue;
        EXPECT_EQ(std::memcmp(a.cuboids[block], b.cuboids[block], page_bytes), 0) << "head " << head;
      }
    }
  }
}

// Between the layers of a step, where heads and threads are many.
TEST_F(SequenceStoreTest, ALayersRowIsThatOfOneThreadWhereThreadsShareItOut) {
  const IndexLayout index{.page_tokens = 16, .key_dtype = Dtype::kI8, .scores_keys = true};
  KvLayout layout = shape_.layout;
  layout.num_kv_heads = 8;
  const auto pool = KvBlockPool::Create(200 * BlockBytes(layout), layout).value();
  SequenceKv alone = SequenceKv::Create(pool.get(), kernels_, layout, 70, index).value();
  SequenceKv together = SequenceKv::Create(pool.get(), kernels_, layout, 70, index).value();
  const std::unique_ptr<Executor> team = kernels_->new_executor(8);
  std::vector<float> rows(size_t{8} * 2 * layout.head_dim);
  const auto* bytes = reinterpret_cast<const std::byte*>(rows.data());
  for (uint32_t position = 0; position < 70; ++position) {
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = test::Noise(3, 0, position, static_cast<int>(i));
    ASSERT_TRUE(alone.Append(0, position, 1, bytes).ok());
    ASSERT_TRUE(together.Append(0, position, 1, bytes, team.get()).ok());
  }
  EXPECT_EQ(together.rows(0), 70u);
  std::vector<std::byte> a(70 * layout.row_bytes()), b(a.size());
  for (int head = 0; head < layout.num_kv_heads; ++head) {
    alone.CopyRows(0, head, 0, 70, a.data());
    together.CopyRows(0, head, 0, 70, b.data());
    EXPECT_EQ(a, b) << "head " << head;
    const HeadIndex of_one = alone.index(0, head), of_team = together.index(0, head);
    const size_t tile_bytes = IndexTileBytes(layout.head_dim, Dtype::kI8);
    for (size_t block = 0; block < BlockList::BlocksFor(70); ++block) {
      EXPECT_EQ(std::memcmp(of_one.keys[block], of_team.keys[block], tile_bytes), 0) << "head " << head;
    }
  }
}

}  // namespace
}  // namespace winnow
