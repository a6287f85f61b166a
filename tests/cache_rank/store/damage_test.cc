// Memory fails: bits of stored rows and of their index change, and every change is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "cache_rank/store/scrubber.h"
#include "cache_rank/store/sequence_store.h"
#include "kernels/params/keys.h"
#include "tests/cache_rank/reference.h"
#include "tests/cache_rank/store/gather_rows.h"

namespace winnow {
namespace {

using std::chrono::seconds;

constexpr uint32_t kRows = 200;

class DamageTest : public testing::Test {
 protected:
  DamageTest()
      : layout_(test::SmallShape(2).layout),
        kernels_(CpuKernels("portable").value()),
        executor_(kernels_->new_executor(2)) {
    Start(0);
  }
  ~DamageTest() override { store_.reset(); }

  // With a fast tier of so many bytes; 0: one tier.
  void Start(size_t fast_bytes, size_t blocks = 1000) {
    store_.reset();
    std::unique_ptr<RowTiers> tiers;
    if (fast_bytes > 0) {
      RowTiers::Options options;
      options.fast.memory_bytes = fast_bytes;
      tiers = RowTiers::Create(options, layout_, kernels_, executor_.get()).value();
    }
    pool_ = KvBlockPool::Create(blocks * BlockBytes(layout_), layout_, std::move(tiers)).value();
    store_ =
        std::make_unique<SequenceStore>(pool_.get(), kernels_, layout_, seconds(60), /*max_idle_prefix_blocks=*/1000);
  }
  CachedSequence& Open(uint64_t id, const SelectionSpec& spec, std::vector<uint32_t> prompt = {}) {
    const auto prompt_tokens = static_cast<uint32_t>(prompt.size());
    return **store_->Open(1, {.sequence_id = id,
                              .spec = spec,
                              .max_positions = kRows,
                              .prompt_tokens = prompt_tokens,
                              .prompt_token_ids = std::move(prompt)});
  }
  void Append(SequenceKv& kv, uint32_t first, uint32_t count) {
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      std::vector<float> rows;
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        for (uint32_t p = first; p < first + count; ++p) {
          for (int d = 0; d < 2 * layout_.head_dim; ++d)
            rows.push_back(test::Noise(7, layout_.list(layer, head), p, d));
        }
      }
      ASSERT_TRUE(
          kv.Append(layer, first, count, reinterpret_cast<const std::byte*>(rows.data()), executor_.get()).ok());
    }
  }
  CachedSequence& Filled(uint64_t id, const SelectionSpec& spec, std::vector<uint32_t> prompt = {}) {
    CachedSequence& sequence = Open(id, spec, std::move(prompt));
    Append(sequence.kv, sequence.kv.watermark(), kRows - sequence.kv.watermark());
    return sequence;
  }
  static std::vector<uint32_t> Prompt() {
    std::vector<uint32_t> prompt(kRows);
    for (uint32_t i = 0; i < kRows; ++i) prompt[i] = 1000 + i;
    return prompt;
  }

  uint32_t Draw(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }
  std::byte* Row(const SequenceKv& kv, const DamagedRow& row) {
    const void* const block = kv.row_blocks(row.layer, row.kv_head)[row.position / kBlockTokens];
    return static_cast<std::byte*>(const_cast<void*>(block)) + row.position % kBlockTokens * layout_.row_bytes();
  }
  DamagedRow AnyRow(uint32_t end = kRows) {
    return {static_cast<int>(Draw(layout_.num_layers)), static_cast<int>(Draw(layout_.num_kv_heads)), Draw(end)};
  }
  void FlipABit(std::byte* bytes, size_t count) {
    const uint32_t bit = Draw(static_cast<uint32_t>(8 * count));
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
  }
  void FlipABitOf(const SequenceKv& kv, const DamagedRow& row) { FlipABit(Row(kv, row), layout_.row_bytes()); }

  // The ways in which rows leave a sequence, of which one reads this one.
  void Read(const SequenceKv& kv, const DamagedRow& row, int way) {
    std::vector<std::byte> out(layout_.num_kv_heads * kRows * layout_.row_bytes());
    std::vector<uint32_t> positions;
    for (uint32_t p = row.position % 3; p < kRows; p += 3) positions.push_back(p);
    switch (way) {
      case 0:
        return kv.CopyRows(row.layer, row.kv_head, row.position, 1, out.data());
      case 1:
        return kv.CopyRows(row.layer, row.kv_head, 0, kRows, out.data());
      case 2:
        return kv.CopyLayerRows(row.layer, 0, kRows, out.data(), executor_.get());
      case 3:
        return test::GatherRows(kv, row.layer, row.kv_head, positions, out.data());
      case 4:
        return test::GatherRows(kv, row.layer, row.kv_head, positions, out.data(), executor_.get());
      case 5: {
        const bool sound = kv.CheckRows(row.layer, row.kv_head, 0, kRows);
        EXPECT_EQ(sound, !kv.is_damaged());
        return;
      }
      default: {
        const bool sound = kv.CheckRows(row.layer, row.kv_head, std::span<const uint32_t>(positions));
        EXPECT_EQ(sound, !kv.is_damaged());
      }
    }
  }
  static constexpr int kWays = 7;

  void ExpectSound(const SequenceKv& kv) {
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        for (int way = 0; way < kWays; ++way) Read(kv, {layer, head, 0}, way);
      }
    }
    EXPECT_FALSE(kv.is_damaged());
  }
  void ExpectFound(const SequenceKv& kv, const DamagedRow& row) {
    const std::optional<DamagedRow> found = kv.damage();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->layer, row.layer);
    EXPECT_EQ(found->kv_head, row.kv_head);
    EXPECT_EQ(found->position, row.position);
  }
  void Pass(Scrubber& scrubber) {
    const uint64_t passes = scrubber.counts().passes;
    for (int second = 1; scrubber.counts().passes == passes && second < 100'000; ++second) {
      scrubber.Tick(std::chrono::steady_clock::time_point(seconds(second)));
      while (scrubber.counts().passes == passes && scrubber.RunOnce()) {
      }
    }
    ASSERT_EQ(scrubber.counts().passes, passes + 1);
  }

  std::mt19937 random_{5};
  const KvLayout layout_;
  const KernelTable* const kernels_;
  const std::unique_ptr<Executor> executor_;
  std::unique_ptr<KvBlockPool> pool_;
  std::unique_ptr<SequenceStore> store_;
};

TEST_F(DamageTest, EveryFlippedBitOfARowIsFoundWhenTheRowIsRead) {
  const SequenceKv& kv = Filled(1, test::SmallSpec(Predictor::kExact)).kv;
  for (int trial = 0; trial < 1000; ++trial) {
    // A reader of its own, as what was found once stays found.
    const CachedSequence& reader = **store_->Fork(1, 1, 2, kRows);
    const DamagedRow row = AnyRow();
    std::byte* const bytes = Row(reader.kv, row);
    const std::vector<std::byte> before(bytes, bytes + layout_.row_bytes());
    FlipABitOf(reader.kv, row);
    Read(reader.kv, row, trial % kWays);
    ExpectFound(reader.kv, row);
    std::copy(before.begin(), before.end(), bytes);
    ASSERT_TRUE(store_->Release(2, SequenceStore::kAnyEpoch).ok());
  }
  ExpectSound(kv);
  EXPECT_EQ(pool_->damage_count(), 1000u);
}

TEST_F(DamageTest, RowsKeepTheirChecksumsThroughTruncationForksAndSharedPrefixes) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  for (const size_t fast_bytes : {size_t{0}, size_t{1} << 20}) {
    Start(fast_bytes);
    CachedSequence& first = Filled(1, spec, Prompt());
    store_->KeepPrefix(first);
    CachedSequence& fork = **store_->Fork(1, 1, 2, kRows);
    ASSERT_TRUE(fork.kv.Truncate(77).ok());
    Append(fork.kv, 77, 3);
    Append(fork.kv, 80, 120);
    CachedSequence& again = Open(3, spec, Prompt());
    const uint32_t cached = again.kv.watermark();
    EXPECT_GT(cached, 0u);
    for (uint32_t p = cached; p < kRows; ++p) Append(again.kv, p, 1);
    for (const uint64_t id : {1, 2, 3}) ExpectSound(store_->Find(id)->kv);
  }
}

TEST_F(DamageTest, OfADamagedCopyInTheFastTierTheRowIsReadFromTheLargeOne) {
  Start(1 << 20);
  SelectionSpec pages = test::SmallSpec(Predictor::kExact);
  pages.scorer = Scorer::kPageMinmax;  // whose rows are not index
  const SequenceKv& kv = Filled(1, pages).kv;
  const DamagedRow row{1, 0, 40};
  const uint32_t block = kv.block_number(1, 0, 1);
  std::vector<std::byte> out(kRows * layout_.row_bytes());
  std::vector<uint32_t> positions;
  for (uint32_t p = 32; p < 64; ++p) positions.push_back(p);
  test::GatherRows(kv, 1, 0, positions, out.data());
  const std::vector<std::byte> before = out;
  std::byte* copy = pool_->tiers()->fast().Find(block);
  ASSERT_NE(copy, nullptr);
  FlipABit(copy + 8 * layout_.row_bytes(), layout_.row_bytes());
  test::GatherRows(kv, 1, 0, positions, out.data());
  EXPECT_FALSE(kv.is_damaged());
  EXPECT_EQ(out, before);
  EXPECT_EQ(pool_->tiers()->counts().damaged_copies, 1u);
  // The row in the large tier, of which a copy is right, is found when the copy is not there.
  FlipABitOf(kv, row);
  test::GatherRows(kv, 1, 0, positions, out.data());
  ExpectFound(kv, row);
}

TEST_F(DamageTest, TheScrubFindsRowsThatNobodyReads) {
  for (const size_t fast_bytes : {size_t{0}, size_t{1} << 20}) {
    Start(fast_bytes);
    Scrubber scrubber(10'000'000, pool_.get(), store_.get());
    Filled(100, test::SmallSpec(Predictor::kExact));
    for (int trial = 0; trial < 100; ++trial) {
      const CachedSequence& victim = Filled(1, test::SmallSpec(Predictor::kExact));
      const DamagedRow row = AnyRow();
      if (fast_bytes > 0) pool_->tiers()->Flush();
      FlipABitOf(victim.kv, row);
      Pass(scrubber);
      ExpectFound(victim.kv, row);
      ASSERT_TRUE(store_->Release(1, SequenceStore::kAnyEpoch).ok());
    }
    EXPECT_EQ(scrubber.counts().damaged_rows, 100u);
    EXPECT_EQ(scrubber.counts().mended_blocks, 0u);
    EXPECT_FALSE(store_->Find(100)->kv.is_damaged());
  }
}

TEST_F(DamageTest, AllHoldersOfADamagedBlockAreDamagedAndNobodyIsGivenItAgain) {
  Scrubber scrubber(10'000'000, pool_.get(), store_.get());
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  CachedSequence& first = Filled(1, spec, Prompt());
  store_->KeepPrefix(first);
  const uint32_t cached = Filled(2, spec, Prompt()).prefix.positions();
  ASSERT_GE(cached, 96u);
  FlipABitOf(first.kv, {0, 1, 70});
  Pass(scrubber);
  ExpectFound(first.kv, {0, 1, 70});
  ExpectFound(store_->Find(2)->kv, {0, 1, 70});
  EXPECT_EQ(Filled(3, spec, Prompt()).prefix.positions(), 64u) << "what lies before it is shared still";
  store_->KeepPrefix(*store_->Find(3));
  EXPECT_EQ(Filled(4, spec, Prompt()).prefix.positions(), cached) << "from the rows that came instead";
  for (const uint64_t id : {1, 2, 3, 4}) ASSERT_TRUE(store_->Release(id, SequenceStore::kAnyEpoch).ok());
  EXPECT_EQ(pool_->used(), store_->prefixes().blocks()) << "the damaged units went with those that held them";
  EXPECT_EQ(store_->prefixes().units(), kRows / kBlockTokens);
}

TEST_F(DamageTest, TheScrubFindsDamageInPromptsThatNoSequenceHolds) {
  Scrubber scrubber(10'000'000, pool_.get(), store_.get());
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  CachedSequence& first = Filled(1, spec, Prompt());
  std::byte* const row = Row(first.kv, {1, 1, 33});
  store_->KeepPrefix(first);
  ASSERT_TRUE(store_->Release(1, SequenceStore::kAnyEpoch).ok());
  Pass(scrubber);
  EXPECT_EQ(scrubber.counts().damaged_rows, 0u);
  FlipABit(row, layout_.row_bytes());
  Pass(scrubber);
  EXPECT_EQ(scrubber.counts().damaged_rows, 1u);
  EXPECT_EQ(store_->prefixes().units(), 1u);
  EXPECT_EQ(Filled(2, spec, Prompt()).prefix.positions(), 32u);
}

// Index decides what is selected. It is what the rows give, so that it can be made again.
TEST_F(DamageTest, TheScrubPutsIndexRight) {
  SelectionSpec tokens = test::SmallSpec(Predictor::kExact);
  SelectionSpec int8 = tokens, minmax = tokens, cuboid = tokens, two_stage = tokens;
  int8.key_copy = KeyCopy::kInt8;
  minmax.scorer = Scorer::kPageMinmax;
  cuboid.scorer = Scorer::kPageCuboid;
  two_stage.scorer = Scorer::kTwoStage;
  two_stage.key_copy = KeyCopy::kInt8;
  for (const size_t fast_bytes : {size_t{0}, size_t{4} << 20}) {
    for (SelectionSpec spec : {tokens, int8, minmax, cuboid, two_stage}) {
      spec.page_tokens = 16;
      Start(fast_bytes);
      Scrubber scrubber(10'000'000, pool_.get(), store_.get());
      const SequenceKv& kv = Filled(1, spec).kv;
      Pass(scrubber);
      ASSERT_EQ(scrubber.counts().mended_blocks, 0u) << "what nobody has touched is right";
      for (uint64_t trial = 0; trial < 50; ++trial) {
        const DamagedRow row = AnyRow();
        const HeadIndex index = kv.index(row.layer, row.kv_head);
        const bool of_pages = index.bounds != nullptr && trial % 2 == 0;
        const void* const* tiles = !of_pages ? index.keys : index.cuboids != nullptr ? index.cuboids : index.bounds;
        const int dim = of_pages ? 2 * layout_.head_dim : layout_.head_dim;
        auto* const tile =
            static_cast<std::byte*>(const_cast<void*>(tiles[of_pages ? 0 : row.position / kBlockTokens]));
        // All of a tile but what belongs to keys that are not there yet.
        const size_t bytes = IndexTileBytes(dim, of_pages ? index.page_dtype : index.dtype);
        const std::vector<std::byte> before(tile, tile + bytes);
        const uint64_t mended = scrubber.counts().mended_blocks;
        if (of_pages) {
          std::fill_n(tile, bytes, std::byte{0});
        } else {
          FlipABit(tile, bytes);
        }
        Pass(scrubber);
        // In the tail a bit may be of keys that are not there.
        if (!of_pages && row.position / kBlockTokens == kRows / kBlockTokens) continue;
        EXPECT_GT(scrubber.counts().mended_blocks, mended);
        EXPECT_TRUE(std::equal(before.begin(), before.end(), tile));
      }
      EXPECT_EQ(scrubber.counts().damaged_rows, 0u);
      EXPECT_FALSE(kv.is_damaged());
    }
  }
}

TEST_F(DamageTest, TheScrubReadsNoMoreThanItsRate) {
  Filled(1, test::SmallSpec(Predictor::kExact));
  Scrubber none(0, pool_.get(), store_.get()), slow(1000, pool_.get(), store_.get());
  for (int second = 0; second <= 1000; ++second) {
    for (Scrubber* scrubber : {&none, &slow}) {
      scrubber->Tick(std::chrono::steady_clock::time_point(seconds(second)));
      for (int i = 0; i < 10; ++i) scrubber->RunOnce();
    }
  }
  EXPECT_EQ(none.counts().bytes, 0u);
  EXPECT_GT(slow.counts().bytes, 100'000u);
  EXPECT_LE(slow.counts().bytes, 1'000'000u + (64u << 10));
}

TEST_F(DamageTest, APassOverAPoolThatIsNearlyEmptyTakesItsTime) {
  Start(0, /*blocks=*/200'000);
  Filled(1, test::SmallSpec(Predictor::kExact));
  // Looks at the blocks take as long as reading 1.6 MB, which is 24 s; what is stored would take a second or two.
  Scrubber scrubber(64 << 10, pool_.get(), store_.get());
  for (int tenth = 1; tenth < 600; ++tenth) {
    scrubber.Tick(std::chrono::steady_clock::time_point(std::chrono::milliseconds(100 * tenth)));
    while (scrubber.RunOnce()) {
    }
  }
  EXPECT_GE(scrubber.counts().passes, 1u);
  EXPECT_LE(scrubber.counts().passes, 2u);
}

}  // namespace
}  // namespace winnow
