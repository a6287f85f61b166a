// What a cache rank says of its sequences beside the rows that it sends.
#include <gtest/gtest.h>

#include <cmath>

#include "cache_rank/step/data_plane.h"
#include "tests/cache_rank/fake_rank.h"

namespace winnow::test {
namespace {

// Distinct blocks that the selections of positions [first, last] hold, over all lists.
uint64_t BlocksSelected(const FakeSequence& sequence, uint32_t first, uint32_t last) {
  std::set<std::pair<size_t, uint32_t>> blocks;
  for (uint32_t position = first; position <= last; ++position) {
    const auto& lists = sequence.selections.at(position);
    for (size_t list = 0; list < lists.size(); ++list) {
      for (const uint32_t row : lists[list]) blocks.insert({list, row / kBlockTokens});
    }
  }
  return blocks.size();
}

TEST(DataPlaneReports, ReportsTheWorkingSetOfTheLastTwelveSelections) {
  SelectionSpec spec = SmallSpec(Predictor::kExact);
  spec.budget_tokens = 8;
  spec.transfer = Transfer::kFull;
  TestCluster cluster({.data_plane = TestCluster::SmallDataPlane()});
  auto rank = cluster.NewRank();
  FakeSequence* sequence = rank->Prefill(1, 41, spec, 380, 440);
  EXPECT_EQ(rank->working_set_rows[1], 0u);
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(rank->Decode({sequence})) << rank->Errors();
  cluster.PumpCacheRank();
  rank->Progress();
  // The last layer of the last position may not be part of it yet.
  const uint64_t reported = rank->working_set_rows[1];
  EXPECT_EQ(reported % kBlockTokens, 0u);
  EXPECT_GE(reported / kBlockTokens, BlocksSelected(*sequence, 409 - 11, 408));
  EXPECT_LE(reported / kBlockTokens, BlocksSelected(*sequence, 409 - 12, 409));
  EXPECT_GT(BlocksSelected(*sequence, 409 - 11, 408), BlocksSelected(*sequence, 408, 408)) << "selections never change";
  EXPECT_EQ(rank->fast_rows_bytes, wire::kOneTier);
  EXPECT_EQ(rank->Errors(), "");
}

TEST(DataPlaneReports, SharesFastMemoryOutByTheNumberOfSequences) {
  TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
  options.data_plane.tiers.fast.memory_bytes = size_t{4} << 20;
  TestCluster cluster(options);
  const auto room = [&] { return cluster.data_plane->tiers()->fast().room_for_copies(); };
  auto one = cluster.NewRank(), other = cluster.NewRank();
  std::vector<FakeSequence*> ones = {one->Prefill(1, 41, SmallSpec(Predictor::kExact), 180)};
  one->Progress();
  EXPECT_EQ(one->fast_rows_bytes, room()) << "nobody else has sequences";
  std::vector<FakeSequence*> others;
  for (uint64_t id = 2; id <= 3; ++id) others.push_back(other->Prefill(id, id, SmallSpec(Predictor::kExact), 180));
  ASSERT_TRUE(one->Decode(ones));
  ASSERT_TRUE(other->Decode(others));
  for (FakeRank* rank : {one.get(), other.get()}) {
    cluster.PumpCacheRank();
    rank->Progress();
  }
  EXPECT_EQ(one->fast_rows_bytes, room() / 3);
  EXPECT_EQ(other->fast_rows_bytes, room() / 3 * 2);
}

TEST(DataPlaneReports, SaysWhichCapturedMassesAreLowerBounds) {
  for (const Scorer scorer : {Scorer::kToken, Scorer::kPageMinmax, Scorer::kPageCuboid}) {
    TestCluster::Options options{.data_plane = TestCluster::SmallDataPlane()};
    options.data_plane.selector.mass_interval = 1;
    TestCluster cluster(options);
    auto rank = cluster.NewRank();
    SelectionSpec spec = SmallSpec(Predictor::kExact);
    spec.scorer = scorer;
    FakeSequence* sequence = rank->Prefill(1, 27, spec, 200);
    for (int i = 0; i < 12; ++i) ASSERT_TRUE(rank->Decode({sequence}));
    std::set<std::pair<uint32_t, size_t>> measured;
    for (uint32_t position = 201; position < 212; ++position) {
      for (size_t list = 0; list < sequence->lists.size(); ++list) {
        const double exact = cluster.Mass(*sequence, position - 1, static_cast<int>(list) / 2,
                                          static_cast<int>(list) % 2, sequence->selections[position - 1][list]);
        const float mass = sequence->masses[position][list];
        measured.insert({position, list});
        EXPECT_GT(mass, 0);
        EXPECT_LE(mass, exact + 2e-3);
        if (scorer == Scorer::kToken) {
          EXPECT_NEAR(mass, exact, 2e-3);
        }
      }
    }
    EXPECT_EQ(sequence->bounded, scorer == Scorer::kToken ? decltype(measured)() : measured);
    EXPECT_EQ(rank->Errors(), "");
  }
}

}  // namespace
}  // namespace winnow::test
