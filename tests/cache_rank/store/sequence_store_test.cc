#include "cache_rank/store/sequence_store.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/cache_rank/store/sequence_store_fixture.h"

namespace winnow {
namespace {

using std::chrono::seconds;

TEST_F(SequenceStoreTest, APositionOfAllLayersIsThatOfEachOrOfNone) {
  const IndexLayout index{.page_tokens = 16, .key_dtype = Dtype::kI8, .scores_keys = true};
  Restart(400);  // what no page has been written to is zero
  const std::unique_ptr<Executor> team = kernels_->new_executor(2);
  SequenceKv alone = SequenceKv::Create(pool_.get(), kernels_, shape_.layout, 100, index).value();
  SequenceKv together = SequenceKv::Create(pool_.get(), kernels_, shape_.layout, 100, index).value();
  for (uint32_t position = 0; position < 70; ++position) {
    std::vector<float> of_layers;
    for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
      const std::vector<float> rows = Rows(9, layer, position, 1);
      of_layers.insert(of_layers.end(), rows.begin(), rows.end());
      ASSERT_TRUE(alone.Append(layer, position, 1, reinterpret_cast<const std::byte*>(rows.data())).ok());
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(of_layers.data());
    ASSERT_TRUE(together.AppendOfLayers(position, bytes, *team).ok());
    EXPECT_FALSE(together.AppendOfLayers(position, bytes, *team).ok()) << "not the next one";
  }
  EXPECT_EQ(together.watermark(), 70u);
  EXPECT_EQ(together.blocks(), alone.blocks());
  const size_t page_bytes = IndexTileBytes(2 * shape_.layout.head_dim, Dtype::kI8);
  for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
    for (int head = 0; head < shape_.layout.num_kv_heads; ++head) {
      const HeadIndex a = alone.index(layer, head), b = together.index(layer, head);
      EXPECT_EQ(std::memcmp(a.bounds[0], b.bounds[0], page_bytes), 0) << "layer " << layer << ", head " << head;
    }
  }
}

TEST_F(SequenceStoreTest, KeepsRowsAndKeysHoweverTheyArrive) {
  CachedSequence* sequence = Open(1, 150).value();
  uint32_t position = 0;
  for (const uint32_t count : {1u, 30u, 1u, 33u, 64u, 2u}) {
    Append(sequence->kv, 7, position, count);
    position += count;
  }
  EXPECT_EQ(sequence->kv.watermark(), 131u);
  ExpectRows(sequence->kv, 7, 0, 131);
}

TEST_F(SequenceStoreTest, TakesRowsOfALayerOnlyInOrderAndWithinTheAdmittedLength) {
  CachedSequence* sequence = Open(1, 40).value();
  ASSERT_TRUE(AppendLayer(sequence->kv, 7, 1, 0, 10).ok());
  EXPECT_EQ(sequence->kv.rows(1), 10u);
  EXPECT_EQ(sequence->kv.watermark(), 0u) << "the lowest layer counts";
  EXPECT_EQ(AppendLayer(sequence->kv, 7, 1, 11, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(AppendLayer(sequence->kv, 7, 1, 9, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(AppendLayer(sequence->kv, 7, 1, 10, 31).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(AppendLayer(sequence->kv, 7, 1, 10, 30).ok());
}

TEST_F(SequenceStoreTest, AdmitsByTheBlocksOfTheWholeLength) {
  Restart(3 * Lists());
  ASSERT_TRUE(Open(1, 64).ok());
  EXPECT_EQ(pool_->reserved(), 2 * Lists());
  const absl::Status refused = Open(2, 33).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find(absl::StrCat(2 * Lists(), " blocks")), absl::string_view::npos) << refused;
  EXPECT_TRUE(Open(2, 32).ok());
  EXPECT_EQ(Open(2, 32).status().code(), absl::StatusCode::kAlreadyExists);
  const absl::Status never = Open(3, 97).status();
  EXPECT_EQ(never.code(), absl::StatusCode::kOutOfRange) << "more than the empty pool has";
  EXPECT_NE(never.message().find(absl::StrCat(4 * Lists(), " blocks")), absl::string_view::npos) << never;
}

TEST_F(SequenceStoreTest, ForksShareFullBlocksAndPartWays) {
  CachedSequence* source = Open(1, 128).value();
  Append(source->kv, 7, 0, 70);
  const size_t used = pool_->used();
  CachedSequence* fork = store_->Fork(1, 1, 2, 128).value();
  EXPECT_EQ(pool_->used(), used + Lists()) << "only the tails are copied";
  Append(source->kv, 7, 70, 30);
  Append(fork->kv, 8, 70, 40);
  ExpectRows(source->kv, 7, 0, 100);
  ExpectRows(fork->kv, 7, 0, 70);
  ExpectRows(fork->kv, 8, 70, 110);
  ASSERT_TRUE(store_->Release(1, 1).ok());
  ExpectRows(fork->kv, 7, 0, 70);
  ASSERT_TRUE(store_->Release(2, 1).ok());
  EXPECT_EQ(pool_->used(), 0u);
  EXPECT_EQ(pool_->reserved(), 0u);
}

TEST_F(SequenceStoreTest, TruncatingCopiesASharedBlockThatBecomesTheTail) {
  CachedSequence* source = Open(1, 128).value();
  Append(source->kv, 7, 0, 96);
  CachedSequence* fork = store_->Fork(1, 1, 2, 128).value();
  ASSERT_TRUE(fork->kv.Truncate(40).ok());
  EXPECT_EQ(fork->kv.watermark(), 40u);
  Append(fork->kv, 8, 40, 60);
  ExpectRows(fork->kv, 7, 0, 40);
  ExpectRows(fork->kv, 8, 40, 100);
  ExpectRows(source->kv, 7, 0, 96);
}

TEST_F(SequenceStoreTest, AccountsForEveryBlockThroughRandomOperations) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    Restart(600);
    uint64_t next_id = 2;
    ASSERT_TRUE(Open(1, 200).ok());
    std::vector<uint64_t> ids{1};
    for (uint32_t step = 0; step < 150; ++step) {
      const uint32_t draw = static_cast<uint32_t>((test::Noise(seed, step) + 1) * 1e6);
      CachedSequence* sequence = store_->Find(ids[draw % ids.size()]);
      const uint32_t rows = sequence->kv.watermark();
      switch (draw / 7 % 4) {
        case 0:
        case 1:
          Append(sequence->kv, 1, rows, std::min(1 + draw % 50, 200 - rows));
          break;
        case 2:
          if (store_->Fork(1, sequence->id, next_id, 200).ok()) ids.push_back(next_id++);
          break;
        case 3:
          if (draw % 2 == 0 && ids.size() > 1) {
            const uint64_t id = sequence->id;
            ASSERT_TRUE(store_->Release(id, 1).ok());
            std::erase(ids, id);
          } else {
            (void)sequence->kv.Truncate(draw % (rows + 1));  // may be refused for want of blocks
          }
          break;
      }
      // What admission promised can always be had: rows so far plus what is reserved covers every sequence's length.
      ASSERT_LE(pool_->used() + pool_->reserved(), pool_->total());
      for (const uint64_t id : ids) {
        const SequenceKv& kv = store_->Find(id)->kv;
        if (kv.watermark() > 0) ExpectRows(kv, 1, kv.watermark() - 1, kv.watermark());
      }
    }
    for (const uint64_t id : ids) {
      SequenceKv& kv = store_->Find(id)->kv;
      Append(kv, 1, kv.watermark(), 200 - kv.watermark());
      ExpectRows(kv, 1, 0, 200);
    }
    for (const uint64_t id : ids) ASSERT_TRUE(store_->Release(id, 1).ok());
    EXPECT_EQ(pool_->used(), 0u);
    EXPECT_EQ(pool_->reserved(), 0u);
  }
}

TEST_F(SequenceStoreTest, AttachRaisesTheEpochAndRestartsBelowTheLowestLayer) {
  CachedSequence* sequence = Open(1, 100, Predictor::kDepth, /*prompt=*/20).value();
  Append(sequence->kv, 7, 0, 22);
  ASSERT_TRUE(AppendLayer(sequence->kv, 7, 0, 22, 1).ok());  // position 22 got no further
  for (uint32_t p = 20; p <= 22; ++p) sequence->journal.Record(p, 500 + p);
  ASSERT_EQ(store_->Attach(2, 1, 1000).value(), sequence);
  EXPECT_EQ(sequence->attach_epoch, 2u);
  EXPECT_EQ(sequence->kv.rows(0), 22u);
  EXPECT_EQ(sequence->journal.first_position, 20u);
  EXPECT_EQ(sequence->journal.token_ids, (std::vector<uint32_t>{520, 521}));
  EXPECT_EQ(store_->FindAttached(1, 1, 1), nullptr);
  EXPECT_EQ(store_->FindAttached(1, 2, 2), sequence);
  EXPECT_EQ(store_->Release(1, 1).code(), absl::StatusCode::kAborted);

  ASSERT_TRUE(store_->Attach(3, 1, 21).ok());
  EXPECT_EQ(sequence->kv.watermark(), 21u) << "no later than the caller wants";
  ASSERT_TRUE(store_->Attach(3, 1, 20).ok());
  EXPECT_EQ(sequence->kv.watermark(), 20u);
  ASSERT_TRUE(store_->Attach(3, 1, 19).ok());
  EXPECT_EQ(sequence->kv.watermark(), 0u) << "the prompt's last position is prefill's: nothing is kept";
  EXPECT_TRUE(sequence->journal.token_ids.empty());
}

TEST_F(SequenceStoreTest, RestartsWherePastQueriesEndWhenThePredictorNeedsThem) {
  CachedSequence* sequence = Open(1, 100, Predictor::kTemporal, /*prompt=*/20).value();
  Append(sequence->kv, 7, 0, 25);
  for (LayerSelection& layer : sequence->layers) {
    for (uint32_t p = 10; p < 24; ++p) layer.queries.Push(p);
  }
  EXPECT_EQ(sequence->RestartPosition(1000), 24u);
  sequence->layers[1].queries.Truncate(19);
  EXPECT_EQ(sequence->RestartPosition(1000), 0u);
}

TEST_F(SequenceStoreTest, AnUnfinishedPromptIsComputedAgain) {
  CachedSequence* sequence = Open(1, 100, Predictor::kDepth, /*prompt=*/20).value();
  Append(sequence->kv, 7, 0, 19);
  for (const uint32_t max_restart : {1000u, 20u, 19u, 10u}) EXPECT_EQ(sequence->RestartPosition(max_restart), 0u);
  Append(sequence->kv, 7, 19, 1);
  EXPECT_EQ(sequence->RestartPosition(1000), 20u);
  EXPECT_EQ(sequence->RestartPosition(19), 0u);
}

// Further back than the ring reaches, a prediction would blend fewer queries than it did the first time.
TEST_F(SequenceStoreTest, RestartsOnlyWhereThePredictorHasAllPastQueries) {
  for (const Predictor predictor : {Predictor::kLast, Predictor::kTemporal}) {
    Restart(400);
    CachedSequence* sequence = Open(1, 400, predictor, /*prompt=*/100).value();
    Append(sequence->kv, 7, 0, 200);
    const uint32_t needed = PastQueries(sequence->spec);
    for (LayerSelection& layer : sequence->layers) {
      for (uint32_t p = 100 - needed; p < 200; ++p) layer.queries.Push(p);
    }
    const uint32_t earliest = sequence->layers[0].queries.first() + needed;
    EXPECT_LT(earliest, 200u);
    EXPECT_EQ(sequence->RestartPosition(earliest), earliest);
    EXPECT_EQ(sequence->RestartPosition(earliest - 1), 0u);
    EXPECT_EQ(sequence->RestartPosition(100), 0u);
  }
}

TEST_F(SequenceStoreTest, FreesDetachedSequencesAfterTheirTimeOnly) {
  ASSERT_TRUE(Open(1, 32).ok());
  ASSERT_TRUE(Open(2, 32).ok());
  const SequenceStore::Time start{};
  EXPECT_EQ(store_->DetachChannel(1, start), 2u);
  EXPECT_EQ(store_->detached(), 2u);
  EXPECT_EQ(store_->Reclaim(start + seconds(59)), 0u);
  ASSERT_TRUE(store_->Attach(2, 2, 1000).ok());
  EXPECT_EQ(store_->Reclaim(start + seconds(60)), 1u);
  EXPECT_EQ(store_->Find(1), nullptr);
  EXPECT_NE(store_->Find(2), nullptr);
  EXPECT_EQ(pool_->reserved(), Lists());
  EXPECT_TRUE(store_->Release(1, 1).ok()) << "idempotent";
}

TEST_F(SequenceStoreTest, OnlyWhoHoldsASequenceMayFreeItOrWhoGivesItUp) {
  ASSERT_TRUE(Open(1, 32).ok());
  EXPECT_EQ(store_->Release(1, 2).code(), absl::StatusCode::kAborted);
  store_->DetachChannel(1, SequenceStore::Time());
  EXPECT_TRUE(store_->Release(1, SequenceStore::kAnyEpoch).ok());
  EXPECT_EQ(store_->Find(1), nullptr);
  ASSERT_TRUE(Open(2, 32).ok());
  EXPECT_TRUE(store_->Release(2, SequenceStore::kAnyEpoch).ok()) << "attached or not";
  EXPECT_EQ(store_->Find(2), nullptr);
  EXPECT_EQ(store_->detached(), 0u);
  EXPECT_EQ(pool_->reserved(), 0u);
  EXPECT_TRUE(store_->Release(2, SequenceStore::kAnyEpoch).ok()) << "idempotent";
}

// A call to open it may come after its caller has given it up.
TEST_F(SequenceStoreTest, WhatWasReleasedBeforeItCameIsNotOpened) {
  EXPECT_TRUE(store_->Release(1, 1).ok());
  EXPECT_EQ(Open(1, 32).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Open(2, 32).ok());
  EXPECT_TRUE(store_->Release(3, SequenceStore::kAnyEpoch).ok());
  EXPECT_EQ(store_->Fork(1, 2, 3, 32).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->active(), 1u);
  EXPECT_TRUE(store_->Release(2, 1).ok());
  EXPECT_TRUE(Open(2, 32).ok()) << "it was there";
}

TEST_F(SequenceStoreTest, ACallThatNobodyWaitsForAttachesNothing) {
  const SequenceStore::Time now{};
  ASSERT_TRUE(Open(1, 32).ok());
  // Carried out before it is undone, and after.
  ASSERT_TRUE(store_->Attach(2, 1, 0, /*call=*/5).ok());
  store_->UndoAttach(2, 1, 5, now);
  EXPECT_EQ(store_->active(), 0u);
  store_->UndoAttach(2, 1, 6, now);
  EXPECT_EQ(store_->Attach(2, 1, 0, 6).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store_->detached(), 1u);
  // What has it now stays as it is: a later call of the channel, or that number of another channel.
  const CachedSequence* const sequence = store_->Attach(2, 1, 0, 8).value();
  const uint32_t epoch = sequence->attach_epoch;
  store_->UndoAttach(2, 1, 7, now);
  store_->UndoAttach(3, 1, 8, now);
  EXPECT_EQ(store_->Attach(2, 1, 0, 4).status().code(), absl::StatusCode::kAborted) << "it was overtaken";
  EXPECT_EQ(sequence->channel, 2u);
  EXPECT_EQ(sequence->attach_epoch, epoch);
  // Numbers are those of a channel, and end with it.
  EXPECT_TRUE(store_->Attach(4, 1, 0, 1).ok());
  store_->UndoAttach(2, 1, 9, now);
  store_->DetachChannel(2, now);
  EXPECT_TRUE(store_->Attach(2, 1, 0, 9).ok());
}

TEST(SequenceJournal, FollowsReplaysAndGaps) {
  SequenceJournal journal;
  for (uint32_t p = 5; p < 9; ++p) journal.Record(p, p);
  journal.Record(7, 70);
  EXPECT_EQ(journal.token_ids, (std::vector<uint32_t>{5, 6, 70}));
  journal.Record(20, 20);
  EXPECT_EQ(journal.first_position, 20u);
  EXPECT_EQ(journal.token_ids, (std::vector<uint32_t>{20}));
}

TEST_F(SequenceStoreTest, StreamingHeadsKeepSinksAndNewestRowsOnly) {
  SelectionSpec spec = test::SmallSpec(Predictor::kExact);
  spec.head_budgets = {48, 0, 0, 0, 0, 48};
  const KvRetention retention = KvRetention::Of(spec, shape_.layout);
  CachedSequence& sequence =
      **store_->Open(1, {.sequence_id = 1, .spec = spec, .max_positions = 900, .prompt_tokens = 600, .sampling = {}});
  const size_t reserved = pool_->reserved();
  for (uint32_t first = 0; first < 600; first += 75) Append(sequence.kv, 3, first, 75);
  EXPECT_EQ(pool_->used() + pool_->reserved(), reserved) << "what was given back stays promised";
  const uint32_t newest = 600 - retention.newest_tokens;
  ExpectRows(sequence.kv, 3, 0, 4);
  ExpectRows(sequence.kv, 3, newest, 600);
  EXPECT_EQ(sequence.kv.tiles(0, 1)[3], nullptr);
  EXPECT_NE(sequence.kv.tiles(0, 0)[3], nullptr);
  std::vector<float> row(2 * shape_.layout.head_dim, -9);
  sequence.kv.CopyRows(0, 1, 100, 1, reinterpret_cast<std::byte*>(row.data()));
  EXPECT_EQ(row, std::vector<float>(row.size(), 0.0f));
  EXPECT_EQ(sequence.RestartPosition(600), 600u);

  // A fork copies them, so that neither keeps the other's blocks from going back.
  CachedSequence& fork = **store_->Fork(2, 1, 2, 900);
  for (uint32_t first = 600; first < 900; first += 100) {
    Append(sequence.kv, 3, first, 100);
    Append(fork.kv, 3, first, 100);
  }
  ExpectRows(fork.kv, 3, 900 - retention.newest_tokens, 900);
  ExpectRows(fork.kv, 3, 0, 4);
  EXPECT_EQ(sequence.RestartPosition(900 - KvRetention::kRestartSlack), 900 - KvRetention::kRestartSlack);
  EXPECT_EQ(sequence.RestartPosition(700), 0u) << "the ring below it is gone";

  // After a restart they go on; from the beginning, too.
  ASSERT_TRUE(sequence.Restart(880).ok());
  Append(sequence.kv, 3, 880, 20);
  ExpectRows(sequence.kv, 3, 900 - retention.newest_tokens, 900);
  ASSERT_TRUE(sequence.Restart(0).ok());
  Append(sequence.kv, 4, 0, 900);
  ExpectRows(sequence.kv, 4, 900 - retention.newest_tokens, 900);
  ASSERT_TRUE(store_->Release(1, 1).ok());
  ASSERT_TRUE(store_->Release(2, 1).ok());
  EXPECT_EQ(pool_->free(), pool_->total());
}

}  // namespace
}  // namespace winnow
