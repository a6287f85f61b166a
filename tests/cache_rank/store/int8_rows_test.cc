// Rows of int8 in a cache rank's blocks: there is no second copy of their keys but beside a slower tier, and what finds
// and reads them sees what was written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "cache_rank/select/scorer/token_scorer.h"
#include "cache_rank/store/kv_room.h"
#include "cache_rank/store/sequence_kv.h"
#include "common/selection/presets.h"
#include "tests/cache_rank/store/gather_rows.h"

namespace winnow {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 2, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 16, .dtype = Dtype::kI8};
constexpr int kDim = kLayout.head_dim;

class Int8StoreTest : public testing::TestWithParam<bool> {
 protected:
  Int8StoreTest() : executor_(kernels_->new_executor(2)) {
    std::unique_ptr<RowTiers> tiers;
    if (GetParam()) {
      tiers = RowTiers::Create({.fast = {.memory_bytes = size_t{1} << 20}}, kLayout, kernels_, executor_.get()).value();
    }
    pool_ = KvBlockPool::Create(size_t{4} << 20, kLayout, std::move(tiers)).value();
  }

  SequenceKv Make(const SelectionSpec& spec, uint32_t positions) {
    return SequenceKv::Create(pool_.get(), kernels_, kLayout, positions, IndexLayoutFor(spec, kLayout.dtype)).value();
  }
  // Rows of all kv heads of a layer: codes, and scales behind them.
  std::vector<std::byte> Rows(uint32_t count) {
    std::uniform_int_distribution<int> code(-127, 127);
    std::uniform_real_distribution<float> scale(0.001f, 0.1f);
    std::vector<std::byte> rows(kLayout.num_kv_heads * count * kLayout.row_bytes());
    for (size_t row = 0; row < rows.size(); row += kLayout.row_bytes()) {
      for (int i = 0; i < 2 * kDim; ++i) rows[row + i] = static_cast<std::byte>(code(random_));
      for (int i = 0; i < 2; ++i) {
        const float s = scale(random_);
        std::memcpy(&rows[row + 2 * kDim + 4 * i], &s, 4);
      }
    }
    return rows;
  }
  // Appends rows to all layers in parts, and keeps them.
  void Fill(SequenceKv& kv, uint32_t count) {
    for (uint32_t first = kv.rows(0); first < count;) {
      const uint32_t n = std::min<uint32_t>(1 + random_() % 70, count - first);
      const std::vector<std::byte> rows = Rows(n);
      for (int layer = 0; layer < kLayout.num_layers; ++layer) {
        ASSERT_TRUE(kv.Append(layer, first, n, rows.data(), executor_.get()).ok());
      }
      for (int head = 0; head < kLayout.num_kv_heads; ++head) {
        const auto from = rows.begin() + head * n * kLayout.row_bytes();
        written_[head].insert(written_[head].end(), from, from + n * kLayout.row_bytes());
      }
      first += n;
    }
  }
  const std::byte* Written(int head, uint32_t position) const {
    return &written_[head][position * kLayout.row_bytes()];
  }
  float Key(int head, uint32_t position, int d) const {
    float scale;
    std::memcpy(&scale, Written(head, position) + 2 * kDim, 4);
    return static_cast<float>(static_cast<int8_t>(Written(head, position)[d])) * scale;
  }

  const KernelTable* const kernels_ = CpuKernels().value();
  const std::unique_ptr<Executor> executor_;
  std::unique_ptr<KvBlockPool> pool_;
  std::mt19937 random_{7};
  std::vector<std::byte> written_[kLayout.num_kv_heads];
};
INSTANTIATE_TEST_SUITE_P(OneTierOrTwo, Int8StoreTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Two" : "One"; });

TEST(Int8Blocks, HoldTheRowsAlone) {
  const KvLayout large{
      .num_layers = 40, .num_query_heads = 40, .num_kv_heads = 8, .head_dim = 128, .dtype = Dtype::kI8};
  EXPECT_EQ(BlockBytes(large), 32 * 264u);
  // A page's summary in 8 bits fits the place of rows.
  EXPECT_LE(IndexTileBytes(2 * large.head_dim, Dtype::kI8), BlockBytes(large));
  // What a token takes of 32k, with the checksums of its rows.
  const uint32_t positions = 32768;
  const KvRoom room = RoomFor(large, *FindPreset("winnow"), positions, size_t{1} << 40, 0).value();
  const double token_bytes = static_cast<double>(room.demand.blocks * room.block_bytes) / positions;
  EXPECT_LE(token_bytes + large.num_lists() * sizeof(uint32_t), 92'000);
}

TEST_P(Int8StoreTest, GiveBackWhatWasWrittenAlsoToForksAndAfterATruncation) {
  SequenceKv kv = Make(*FindPreset("winnow"), 700);
  Fill(kv, 500);
  SequenceKv fork = kv.Fork(700).value();
  ASSERT_TRUE(kv.Truncate(300).ok());
  std::vector<uint32_t> some;
  for (uint32_t p = random_() % 9; p < 500; p += 1 + random_() % 40) some.push_back(p);
  for (int head = 0; head < kLayout.num_kv_heads; ++head) {
    std::vector<std::byte> copied(500 * kLayout.row_bytes()), gathered(some.size() * kLayout.row_bytes());
    fork.CopyRows(1, head, 0, 500, copied.data());
    EXPECT_EQ(copied, written_[head]);
    test::GatherRows(fork, 1, head, some, gathered.data());
    for (size_t i = 0; i < some.size(); ++i) {
      EXPECT_EQ(std::memcmp(&gathered[i * kLayout.row_bytes()], Written(head, some[i]), kLayout.row_bytes()), 0);
    }
    copied.resize(300 * kLayout.row_bytes());
    kv.CopyRows(1, head, 0, 300, copied.data());
    EXPECT_EQ(std::memcmp(copied.data(), written_[head].data(), copied.size()), 0);
  }
  EXPECT_FALSE(kv.is_damaged() || fork.is_damaged());
}

// Queries are rounded to steps of a 127th of their largest element; keys are as they are.
TEST_P(Int8StoreTest, KeysAreScoredAsTheyAre) {
  SelectionSpec spec = *FindPreset("winnow");
  spec.key_copy = KeyCopy::kNone;  // makes no difference
  SequenceKv kv = Make(spec, 400);
  Fill(kv, 333);
  std::normal_distribution<float> normal;
  std::vector<float> query(kDim);
  for (float& x : query) x = normal(random_);
  float largest = 0;
  for (const float x : query) largest = std::max(largest, std::fabs(x));
  for (int head = 0; head < kLayout.num_kv_heads; ++head) {
    const HeadIndex index = kv.index(0, head);
    EXPECT_EQ(index.dtype, Dtype::kI8);
    EXPECT_EQ(index.keys_in_rows, !GetParam()) << "beside a slower tier keys have a copy in the fast one";
    ScratchBuffer<float> buffer;
    const Scores scores = ScoreKeys(*kernels_, index.Keys(333, kDim), query.data(), 1, {0.25f}, buffer);
    for (uint32_t p = 0; p < 333; ++p) {
      double exact = 0, sum = 0;
      for (int d = 0; d < kDim; ++d) {
        exact += 0.25 * query[d] * Key(head, p, d);
        sum += std::fabs(Key(head, p, d));
      }
      ASSERT_NEAR(scores.row(0)[p], exact, 0.25 * (largest / 127 / 2) * sum * 1.001) << "position " << p;
    }
  }
}

TEST_P(Int8StoreTest, PagesBoundTheirKeys) {
  for (const char* preset : {"quest", "winnow"}) {
    const SelectionSpec spec = *FindPreset(preset);
    SequenceKv kv = Make(spec, 400);
    for (std::vector<std::byte>& of_head : written_) of_head.clear();
    Fill(kv, 333);
    for (int head = 0; head < kLayout.num_kv_heads; ++head) {
      const HeadIndex index = kv.index(1, head);
      ASSERT_EQ(index.page_dtype, Dtype::kI8);
      for (uint32_t page = 0; page < 333 / spec.page_tokens; ++page) {
        const auto* tile = static_cast<const std::byte*>(index.bounds[page / kBlockTokens]);
        const uint32_t slot = page % kBlockTokens;
        const auto element = [&](int d) {
          float scale;
          std::memcpy(&scale, tile + 2 * kDim * kBlockTokens + slot * 4, 4);
          return static_cast<float>(static_cast<int8_t>(tile[(d / 4 * kBlockTokens + slot) * 4 + d % 4])) * scale;
        };
        for (int d = 0; d < kDim; ++d) {
          float most = -INFINITY, least = INFINITY;
          for (uint32_t p = page * spec.page_tokens; p < (page + 1) * spec.page_tokens; ++p) {
            most = std::max(most, Key(head, p, d));
            least = std::min(least, Key(head, p, d));
          }
          EXPECT_GE(element(d), most);
          EXPECT_LE(element(kDim + d), least);
          EXPECT_LE(element(d), most + 0.1 * 127 / 100) << "at most a step wider";
          EXPECT_GE(element(kDim + d), least - 0.1 * 127 / 100);
        }
      }
    }
  }
}

TEST_P(Int8StoreTest, ADamagedRowIsFoundAndIndexIsMended) {
  SequenceKv kv = Make(*FindPreset("winnow"), 100);
  Fill(kv, 96);
  std::vector<std::byte> scratch;
  for (size_t list = 0; list < kLayout.num_lists(); ++list) {
    for (size_t b = 0; b < kv.index_blocks(list); ++b) EXPECT_FALSE(kv.MendIndex(list, b, scratch).differed);
  }
  kv.SettleRows(0);
  auto* const rows = static_cast<std::byte*>(const_cast<void*>(kv.row_blocks(0, 1)[2]));
  rows[5 * kLayout.row_bytes() + 3] ^= std::byte{1};
  EXPECT_FALSE(kv.CheckRows(0, 1, 64, 96));
  ASSERT_TRUE(kv.damage().has_value());
  EXPECT_EQ(kv.damage()->position, 69u);
}

}  // namespace
}  // namespace winnow
