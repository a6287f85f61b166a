// Sequences that begin with blocks of earlier prompts.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "cache_rank/store/sequence_store.h"
#include "common/base/prefix_hash.h"
#include "tests/cache_rank/reference.h"

namespace winnow {
namespace {

// A row is a function of layer, head, position and all tokens up to its block, as those of a model are.
class SharedPrefixTest : public testing::Test {
 protected:
  SharedPrefixTest() : shape_(test::SmallShape()), kernels_(CpuKernels("portable").value()) { Restart(2000); }
  void Restart(size_t blocks, size_t max_idle = 1 << 20) {
    store_.reset();
    pool_ = KvBlockPool::Create(blocks * BlockBytes(shape_.layout), shape_.layout).value();
    store_ = std::make_unique<SequenceStore>(pool_.get(), kernels_, shape_.layout, std::chrono::seconds(60), max_idle);
  }

  static std::vector<uint32_t> Prompt(const std::vector<uint32_t>& contents, uint32_t tail) {
    std::vector<uint32_t> tokens;
    for (const uint32_t content : contents) {
      for (uint32_t i = 0; i < kBlockTokens; ++i) tokens.push_back(content * 100 + i);
    }
    for (uint32_t i = 0; i < tail; ++i) tokens.push_back(7000 + i);
    return tokens;
  }
  float Element(const std::vector<uint32_t>& prompt, int layer, int head, uint32_t position, int d) const {
    uint64_t hash = PrefixRoot("");
    for (uint32_t b = 0; (b + 1) * kBlockTokens <=
                         std::min<size_t>(position / kBlockTokens * kBlockTokens + kBlockTokens, prompt.size());
         ++b) {
      hash = ExtendPrefix(hash, std::span(prompt).subspan(b * kBlockTokens, kBlockTokens));
    }
    return test::Noise(hash, layer * 8 + head, position, d);
  }
  absl::StatusOr<CachedSequence*> Open(uint64_t id, const std::vector<uint32_t>& prompt, const SelectionSpec& spec,
                                       const std::string& salt = "", uint32_t decodes = 8) {
    const auto tokens = static_cast<uint32_t>(prompt.size());
    return store_->Open(1, {.sequence_id = id,
                            .spec = spec,
                            .max_positions = tokens + decodes,
                            .prompt_tokens = tokens,
                            .sampling = {},
                            .prompt_token_ids = prompt,
                            .prefix_salt = salt});
  }
  // Computes what the sequence lacks of its prompt.
  void Fill(CachedSequence& sequence, const std::vector<uint32_t>& prompt) {
    FillUpTo(sequence, prompt, static_cast<uint32_t>(prompt.size()));
    store_->KeepPrefix(sequence);
  }
  void FillUpTo(CachedSequence& sequence, const std::vector<uint32_t>& prompt, uint32_t end) {
    for (int layer = 0; layer < shape_.layout.num_layers; ++layer) FillLayer(sequence, prompt, layer, end);
  }
  void FillLayer(CachedSequence& sequence, const std::vector<uint32_t>& prompt, int layer, uint32_t end) {
    const uint32_t first = sequence.kv.rows(layer);
    std::vector<float> rows;
    for (int head = 0; head < shape_.layout.num_kv_heads; ++head) {
      for (uint32_t p = first; p < end; ++p) {
        for (int d = 0; d < 2 * shape_.layout.head_dim; ++d) rows.push_back(Element(prompt, layer, head, p, d));
      }
    }
    ASSERT_TRUE(sequence.kv.Append(layer, first, end - first, reinterpret_cast<const std::byte*>(rows.data())).ok());
  }
  void ExpectRows(const CachedSequence& sequence, const std::vector<uint32_t>& prompt, uint32_t first, uint32_t last) {
    const int width = 2 * shape_.layout.head_dim;
    std::vector<float> row(width);
    for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
      for (int head = 0; head < shape_.layout.num_kv_heads; ++head) {
        for (uint32_t p = first; p < last; ++p) {
          sequence.kv.CopyRows(layer, head, p, 1, reinterpret_cast<std::byte*>(row.data()));
          for (int d = 0; d < width; ++d) ASSERT_EQ(row[d], Element(prompt, layer, head, p, d)) << "position " << p;
        }
      }
    }
  }
  size_t Lists() const { return shape_.layout.num_lists(); }

  const ServedShape shape_;
  const KernelTable* const kernels_;
  std::unique_ptr<KvBlockPool> pool_;
  std::unique_ptr<SequenceStore> store_;
};

TEST_F(SharedPrefixTest, AHitCoversWholeBlocksAndLeavesTheEndToBeComputed) {
  SelectionSpec spec = test::SmallSpec(Predictor::kTemporal);
  spec.recent_tokens = 32;
  spec.window = 8;
  EXPECT_EQ(PrefixLimit(spec, 32), 0u);
  EXPECT_EQ(PrefixLimit(spec, 63), 0u);
  EXPECT_EQ(PrefixLimit(spec, 64), 32u);
  EXPECT_EQ(PrefixLimit(spec, 160), 128u);
  spec.window = 40;
  EXPECT_EQ(PrefixLimit(spec, 160), 96u) << "the window, and the query before it";
}

TEST_F(SharedPrefixTest, OutlivesTheSequenceThatComputedIt) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const std::vector<uint32_t> prompt = Prompt({1, 2, 3, 4}, 10);
  Fill(**Open(1, prompt, spec), prompt);
  ASSERT_TRUE(store_->Release(1, 1).ok());
  EXPECT_EQ(pool_->used(), 4 * Lists());
  EXPECT_EQ(pool_->reserved(), 0u);
  CachedSequence& second = **Open(2, prompt, spec);
  EXPECT_EQ(second.kv.watermark(), 96u);
  EXPECT_EQ(pool_->used(), 4 * Lists()) << "shared";
  ExpectRows(second, prompt, 0, 96);
  Fill(second, prompt);
  ExpectRows(second, prompt, 0, 138);
}

TEST_F(SharedPrefixTest, PromptsThatPartShareWhatIsBefore) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const std::vector<uint32_t> first = Prompt({1, 2, 3, 4}, 10), second = Prompt({1, 2, 5, 4, 6}, 10);
  Fill(**Open(1, first, spec), first);
  CachedSequence& other = **Open(2, second, spec);
  EXPECT_EQ(other.kv.watermark(), 64u);
  Fill(other, second);
  ExpectRows(other, second, 0, 170);
  ExpectRows(*store_->Find(1), first, 0, 138);
  EXPECT_EQ(store_->prefixes().units(), 7u);
}

TEST_F(SharedPrefixTest, IsOfOneSaltAndOneIndex) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const std::vector<uint32_t> prompt = Prompt({1, 2, 3, 4}, 10);
  Fill(**Open(1, prompt, spec, "a"), prompt);
  EXPECT_EQ((*Open(2, prompt, spec, "b"))->kv.watermark(), 0u);
  SelectionSpec other = spec;
  other.key_copy = spec.key_copy == KeyCopy::kInt8 ? KeyCopy::kNone : KeyCopy::kInt8;
  EXPECT_EQ((*Open(3, prompt, other, "a"))->kv.watermark(), 0u);
  EXPECT_EQ((*Open(4, prompt, spec, "a"))->kv.watermark(), 96u);
}

TEST_F(SharedPrefixTest, TheIndexOfPagesIsThatOfASequenceComputedAlone) {
  SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  spec.scorer = Scorer::kPageCuboid;
  // 4: every fourth unit completes a block of pages; 48: pages reach over blocks.
  for (const uint32_t page : {4u, 16u, 48u}) {
    SCOPED_TRACE(page);
    Restart(6000);
    spec.page_tokens = page;
    const std::vector<uint32_t> prompt = Prompt({1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 40);
    Fill(**Open(1, prompt, spec), prompt);
    CachedSequence& shared = **Open(2, prompt, spec);
    ASSERT_EQ(shared.kv.watermark(), 18 * kBlockTokens);
    Fill(shared, prompt);
    CachedSequence& alone = **Open(3, prompt, spec, "another salt");
    ASSERT_EQ(alone.kv.watermark(), 0u);
    Fill(alone, prompt);
    const size_t tile_bytes = BlockBytes(shape_.layout) - shape_.layout.block_bytes();
    for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
      for (int head = 0; head < shape_.layout.num_kv_heads; ++head) {
        const HeadIndex a = shared.kv.index(layer, head), b = alone.kv.index(layer, head);
        const uint32_t blocks = static_cast<uint32_t>(prompt.size()) / kBlockTokens;
        for (uint32_t i = 0; i < blocks; ++i) ASSERT_EQ(std::memcmp(a.keys[i], b.keys[i], tile_bytes), 0);
        const uint32_t pages = CompletePages(shared.kv.index_layout(), static_cast<uint32_t>(prompt.size()));
        ASSERT_GT(pages, 0u);
        for (uint32_t i = 0; i < pages / kBlockTokens; ++i) {
          ASSERT_EQ(std::memcmp(a.bounds[i], b.bounds[i], shape_.layout.block_bytes()), 0) << "block of pages " << i;
          ASSERT_EQ(std::memcmp(a.cuboids[i], b.cuboids[i], shape_.layout.block_bytes()), 0);
        }
        // Of the block that is not full: element e of page i is at [e][i].
        const auto* left = static_cast<const float*>(a.bounds[pages / kBlockTokens]);
        const auto* right = static_cast<const float*>(b.bounds[pages / kBlockTokens]);
        for (uint32_t i = 0; i < pages % kBlockTokens; ++i) {
          for (int e = 0; e < 2 * shape_.layout.head_dim; ++e) {
            ASSERT_EQ(left[e * kBlockTokens + i], right[e * kBlockTokens + i]) << "page " << i;
          }
        }
      }
    }
  }
}

TEST_F(SharedPrefixTest, GivesWayToSequences) {
  Restart(8 * Lists());
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const std::vector<uint32_t> first = Prompt({1, 2, 3, 4}, 20), second = Prompt({5, 6, 7, 8, 9, 10}, 20);
  Fill(**Open(1, first, spec), first);
  EXPECT_EQ(Open(2, second, spec).status().code(), absl::StatusCode::kResourceExhausted) << "in use";
  ASSERT_TRUE(store_->Release(1, 1).ok());
  EXPECT_EQ(store_->prefixes().idle_blocks(), 4 * Lists());
  ASSERT_TRUE(Open(2, second, spec).ok());
  EXPECT_EQ(store_->prefixes().evicted_units(), 3u) << "no more than is wanted";
}

TEST_F(SharedPrefixTest, ARestartFromTheBeginningComputesItsOwn) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const std::vector<uint32_t> prompt = Prompt({1, 2, 3, 4}, 10);
  Fill(**Open(1, prompt, spec), prompt);
  CachedSequence& second = **Open(2, prompt, spec);
  ASSERT_TRUE(store_->Attach(2, 2, 1000).ok());
  EXPECT_EQ(second.kv.watermark(), 0u);
  Fill(second, prompt);
  ExpectRows(second, prompt, 0, 138);
  ExpectRows(*store_->Find(1), prompt, 0, 138);
  for (const auto& [id, epoch] : {std::pair(1u, 1u), std::pair(2u, 2u)}) ASSERT_TRUE(store_->Release(id, epoch).ok());
  EXPECT_EQ(pool_->used(), store_->prefixes().idle_blocks());
  EXPECT_EQ(pool_->reserved(), 0u);
}

// A prompt that was cut off at any position, in some layers further than in others, has the rows and the index of one
// that was computed at once, and is shared like it.
TEST_F(SharedPrefixTest, APromptGoesOnWhereverItWasCutOff) {
  for (const Predictor predictor : {Predictor::kExact, Predictor::kTemporal}) {
    const SelectionSpec spec = test::SmallSpec(predictor);
    const std::vector<uint32_t> prompt = Prompt({1, 2, 3, 4, 5, 6, 7, 8}, 10);
    const auto tokens = static_cast<uint32_t>(prompt.size());
    for (const bool shares : {true, false}) {
      for (const uint32_t cut : {1u, 31u, 32u, 33u, 63u, 64u, 100u, 128u, 200u, tokens - 1, tokens}) {
        SCOPED_TRACE(testing::Message() << "cut at " << cut << ", prefix cache " << shares);
        Restart(2000, shares ? 1 << 20 : 0);
        CachedSequence& sequence = **Open(1, prompt, spec, "salt");
        FillUpTo(sequence, prompt, cut);
        FillLayer(sequence, prompt, 0, std::min(cut + 40, tokens));
        store_->Detach(sequence, {});
        ASSERT_TRUE(store_->Attach(2, 1, tokens - 1, 0, "salt").ok());
        const uint32_t restart = sequence.kv.watermark();
        EXPECT_EQ(restart, std::min(cut, PrefixLimit(spec, tokens)) / kBlockTokens * kBlockTokens);
        for (int layer = 0; layer < shape_.layout.num_layers; ++layer) EXPECT_EQ(sequence.kv.rows(layer), restart);
        ExpectRows(sequence, prompt, 0, restart);
        Fill(sequence, prompt);
        ExpectRows(sequence, prompt, 0, tokens);
        EXPECT_EQ(store_->prefixes().units(), shares ? 8u : 0u);
        CachedSequence& other = **Open(2, prompt, spec, "salt");
        Fill(other, prompt);
        ExpectRows(other, prompt, 0, tokens);
        for (const uint64_t id : {1u, 2u}) ASSERT_TRUE(store_->Release(id, SequenceStore::kAnyEpoch).ok());
        EXPECT_EQ(pool_->reserved(), 0u);
      }
    }
  }
}

// What it has from the prefix cache, and what it computed itself, are there alike; others keep theirs.
TEST_F(SharedPrefixTest, APromptGoesOnBehindACachedPrefix) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const std::vector<uint32_t> first = Prompt({1, 2, 3}, 40), second = Prompt({1, 2, 4, 5, 6, 7}, 40);
  Fill(**Open(1, first, spec, "salt"), first);
  CachedSequence& sequence = **Open(2, second, spec, "salt");
  EXPECT_EQ(sequence.cached_tokens, 64u);
  FillUpTo(sequence, second, 64 + 70);
  ASSERT_TRUE(store_->Attach(2, 2, 1000, 0, "salt").ok());
  EXPECT_EQ(sequence.kv.watermark(), 128u);
  EXPECT_EQ(sequence.cached_tokens, 64u);
  Fill(sequence, second);
  ExpectRows(sequence, second, 0, 6 * kBlockTokens + 40);
  ExpectRows(*store_->Find(1), first, 0, 3 * kBlockTokens + 40);
}

// Their rows would be one prompt's together, and then be shared under the name of one of them.
TEST_F(SharedPrefixTest, RanksThatComputeOtherwiseDoNotGoOnWithAPrompt) {
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  const std::vector<uint32_t> prompt = Prompt({1, 2, 3, 4, 5, 6}, 10);
  CachedSequence& sequence = **Open(1, prompt, spec, "salt");
  FillUpTo(sequence, prompt, 100);
  EXPECT_EQ(store_->Attach(2, 1, 1000, 0, "other").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(sequence.channel, 1u);
  Fill(sequence, prompt);
  EXPECT_TRUE(store_->Attach(2, 1, 1000, 0, "other").ok()) << "whose prompt is complete";
  EXPECT_EQ(sequence.kv.watermark(), prompt.size());
}

TEST_F(SharedPrefixTest, StreamingHeadsShareNothing) {
  SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  spec.head_budgets = {48, 0, 0, 0, 0, 48};
  const std::vector<uint32_t> prompt = Prompt({1, 2, 3, 4}, 10);
  Fill(**Open(1, prompt, spec), prompt);
  EXPECT_EQ(store_->prefixes().units(), 0u);
}

TEST_F(SharedPrefixTest, RowsAndCountsHoldThroughFourThousandRandomOperations) {
  Restart(30 * Lists(), 12 * Lists());
  const SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  std::mt19937 random(11);
  const auto draw = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  std::map<uint64_t, std::vector<uint32_t>> live;
  uint64_t next_id = 1, hits = 0, forks = 0;
  for (int step = 0; step < 4'000; ++step) {
    const auto any = live.empty() ? live.end() : std::next(live.begin(), draw(live.size()));
    switch (draw(4)) {
      case 0: {
        std::vector<uint32_t> contents(1 + draw(5));
        for (uint32_t& content : contents) content = draw(3);
        const std::vector<uint32_t> prompt = Prompt(contents, draw(40));
        const auto opened = Open(next_id, prompt, spec);
        if (!opened.ok()) break;
        const uint32_t cached = (*opened)->kv.watermark();
        hits += cached > 0;
        ASSERT_LE(cached, PrefixLimit(spec, static_cast<uint32_t>(prompt.size())));
        if (cached > 0) ExpectRows(**opened, prompt, cached - 1, cached);
        if (draw(8) > 0) Fill(**opened, prompt);  // the others are cancelled in prefill, or filled never
        live[next_id++] = prompt;
        break;
      }
      case 1:
        if (any == live.end()) break;
        if (store_->Fork(1, any->first, next_id, static_cast<uint32_t>(any->second.size()) + 8).ok()) {
          live[next_id++] = any->second;
          ++forks;
        }
        break;
      default:
        if (any == live.end()) break;
        if (const CachedSequence& gone = *store_->Find(any->first); gone.kv.watermark() > 0) {
          const uint32_t p = draw(gone.kv.watermark());
          ExpectRows(gone, any->second, p, p + 1);
        }
        ASSERT_TRUE(store_->Release(any->first, 1).ok());
        live.erase(any);
        break;
    }
    // Every block that is used is a sequence's, or of a prefix that one leases (it may have computed the same blocks
    // beside another), or idle.
    std::set<const void*> blocks;
    for (const auto& [id, prompt] : live) {
      for (const PrefixUnit* unit : store_->Find(id)->prefix.units()) {
        for (const KvBlock& block : unit->rows) blocks.insert(block.rows());
      }
      const SequenceKv& kv = store_->Find(id)->kv;
      for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
        for (int head = 0; head < shape_.layout.num_kv_heads; ++head) {
          for (size_t b = 0; b * kBlockTokens < kv.rows(layer); ++b) blocks.insert(kv.row_blocks(layer, head)[b]);
        }
      }
    }
    ASSERT_EQ(pool_->used(), blocks.size() + store_->prefixes().idle_blocks()) << "step " << step;
    ASSERT_LE(pool_->used() + pool_->reserved(), pool_->total());
    ASSERT_LE(store_->prefixes().idle_blocks(), 12 * Lists());
  }
  EXPECT_GT(hits, 200u);
  EXPECT_GT(forks, 200u);
  EXPECT_GT(store_->prefixes().evicted_units(), 200u);
  for (const auto& [id, prompt] : live) ASSERT_TRUE(store_->Release(id, 1).ok());
  EXPECT_EQ(pool_->used(), store_->prefixes().idle_blocks());
  EXPECT_EQ(pool_->reserved(), 0u);
}

}  // namespace
}  // namespace winnow
