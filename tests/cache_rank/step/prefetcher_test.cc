#include "cache_rank/step/prefetcher.h"

#include <gtest/gtest.h>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

using Selections = std::map<uint32_t, std::vector<std::vector<uint32_t>>>;

struct Served {
  Selections selections;
  uint64_t streamed_rows = 0, prefetched_rows = 0;
  CacheRankSnapshot metrics;
};

// Serves `steps` positions of one sequence; between steps the cache rank has time for what is not urgent.
Served Serve(SelectionSpec spec, float pool_factor, int steps, size_t window_bytes = size_t{16} << 20, bool idle = true,
             uint32_t prompt = 200) {
  spec.pool_factor = pool_factor;
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  cluster.transport = NewInprocTransport({.incarnation = 4, .window_bytes = window_bytes, .ucx_tls = ""});
  cluster.transport->SetHandler(
      [&](Channel& channel, ReceivedFrame frame) { cluster.data_plane->HandleFrame(channel, frame); });
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 61, spec, prompt);
  for (int i = 0; i < steps; ++i) {
    EXPECT_TRUE(rank->Decode({sequence})) << i;
    if (idle) cluster.PumpUntil(*rank, [] { return false; });
  }
  for (const std::string& error : rank->errors) ADD_FAILURE() << error;
  cluster.data_plane->CloseLink(rank->link(), absl::OkStatus());
  const CacheRankSnapshot metrics = cluster.metrics.Snapshot();
  EXPECT_EQ(metrics.prefetched_rows, sequence->prefetched_rows) << "what is counted has been sent";
  EXPECT_EQ(metrics.streamed_rows, sequence->streamed_rows);
  return {sequence->selections, sequence->streamed_rows, sequence->prefetched_rows, metrics};
}

class PrefetcherTest : public testing::TestWithParam<Predictor> {
 protected:
  PrefetcherTest() : without_(SmallSpec(GetParam())), with_(without_) {
    with_.prefetch = Prefetch::kTemporal;
    with_.temporal_variant = TemporalVariant::kClipped;
    without_.temporal_variant = with_.temporal_variant;
  }
  SelectionSpec without_, with_;
};

TEST_P(PrefetcherTest, MovesRowsOutOfTheStepAndChangesNoSelection) {
  const Served plain = Serve(without_, 2, 30), ahead = Serve(with_, 2, 30);
  EXPECT_EQ(ahead.selections, plain.selections);
  EXPECT_EQ(plain.prefetched_rows, 0u);
  EXPECT_GT(ahead.prefetched_rows, 0u);
  EXPECT_GT(ahead.metrics.prefetch_hits, 0u);
  EXPECT_LE(ahead.metrics.prefetch_hits, ahead.prefetched_rows);
  EXPECT_LT(ahead.streamed_rows, plain.streamed_rows);
  EXPECT_EQ(ahead.metrics.selection_lookups, plain.metrics.selection_lookups);
  EXPECT_EQ(ahead.metrics.selection_hits + ahead.metrics.streamed_rows + ahead.metrics.local_rows,
            ahead.metrics.selection_lookups)
      << "prefetched rows are hits";
  RecordProperty("streamed_without", static_cast<int>(plain.streamed_rows));
  RecordProperty("streamed_with", static_cast<int>(ahead.streamed_rows));
  RecordProperty("prefetched", static_cast<int>(ahead.prefetched_rows));
}

TEST_P(PrefetcherTest, SelectsTheSameWithAnyPool) {
  const Selections expected = Serve(without_, 2, 15).selections;
  EXPECT_EQ(Serve(with_, 6, 15).selections, expected);
  const Served smallest = Serve(with_, 1, 15);
  EXPECT_EQ(smallest.selections, expected);
  EXPECT_EQ(smallest.prefetched_rows, 0u) << "a pool of the selection's size has room for nothing else";
  EXPECT_EQ(Serve(with_, 2, 15, size_t{16} << 20, /*idle=*/false).selections, expected);
}

TEST_P(PrefetcherTest, DropsWhatDoesNotFitTheSpareWindowWithoutATrace) {
  const Served plain = Serve(without_, 2, 15, /*window_bytes=*/1600);
  // Half of the window takes 5 rows of 128 bytes: some frames pass, others are dropped.
  const Served some = Serve(with_, 2, 15, /*window_bytes=*/1600);
  EXPECT_EQ(some.selections, plain.selections);
  EXPECT_GT(some.prefetched_rows, 0u);
  EXPECT_LT(some.prefetched_rows, Serve(with_, 2, 15).prefetched_rows);
  // No row of 128 bytes passes.
  const Served none = Serve(with_, 2, 15, /*window_bytes=*/250);
  EXPECT_EQ(none.selections, plain.selections);
  EXPECT_GT(none.metrics.prefetches, 0u);
  EXPECT_EQ(none.prefetched_rows, 0u);
  EXPECT_EQ(none.streamed_rows, plain.streamed_rows);
}

TEST_P(PrefetcherTest, WaitsUntilThereIsASelectionToKeep) {
  // Everything is attended at first: the pool is the identity of the dense phase, and nothing may be moved.
  const Served plain = Serve(without_, 2, 80, size_t{16} << 20, true, 40);
  const Served ahead = Serve(with_, 2, 80, size_t{16} << 20, true, 40);
  EXPECT_EQ(ahead.selections, plain.selections);
  EXPECT_LT(ahead.selections.begin()->first, 120u) << "the sparse phase is part of this";
  EXPECT_GT(ahead.selections.begin()->first, 60u) << "and the dense one";
}

TEST_P(PrefetcherTest, ServesTheSameAfterItsInferenceRankDied) {
  const Selections expected = Serve(without_, 2, 20).selections;
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* before = rank->Prefill(1, 61, with_, 200);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(rank->Decode({before}));
    cluster.PumpUntil(*rank, [] { return false; });
  }
  cluster.data_plane->CloseLink(rank->link(), absl::UnavailableError("killed"));
  auto successor = cluster.NewRank();
  FakeSequence* after = successor->Attach(*before);
  while (after->next_position < 218) {
    ASSERT_TRUE(successor->Decode({after}));
    cluster.PumpUntil(*successor, [] { return false; });
  }
  for (const std::string& error : successor->errors) ADD_FAILURE() << error;
  EXPECT_GT(after->prefetched_rows, 0u);
  for (const auto& [position, lists] : after->selections) EXPECT_EQ(lists, expected.at(position)) << position;
}

// Several sequences, whose scoring is urgent, and a slow cache rank.
TEST_P(PrefetcherTest, SelectsTheSameInABusyBatch) {
  const Selections expected = Serve(without_, 2, 12).selections;
  TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane(), .num_threads = 2, .lag = 5};
  TestCluster cluster(options);
  auto rank = cluster.NewRank();
  std::vector<FakeSequence*> rows;
  for (uint64_t id = 2; id <= 4; ++id) rows.push_back(rank->Prefill(id, id, with_, 150));
  rows.push_back(rank->Prefill(1, 61, with_, 200));
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(rank->Decode(rows));
  for (const std::string& error : rank->errors) ADD_FAILURE() << error;
  EXPECT_EQ(rows.back()->selections, expected);
}

TEST(Prefetcher, MovesWhatAnyQueryHeadIsLikelyToWantWhereEachHasItsOwnList) {
  for (const Predictor predictor : {Predictor::kExact, Predictor::kTemporal, Predictor::kDepth}) {
    SelectionSpec without = SmallSpec(predictor);
    without.list_per = ListPer::kQueryHead;
    without.temporal_variant = TemporalVariant::kClipped;
    SelectionSpec with = without;
    with.prefetch = Prefetch::kTemporal;
    const Served plain = Serve(without, 3, 30), ahead = Serve(with, 3, 30);
    EXPECT_EQ(ahead.selections, plain.selections);
    EXPECT_EQ(ahead.selections.begin()->second.size(), 3u * 4) << "a list for each query head of three layers";
    EXPECT_GT(ahead.metrics.prefetch_hits, 0u);
    EXPECT_LT(ahead.streamed_rows, plain.streamed_rows);
    EXPECT_EQ(Serve(with, 1, 30).selections, plain.selections);
  }
}

std::string NameOf(const testing::TestParamInfo<Predictor>& info) {
  constexpr const char* kNames[] = {"dense", "exact", "last", "temporal", "depth", "fixed"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Predictors, PrefetcherTest,
                         testing::Values(Predictor::kExact, Predictor::kDepth, Predictor::kTemporal, Predictor::kLast),
                         NameOf);

}  // namespace
}  // namespace winnow::test
