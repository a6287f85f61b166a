#include "cache_rank/stream/streamer.h"

#include <gtest/gtest.h>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

TEST(Streamer, SplitsEntriesOverFramesAndLosesNothing) {
  TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
  options.data_plane.streamer.frame_bytes = 1000;
  TestCluster cluster(options);
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 30, SmallSpec(Predictor::kExact), 340);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(rank->Decode({sequence}));
  EXPECT_TRUE(rank->errors.empty()) << rank->errors[0];
  // What is streamed alone, at 7 rows of 128 bytes to a frame.
  EXPECT_GE(rank->delta_frames, sequence->streamed_rows / 7);
  EXPECT_GE(rank->delta_frames, 18u) << "the case must need splitting";
  EXPECT_LE(rank->largest_delta, 1000u);
  for (const auto& [position, lists] : sequence->selections) {
    for (int list = 0; list < 6; ++list)
      EXPECT_EQ(cluster.CheckSelection(*sequence, position, list / 2, list % 2, lists[list]), "");
  }
}

TEST(Streamer, PutsEntriesOfOneLayerIntoOneFrame) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  const SelectionSpec spec = SmallSpec(Predictor::kExact);
  std::vector<FakeSequence*> rows;
  for (uint64_t id = 1; id <= 4; ++id) rows.push_back(rank->Prefill(id, id, spec, 150));
  ASSERT_TRUE(rank->Decode(rows));
  EXPECT_EQ(rank->delta_frames, 3u);
}

// The cache rank's window is what bounds it here: the peer progresses only now and then.
TEST(Streamer, WaitsForWindowWithABoundedQueueAndKeepsTheOrder) {
  TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
  options.data_plane.streamer.frame_bytes = 2048;
  options.data_plane.streamer.max_queued = 8;
  TestCluster cluster(options, /*num_layers=*/3);
  // A transport of the cache rank with room for two frames.
  cluster.transport = NewInprocTransport({.incarnation = 2, .window_bytes = 4096, .ucx_tls = ""});
  cluster.transport->SetHandler(
      [&](Channel& channel, ReceivedFrame frame) { cluster.data_plane->HandleFrame(channel, frame); });
  auto rank = cluster.NewRank();
  const SelectionSpec spec = SmallSpec(Predictor::kLast);
  std::vector<FakeSequence*> rows;
  for (uint64_t id = 1; id <= 6; ++id) {
    rows.push_back(rank->Prefill(id, id, spec, 150));
    cluster.PumpUntil(*rank, [] { return false; });
  }
  rank->SendPlan(rows);
  cluster.PumpCacheRank();
  // 6 rows x 3 layers x 2 heads = 36 entries are due; the peer takes none yet.
  const uint64_t queued = cluster.metrics.Snapshot().queued_frames;
  EXPECT_TRUE(cluster.data_plane->HasBacklog());
  EXPECT_LE(queued, 8u + 16 * 2) << "at most one batch above the bound";
  EXPECT_GE(queued, 8u);
  EXPECT_LT(cluster.metrics.Snapshot().streamed_rows, 36u * 48);
  ASSERT_TRUE(cluster.PumpUntil(
      *rank, [&] { return rank->DeltasComplete(2) && rank->DeltasComplete(1) && rank->DeltasComplete(0); }));
  EXPECT_TRUE(rank->errors.empty()) << rank->errors[0];
  for (int layer = 0; layer < 3; ++layer) rank->SendLayer(layer);
  cluster.PumpUntil(*rank, [] { return false; });
  rank->FinishPlan();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(rank->Decode(rows));
  EXPECT_TRUE(rank->errors.empty()) << rank->errors[0];
  EXPECT_FALSE(cluster.data_plane->HasBacklog());
  EXPECT_EQ(cluster.metrics.Snapshot().queued_frames, 0u);
  for (FakeSequence* sequence : rows) {
    EXPECT_EQ(cluster.CheckSelection(*sequence, 152, 1, 1, sequence->selections[152][3]), "");
  }
  cluster.data_plane->CloseLink(rank->link(), absl::OkStatus());
}

// A peer keeps rows of a sequence that it has no time for; steps of the others go on meanwhile.
TEST(Streamer, DeltasPassRefillsThatThePeerKeeps) {
  TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
  options.data_plane.streamer.frame_bytes = 4096;
  TestCluster cluster(options);
  cluster.transport = NewInprocTransport({.incarnation = 4, .window_bytes = size_t{64} << 10, .ucx_tls = ""});
  cluster.transport->SetHandler(
      [&](Channel& channel, ReceivedFrame frame) { cluster.data_plane->HandleFrame(channel, frame); });
  auto rank = cluster.NewRank(), other = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 30, SmallSpec(Predictor::kExact), 200);
  other->Prefill(2, 31, SmallSpec(Predictor::kExact), 340);
  cluster.PumpUntil(*other, [] { return false; });
  rank->keeps_refills = true;
  ASSERT_TRUE(cluster.data_plane->AttachSequence(rank->link(), 2, UINT32_MAX).ok());
  cluster.PumpUntil(*rank, [] { return false; });
  EXPECT_TRUE(cluster.data_plane->HasBacklog()) << "the case must need more than the window";
  EXPECT_FALSE(rank->kept_refills.empty());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(rank->Decode({sequence}));
  EXPECT_TRUE(rank->errors.empty()) << rank->errors[0];
  EXPECT_TRUE(cluster.PumpUntil(*rank, [&] {
    rank->kept_refills.clear();
    return !cluster.data_plane->HasBacklog();
  }));
  cluster.data_plane->CloseLink(rank->link(), absl::OkStatus());
  cluster.data_plane->CloseLink(other->link(), absl::OkStatus());
}

TEST(Streamer, DropsWhatBelongsToNobodyAnyMore) {
  TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
  options.data_plane.streamer.frame_bytes = 2048;
  TestCluster cluster(options);
  cluster.transport = NewInprocTransport({.incarnation = 3, .window_bytes = 4096, .ucx_tls = ""});
  cluster.transport->SetHandler(
      [&](Channel& channel, ReceivedFrame frame) { cluster.data_plane->HandleFrame(channel, frame); });
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 31, SmallSpec(Predictor::kLast), 150);
  cluster.PumpUntil(*rank, [] { return false; });
  rank->SendPlan({sequence});
  cluster.PumpCacheRank();
  ASSERT_TRUE(cluster.data_plane->HasBacklog());
  ASSERT_TRUE(cluster.data_plane->ReleaseSequence(1, 1).ok());
  EXPECT_EQ(cluster.data_plane->blocks().free(), cluster.data_plane->blocks().total());
  EXPECT_TRUE(cluster.PumpUntil(*rank, [&] { return !cluster.data_plane->HasBacklog(); }));
  EXPECT_FALSE(rank->DeltasComplete(2));
  EXPECT_TRUE(rank->errors.empty());
  cluster.data_plane->CloseLink(rank->link(), absl::OkStatus());
}

}  // namespace
}  // namespace winnow::test
