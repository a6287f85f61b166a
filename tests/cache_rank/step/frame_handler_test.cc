#include "cache_rank/step/frame_handler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

TEST(FrameHandler, FencesAnEarlierHolderOncePerEpochAndServesTheRestOfItsPlan) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  const SelectionSpec spec = SmallSpec(Predictor::kDepth);
  FakeSequence* lost = rank->Prefill(1, 17, spec, 150);
  FakeSequence* kept = rank->Prefill(2, 18, spec, 150);
  ASSERT_TRUE(rank->Decode({lost, kept}));
  auto other = cluster.NewRank();
  FakeSequence* taken = other->Attach(*lost);
  rank->Progress();
  rank->fenced.clear();

  rank->SendPlan({lost, kept});
  for (int layer = 0; layer < 3; ++layer) {
    rank->SendLayer(layer);
    cluster.PumpUntil(*rank, [] { return false; });
  }
  EXPECT_EQ(rank->fenced, (std::vector<std::pair<uint64_t, uint32_t>>{{1, 2}}));
  EXPECT_TRUE(lost->selections[151][0].empty());
  EXPECT_EQ(cluster.CheckSelection(*kept, 151, 2, 1, kept->selections[151][5]), "");
  EXPECT_EQ(rank->watermarks[2], 152u);
  EXPECT_EQ(cluster.data_plane->store().Find(1)->kv.watermark(), 151u) << "the earlier holder's rows were not taken";
  EXPECT_GE(cluster.metrics.Snapshot().stale_epoch_rejected, 4u);
  ASSERT_TRUE(other->Decode({taken}));
  EXPECT_EQ(rank->Errors() + other->Errors(), "");
}

TEST(FrameHandler, AnswersUnknownSequencesWithEpochZero) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 17, SmallSpec(Predictor::kDepth), 150);
  ASSERT_TRUE(cluster.data_plane->ReleaseSequence(1, 1).ok());
  EXPECT_EQ(cluster.data_plane->blocks().free(), cluster.data_plane->blocks().total());
  rank->SendPlan({sequence});
  rank->SendLayer(0);
  EXPECT_TRUE(cluster.PumpUntil(*rank, [&] { return !rank->fenced.empty(); }));
  EXPECT_EQ(rank->fenced, (std::vector<std::pair<uint64_t, uint32_t>>{{1, 0}}));
}

TEST(FrameHandler, CountsStragglersOfARankThatReattachedWithoutFencingIt) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* before = rank->Prefill(1, 17, SmallSpec(Predictor::kLast), 150);
  ASSERT_TRUE(rank->Decode({before}));
  FakeSequence old = *before;
  FakeSequence* after = rank->Attach(old);
  rank->SendPlan({&old});
  cluster.PumpUntil(*rank, [] { return false; });
  EXPECT_EQ(cluster.metrics.Snapshot().stale_epoch_rejected, 1u);
  EXPECT_TRUE(rank->fenced.empty());
  ASSERT_TRUE(rank->Decode({after}));
  EXPECT_EQ(rank->Errors(), "");
}

TEST(FrameHandler, RefusesRowsThatBreakTheProtocolAndServesTheOthers) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  const SelectionSpec spec = SmallSpec(Predictor::kExact);
  FakeSequence* good = rank->Prefill(1, 19, spec, 150);
  FakeSequence* small_pool = rank->Prefill(2, 20, spec, 150);
  small_pool->spec.pool_factor = 1;  // not what it was opened with
  FakeSequence* wrong_position = rank->Prefill(3, 21, spec, 150);
  wrong_position->next_position = 149;
  rank->SendPlan({small_pool, good, wrong_position});
  for (int layer = 0; layer < 3; ++layer) {
    rank->SendLayer(layer);
    cluster.PumpUntil(*rank, [] { return false; });
  }
  EXPECT_EQ(rank->failed, (std::vector<std::pair<uint64_t, uint32_t>>{{2, 0}, {3, 0}}));
  EXPECT_EQ(cluster.CheckSelection(*good, 150, 2, 0, good->selections[150][4]), "");
  EXPECT_EQ(rank->watermarks[1], 151u);
  EXPECT_EQ(rank->Errors(), "");
}

TEST(FrameHandler, ClosesTheLinkOfAPeerThatSendsWhatNoCorrectPeerSends) {
  for (const int kind : {0, 1, 2, 3}) {
    TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
    auto rank = cluster.NewRank();
    FakeSequence* sequence = rank->Prefill(1, 22, SmallSpec(Predictor::kDepth), 150);
    cluster.PumpCacheRank();
    if (kind == 3) rank->SendPlan({sequence, sequence});
    wire::FrameHeader header{};
    header.plan = 5;
    header.row_count = 1;
    header.sequence_id = 1;
    header.attach_epoch = 1;
    if (kind == 0) header.type = wire::FrameType::kDelta;
    if (kind == 1) header.type = wire::FrameType::kStepPlan;     // its rows are missing
    if (kind == 2) header.type = wire::FrameType::kAppendRange;  // likewise
    if (kind != 3) rank->Send(header, {});
    cluster.PumpCacheRank();
    cluster.data_plane->Tick(std::chrono::steady_clock::now());
    EXPECT_EQ(cluster.metrics.Snapshot().frames_malformed, 1u) << kind;
    EXPECT_EQ(cluster.metrics.Snapshot().channels, 0u) << kind;
    EXPECT_EQ(cluster.data_plane->store().detached(), 1u) << kind;
    cluster.data_plane->Tick(std::chrono::steady_clock::now() + std::chrono::hours(1));
    EXPECT_EQ(cluster.data_plane->blocks().free(), cluster.data_plane->blocks().total()) << kind;
  }
}

TEST(FrameHandler, ClosesTheLinkOfAPeerThatSendsQueriesBeyondTheSequence) {
  for (const uint32_t position : {400u, UINT32_MAX}) {
    TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
    auto rank = cluster.NewRank();
    rank->Prefill(1, 22, SmallSpec(Predictor::kTemporal), 150, /*max_positions=*/400);
    cluster.PumpCacheRank();
    wire::FrameHeader header{};
    header.type = wire::FrameType::kPromptQueries;
    header.sequence_id = 1;
    header.attach_epoch = 1;
    header.apply_position = position;
    header.row_count = 1;
    const KvLayout& layout = cluster.shape.layout;
    rank->Send(header, std::vector<std::byte>(layout.num_query_heads * layout.head_dim * sizeof(float)));
    cluster.PumpCacheRank();
    cluster.data_plane->Tick(std::chrono::steady_clock::now());
    EXPECT_EQ(cluster.metrics.Snapshot().frames_malformed, 1u) << position;
    EXPECT_EQ(cluster.metrics.Snapshot().channels, 0u) << position;
  }
}

// Of a sequence that keeps no state, beyond its positions, and that follows nothing which has come.
TEST(FrameHandler, ClosesTheLinkOfAPeerThatSendsAStateWhichCannotBe) {
  for (const auto& [state_bytes, position, offset] : {std::tuple(0u, 64u, 0u), {5000u, 401u, 0u}, {5000u, 64u, 100u}}) {
    TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
    auto rank = cluster.NewRank();
    const auto opened = cluster.data_plane->OpenSequence(rank->link(), {.sequence_id = 1,
                                                                        .spec = SmallSpec(Predictor::kDense),
                                                                        .max_positions = 400,
                                                                        .prompt_tokens = 22,
                                                                        .state_bytes = state_bytes});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    wire::FrameHeader header{};
    header.type = wire::FrameType::kState;
    header.sequence_id = 1;
    header.attach_epoch = 1;
    header.apply_position = position;
    header.plan = offset;
    rank->Send(header, std::vector<std::byte>(1000));
    cluster.PumpCacheRank();
    cluster.data_plane->Tick(std::chrono::steady_clock::now());
    EXPECT_EQ(cluster.metrics.Snapshot().frames_malformed, 1u) << position;
    EXPECT_EQ(cluster.metrics.Snapshot().channels, 0u) << position;
  }
}

// Its first row is of another shard than what is here: were it served for the second row's sake, the parts of a Layer
// frame would be read past their ends.
TEST(FrameHandler, ClosesTheLinkOfAPeerThatPlansASequenceTwiceAlsoWhereOneRowIsRefused) {
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  const FakeSequence* sequence = rank->Prefill(1, 22, SmallSpec(Predictor::kDepth), 150);
  cluster.PumpCacheRank();
  const KvLayout& layout = cluster.shape.layout;
  uint32_t pool_slots = 0;
  for (size_t list = 0; list < sequence->lists.size(); ++list) pool_slots += sequence->Pool(list);
  wire::PlanRow rows[2] = {};
  for (wire::PlanRow& row : rows) {
    row.sequence_id = 1;
    row.attach_epoch = 1;
    row.position = 150;
    row.pool_slots = pool_slots;
    row.num_kv_heads = static_cast<uint16_t>(layout.num_kv_heads);
    row.num_layers = static_cast<uint16_t>(layout.num_layers);
  }
  rows[0].num_kv_heads = 1;
  std::vector<std::byte> payload(sizeof rows);
  std::memcpy(payload.data(), rows, sizeof rows);
  wire::FrameHeader header{};
  header.type = wire::FrameType::kStepPlan;
  header.plan = 77;
  header.row_count = 2;
  rank->Send(header, payload);
  cluster.PumpCacheRank();
  cluster.data_plane->Tick(std::chrono::steady_clock::now());
  EXPECT_EQ(cluster.metrics.Snapshot().frames_malformed, 1u);
  EXPECT_EQ(cluster.metrics.Snapshot().channels, 0u);
}

}  // namespace
}  // namespace winnow::test
