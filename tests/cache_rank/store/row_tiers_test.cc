// Rows in two tiers are those that were written, wherever they lie, and the counts of reading are exact.
#include "cache_rank/store/row_tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "cache_rank/store/sequence_store.h"
#include "tests/cache_rank/reference.h"
#include "tests/cache_rank/store/gather_rows.h"

namespace winnow {
namespace {

using std::chrono::seconds;

constexpr uint32_t kAdmitRows = 8;

class RowTiersTest : public testing::Test {
 protected:
  RowTiersTest()
      : layout_(test::SmallShape(2).layout),
        kernels_(CpuKernels("portable").value()),
        executor_(kernels_->new_executor(2)) {}
  ~RowTiersTest() override { store_.reset(); }

  size_t RowsBytes() const { return layout_.block_bytes(); }
  // A fast tier of `fast_bytes` beside the staging.
  void Start(size_t blocks, size_t fast_bytes, size_t staging_bytes) {
    store_.reset();
    RowTiers::Options options;
    options.fast = {.memory_bytes = fast_bytes + staging_bytes, .high_watermark = 1, .low_watermark = 1};
    options.admit_rows = kAdmitRows;
    options.max_staging_bytes = staging_bytes;
    auto tiers = RowTiers::Create(options, layout_, kernels_, executor_.get());
    ASSERT_TRUE(tiers.ok()) << tiers.status();
    pool_ = KvBlockPool::Create(blocks * BlockBytes(layout_), layout_, *std::move(tiers)).value();
    store_ =
        std::make_unique<SequenceStore>(pool_.get(), kernels_, layout_, seconds(60), /*max_idle_prefix_blocks=*/1000);
  }
  RowTiers& tiers() { return *pool_->tiers(); }

  static SelectionSpec Spec(Scorer scorer) {
    SelectionSpec spec = test::SmallSpec(Predictor::kExact);
    spec.scorer = scorer;
    spec.page_tokens = 16;
    return spec;
  }
  absl::StatusOr<CachedSequence*> Open(uint64_t id, uint32_t max_positions, Scorer scorer,
                                       std::vector<uint32_t> prompt = {}) {
    const auto prompt_tokens = static_cast<uint32_t>(prompt.size());
    return store_->Open(1, {.sequence_id = id,
                            .spec = Spec(scorer),
                            .max_positions = max_positions,
                            .prompt_tokens = prompt_tokens,
                            .sampling = {},
                            .prompt_token_ids = std::move(prompt)});
  }
  std::vector<float> Row(uint64_t seed, size_t list, uint32_t position) const {
    std::vector<float> row;
    for (int d = 0; d < 2 * layout_.head_dim; ++d) row.push_back(test::Noise(seed, list, position, d));
    return row;
  }
  void Append(SequenceKv& kv, uint64_t seed, uint32_t first, uint32_t count) {
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      std::vector<float> rows;
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        for (uint32_t p = first; p < first + count; ++p) {
          const std::vector<float> row = Row(seed, layout_.list(layer, head), p);
          rows.insert(rows.end(), row.begin(), row.end());
        }
      }
      ASSERT_TRUE(kv.Append(layer, first, count, reinterpret_cast<const std::byte*>(rows.data())).ok());
    }
  }
  void ExpectGathers(const SequenceKv& kv, uint64_t seed, int layer, int head, const std::vector<uint32_t>& positions) {
    const size_t floats = 2 * static_cast<size_t>(layout_.head_dim);
    std::vector<float> rows(positions.size() * floats, -9);
    test::GatherRows(kv, layer, head, positions, reinterpret_cast<std::byte*>(rows.data()));
    for (size_t i = 0; i < positions.size(); ++i) {
      const std::vector<float> expected = Row(seed, layout_.list(layer, head), positions[i]);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), rows.begin() + i * floats)) << "row " << positions[i];
    }
  }
  void ExpectCopies(const SequenceKv& kv, uint64_t seed, int layer, int head, uint32_t first, uint32_t last) {
    const size_t floats = 2 * static_cast<size_t>(layout_.head_dim);
    std::vector<float> rows((last - first) * floats, -9);
    kv.CopyRows(layer, head, first, last - first, reinterpret_cast<std::byte*>(rows.data()));
    for (uint32_t p = first; p < last; ++p) {
      const std::vector<float> expected = Row(seed, layout_.list(layer, head), p);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), rows.begin() + (p - first) * floats)) << "row " << p;
    }
  }

  const KvLayout layout_;
  const KernelTable* const kernels_;
  const std::unique_ptr<Executor> executor_;
  std::unique_ptr<KvBlockPool> pool_;
  std::unique_ptr<SequenceStore> store_;
};

std::vector<uint32_t> Range(uint32_t first, uint32_t last) {
  std::vector<uint32_t> positions;
  for (uint32_t p = first; p < last; ++p) positions.push_back(p);
  return positions;
}

TEST_F(RowTiersTest, RefusesMemoryForLessThanABlockOfEachHead) {
  RowTiers::Options options;
  options.fast.memory_bytes = layout_.num_kv_heads * RowsBytes();
  const auto tiers = RowTiers::Create(options, layout_, kernels_, executor_.get());
  EXPECT_EQ(tiers.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(tiers.status().message().find("--fast-memory"), std::string::npos) << tiers.status();
}

TEST_F(RowTiersTest, LoadsBlocksOfWhichEnoughIsWantedAndPassesOtherRows) {
  const size_t index = layout_.num_lists() * RowsBytes();  // of 100 positions: one block of page tiles each
  Start(200, index + 2 * RowsBytes(), 512);
  SequenceKv& stored = (*Open(1, 100, Scorer::kPageMinmax))->kv;
  Append(stored, 7, 0, 100);
  std::vector<uint32_t> wanted = Range(3, 3 + kAdmitRows);  // of block 0
  wanted.push_back(40);                                     // of block 1
  ExpectGathers(stored, 7, 0, 0, wanted);
  EXPECT_EQ(tiers().counts().missed_rows, kAdmitRows + 1u);
  EXPECT_EQ(tiers().counts().loaded_rows, kBlockTokens + 1u);
  EXPECT_EQ(stored.loaded_rows(), kBlockTokens + 1u);
  ExpectGathers(stored, 7, 0, 0, wanted);
  EXPECT_EQ(tiers().counts().hit_rows, kAdmitRows);
  EXPECT_EQ(tiers().counts().loaded_rows, kBlockTokens + 2u);
  // Three blocks in one gather do not fit: the third passes, as the others are in use.
  ExpectGathers(stored, 7, 1, 1, Range(0, 96));
  EXPECT_EQ(tiers().counts().loaded_rows, 4 * kBlockTokens + 2u);
  EXPECT_EQ(tiers().fast().counts().blocks_loaded, 3u);
  EXPECT_EQ(tiers().fast().counts().blocks_evicted, 1u);
  EXPECT_EQ(tiers().counts().gathers, 3u);
}

TEST_F(RowTiersTest, KeepsIndexInTheFastTierAndKeysThatAreNotScoredOutOfIt) {
  Start(300, 100 * RowsBytes(), 512);
  const size_t rows_blocks = layout_.num_lists() * 4;  // of 128 positions
  SequenceKv& tokens = (*Open(1, 128, Scorer::kToken))->kv;
  EXPECT_EQ(tiers().fast().reserved_bytes(), rows_blocks * RowsBytes() / 2) << "keys are half of a row";
  Append(tokens, 7, 0, 128);
  EXPECT_EQ(tiers().fast().index_bytes(), rows_blocks * RowsBytes() / 2);
  EXPECT_EQ(tiers().fast().reserved_bytes(), 0u);
  EXPECT_EQ(tokens.index_bytes(), tiers().fast().index_bytes());
  SequenceKv& pages = (*Open(2, 128, Scorer::kPageMinmax))->kv;
  Append(pages, 7, 0, 128);
  // 8 pages lie in one block of page tiles, of 32 pseudo-keys twice as long as keys.
  EXPECT_EQ(pages.index_bytes(), layout_.num_lists() * RowsBytes());
  EXPECT_EQ(tiers().fast().copied_bytes(), 0u) << "writing copies nothing";
  ASSERT_TRUE(store_->Release(1, 1).ok());
  ASSERT_TRUE(store_->Release(2, 1).ok());
  EXPECT_EQ(tiers().fast().index_bytes(), 0u);
}

TEST_F(RowTiersTest, RefusesIndexThatNeverFitsAndLetsWaitWhatDoesNotFitNow) {
  Start(300, 30 * RowsBytes(), 512);
  const auto never = Open(1, 1000, Scorer::kToken);
  EXPECT_EQ(never.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_NE(never.status().message().find("--fast-memory"), std::string::npos) << never.status();
  ASSERT_TRUE(Open(2, 300, Scorer::kToken).ok());
  EXPECT_EQ(Open(3, 300, Scorer::kToken).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool_->reserved(), layout_.num_lists() * 10u) << "nothing of the refused one is left";
  ASSERT_TRUE(store_->Release(2, 1).ok());
  EXPECT_TRUE(Open(3, 300, Scorer::kToken).ok());
}

TEST_F(RowTiersTest, IdlePrefixesGiveWayToIndexOfOthers) {
  Start(1000, 30 * RowsBytes(), 512);
  const std::vector<uint32_t> prompt = Range(1000, 1256);
  CachedSequence* first = *Open(1, 256, Scorer::kToken, prompt);
  Append(first->kv, 7, 0, 256);
  store_->KeepPrefix(*first);
  ASSERT_TRUE(store_->Release(1, 1).ok());
  const size_t kept = tiers().fast().index_bytes();
  EXPECT_EQ(kept, layout_.num_lists() * 8 * RowsBytes() / 2);
  CachedSequence* again = *Open(2, 256, Scorer::kToken, prompt);
  EXPECT_GT(again->kv.watermark(), 0u);
  ExpectCopies(again->kv, 7, 1, 1, 0, again->kv.watermark());
  ASSERT_TRUE(store_->Release(2, 1).ok());
  ASSERT_TRUE(Open(3, 400, Scorer::kToken).ok()) << "13 blocks of keys a list: 26 of 30";
  EXPECT_LT(tiers().fast().index_bytes(), kept);
  EXPECT_GT(store_->prefixes().evicted_units(), 0u);
}

TEST_F(RowTiersTest, CopiesOfBlocksThatAreWrittenToAgainAreNotRead) {
  Start(200, 40 * RowsBytes(), 512);
  CachedSequence* sequence = *Open(1, 100, Scorer::kPageMinmax);
  Append(sequence->kv, 7, 0, 80);
  ExpectGathers(sequence->kv, 7, 0, 0, Range(32, 64));
  ASSERT_TRUE(sequence->kv.Truncate(40).ok());
  Append(sequence->kv, 8, 40, 40);
  ExpectGathers(sequence->kv, 7, 0, 0, Range(32, 40));
  ExpectGathers(sequence->kv, 8, 0, 0, Range(40, 64));
}

// The block that a streaming head gives back is flushed in the midst of a write, whose other heads' rows are staged
// yet.
TEST_F(RowTiersTest, RowsAreTheirsBesideThoseOfStreamingHeads) {
  Start(600, 120 * RowsBytes(), 3000);
  SelectionSpec spec = Spec(Scorer::kToken);
  spec.head_budgets.assign(layout_.num_lists(), 48);
  for (int layer = 0; layer < layout_.num_layers; ++layer) spec.head_budgets[layout_.list(layer, 0)] = 0;
  CachedSequence* sequence =
      *store_->Open(1, {.sequence_id = 1, .spec = spec, .max_positions = 900, .prompt_tokens = 600, .sampling = {}});
  ASSERT_TRUE(layout_.num_kv_heads > 1);
  const int last = layout_.num_kv_heads - 1;
  for (uint32_t p = 0; p < 600; ++p) {
    Append(sequence->kv, 7, p, 1);
    for (int layer = 0; p % 50 == 49 && layer < layout_.num_layers; ++layer) {
      ExpectCopies(sequence->kv, 7, layer, last, p - 49, p + 1);
    }
  }
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    ExpectGathers(sequence->kv, 7, layer, last, Range(0, 600));
  }
}

// A model that knows for each sequence which seed wrote each row, and for each block of memory, which the real thing
// names, whether it has a copy.
struct Stored {
  std::vector<uint64_t> seeds;  // by position
};

// Random appends, gathers, copies, forks, truncations and releases, with staging of a few rows, so that every read
// finds rows in any state; rows are always right, and hits, misses and loads are those of a brute-force LRU.
TEST_F(RowTiersTest, AgreesWithAModelOverRandomOperations) {
  const size_t copies = 12;
  Start(600, 120 * RowsBytes(), 3000);
  std::mt19937 random(11);
  const auto draw = [&](uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random); };
  std::map<uint64_t, Stored> sequences;
  uint64_t next_id = 1, next_seed = 1;
  uint64_t hits = 0, misses = 0, loaded = 0;
  std::set<uint32_t> copied;  // blocks with a copy: memory for all, so none is evicted
  const auto blocks_alive = [&] {
    std::set<uint32_t> alive;
    for (const auto& [id, stored] : sequences) {
      const SequenceKv& kv = store_->Find(id)->kv;
      for (int layer = 0; layer < layout_.num_layers; ++layer) {
        for (int head = 0; head < layout_.num_kv_heads; ++head) {
          for (size_t b = 0; b * kBlockTokens < kv.rows(layer); ++b) alive.insert(kv.block_number(layer, head, b));
        }
      }
    }
    return alive;
  };
  const auto forget_freed = [&] {
    const std::set<uint32_t> alive = blocks_alive();
    std::erase_if(copied, [&](uint32_t block) { return !alive.contains(block); });
  };
  for (int step = 0; step < 4000; ++step) {
    if (sequences.empty() || (draw(40) == 0 && sequences.size() < 5)) {
      ASSERT_TRUE(Open(next_id, 200, draw(2) == 0 ? Scorer::kToken : Scorer::kPageMinmax).ok());
      sequences[next_id++] = {};
      continue;
    }
    auto it = std::next(sequences.begin(), draw(static_cast<uint32_t>(sequences.size())));
    const uint64_t id = it->first;
    Stored& stored = it->second;
    CachedSequence* sequence = store_->Find(id);
    const auto rows = static_cast<uint32_t>(stored.seeds.size());
    const int layer = static_cast<int>(draw(layout_.num_layers)), head = static_cast<int>(draw(layout_.num_kv_heads));
    const auto seed_of = [&](uint32_t p) { return stored.seeds[p]; };
    switch (draw(10)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const uint32_t count = std::min(1 + (draw(3) == 0 ? draw(50) : 0), 200 - rows);
        if (count == 0) break;
        Append(sequence->kv, next_seed, rows, count);
        stored.seeds.insert(stored.seeds.end(), count, next_seed++);
        break;
      }
      case 4:
      case 5:
      case 6: {
        if (rows == 0) break;
        std::vector<uint32_t> positions;
        const uint32_t density = 1 + draw(6);
        for (uint32_t p = 0; p < rows; ++p) {
          if (draw(density) == 0) positions.push_back(p);
        }
        for (size_t i = 0; i < positions.size();) {
          const uint32_t b = positions[i] / kBlockTokens, block = sequence->kv.block_number(layer, head, b);
          uint32_t wanted = 0;
          for (; i < positions.size() && positions[i] / kBlockTokens == b; ++i) ++wanted;
          if (copied.contains(block)) {
            hits += wanted;
            continue;
          }
          misses += wanted;
          const bool admits = wanted >= kAdmitRows && b < rows / kBlockTokens;
          loaded += admits ? kBlockTokens : wanted;
          if (admits) copied.insert(block);
        }
        const size_t floats = 2 * static_cast<size_t>(layout_.head_dim);
        std::vector<float> out(positions.size() * floats);
        test::GatherRows(sequence->kv, layer, head, positions, reinterpret_cast<std::byte*>(out.data()));
        for (size_t i = 0; i < positions.size(); ++i) {
          const std::vector<float> expected = Row(seed_of(positions[i]), layout_.list(layer, head), positions[i]);
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + i * floats))
              << "step " << step << " row " << positions[i];
        }
        break;
      }
      case 7: {
        if (rows == 0) break;
        const uint32_t p = draw(rows);
        const bool is_copied = copied.contains(sequence->kv.block_number(layer, head, p / kBlockTokens));
        (is_copied ? hits : misses) += 1;
        loaded += !is_copied;
        ExpectCopies(sequence->kv, seed_of(p), layer, head, p, p + 1);
        break;
      }
      case 8: {
        if (draw(4) != 0) break;
        const uint32_t position = rows == 0 ? 0 : draw(rows + 1);
        ASSERT_TRUE(sequence->kv.Truncate(position).ok());
        stored.seeds.resize(position);
        forget_freed();
        if (position % kBlockTokens == 0) break;
        for (int l = 0; l < layout_.num_layers; ++l) {
          for (int h = 0; h < layout_.num_kv_heads; ++h) {
            copied.erase(sequence->kv.block_number(l, h, position / kBlockTokens));
          }
        }
        break;
      }
      default: {
        if (draw(3) != 0) break;
        if (draw(2) == 0 && sequences.size() < 5) {
          const auto fork = store_->Fork(1, id, next_id, 200);
          ASSERT_TRUE(fork.ok()) << fork.status();
          const Stored copy = stored;
          sequences[next_id++] = copy;
        } else {
          ASSERT_TRUE(store_->Release(id, sequence->attach_epoch).ok());
          sequences.erase(it);
          forget_freed();
        }
        break;
      }
    }
    ASSERT_EQ(tiers().counts().hit_rows, hits) << "step " << step;
    ASSERT_EQ(tiers().counts().missed_rows, misses) << "step " << step;
    ASSERT_EQ(tiers().counts().loaded_rows, loaded) << "step " << step;
    ASSERT_EQ(tiers().fast().copied_bytes(), copied.size() * RowsBytes()) << "step " << step;
    ASSERT_EQ(tiers().fast().counts().blocks_evicted, 0u) << "step " << step;
  }
  for (const auto& [id, stored] : sequences) ASSERT_TRUE(store_->Release(id, store_->Find(id)->attach_epoch).ok());
  EXPECT_EQ(tiers().fast().index_bytes() + tiers().fast().reserved_bytes() + tiers().fast().copied_bytes(), 0u);
  EXPECT_EQ(pool_->used() + pool_->reserved(), 0u);
  EXPECT_GT(hits, 1000u);
  EXPECT_GT(loaded, copies * kBlockTokens);
}

}  // namespace
}  // namespace winnow
