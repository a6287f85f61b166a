// The memory of rendered ranks, against the plans that these start by.
#include "cmd/plan/rank_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmd/plan/cluster_memory.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kGib = int64_t{1} << 30;

class RankSizesTest : public testing::Test {
 protected:
  void SetUp() override {
    TinyModel model;
    model.max_position_embeddings = 4096;
    WriteTinyCheckpoint(model, dir_.path());
    options_.model = dir_.path();
    options_.device = options_.cache_device = {DeviceChoice::Kind::kCpu, 0};
    options_.selection.specification = "winnow";
    options_.selection.budget = 256;
    options_.max_running = 8;
  }

  // As a rank plans in a container that may take so much, of which a tenth is in use before.
  ClusterMemory StartedIn(const RankSizes& sizes, int64_t limit_bytes) {
    UpOptions options = options_;
    if (sizes.slot_memory_bytes > 0) options.slot_memory_bytes = sizes.slot_memory_bytes;
    if (sizes.prefill_memory_bytes > 0) options.prefill.memory_bytes = sizes.prefill_memory_bytes;
    if (sizes.cache_memory_bytes > 0) options.cache_memory_bytes = sizes.cache_memory_bytes;
    return PlanClusterMemory(options, {.host_bytes = static_cast<uint64_t>(limit_bytes / 10 * 9)}).value();
  }

  TempDir dir_;
  UpOptions options_;
};

TEST_F(RankSizesTest, WhatALimitIsComputedFromFitsIt) {
  for (const int64_t planned : {kMib, 300 * kMib, 7 * kGib + 12345, 900 * kGib}) {
    const int64_t limit = LimitFor(planned);
    EXPECT_EQ(limit % kMib, 0);
    EXPECT_GE(limit, planned + planned / 8 + 256 * kMib);
    EXPECT_GE(PlannedWithin(limit), planned - kMib);
    EXPECT_LE(LimitFor(PlannedWithin(limit)), limit);
  }
  EXPECT_EQ(PlannedWithin(100 * kMib), 0);
}

TEST_F(RankSizesTest, RanksStartWithinTheirLimitsWithAllThatTheirOptionsAskFor) {
  const RankSizes sizes = SizeRanks(options_, 0).value();
  const ClusterMemory inference = StartedIn(sizes, sizes.inference_limit_bytes);
  ASSERT_TRUE(inference.inference[0].plan.ok()) << inference.inference[0].plan.status();
  EXPECT_EQ(inference.inference[0].sequences, options_.max_running) << "of the longest context";
  const ClusterMemory cache = StartedIn(sizes, sizes.cache_limit_bytes);
  ASSERT_TRUE(cache.cache[0].plan.ok()) << cache.cache[0].plan.status();
  EXPECT_EQ(cache.cache[0].sequences, options_.max_running);
}

TEST_F(RankSizesTest, WhatIsSaidStaysAndIsWhatALimitIsOf) {
  options_.slot_memory_bytes = 2 * kGib;
  options_.prefill.memory_bytes = kGib;
  options_.cache_memory_bytes = 5 * kGib;
  const RankSizes sizes = SizeRanks(options_, 0).value();
  EXPECT_EQ(sizes.slot_memory_bytes, 0);
  EXPECT_EQ(sizes.prefill_memory_bytes, 0);
  EXPECT_EQ(sizes.cache_memory_bytes, 0);
  EXPECT_EQ(sizes.cache_limit_bytes, LimitFor(5 * kGib));
  EXPECT_GT(sizes.inference_limit_bytes, LimitFor(3 * kGib));
  EXPECT_LT(sizes.inference_limit_bytes, LimitFor(3 * kGib + 100 * kMib)) << "weights and activations are small";
}

TEST_F(RankSizesTest, ALimitThatIsGivenIsSharedOutByThePlan) {
  options_.max_running = 4096;
  const RankSizes sizes = SizeRanks(options_, kGib).value();
  EXPECT_EQ(sizes.inference_limit_bytes, kGib);
  EXPECT_EQ(sizes.cache_memory_bytes, PlannedWithin(kGib)) << "nothing else is in a cache rank's memory";
  const ClusterMemory inference = StartedIn(sizes, kGib);
  ASSERT_TRUE(inference.inference[0].plan.ok()) << inference.inference[0].plan.status();
  const auto planned = static_cast<int64_t>(inference.inference[0].plan->total_bytes());
  EXPECT_LE(planned, PlannedWithin(kGib));
  EXPECT_GT(planned, PlannedWithin(kGib) / 10 * 8);
  EXPECT_TRUE(StartedIn(sizes, kGib).cache[0].plan.ok());
}

TEST_F(RankSizesTest, ALimitThatIsTooSmallIsRefusedWithTheArithmetic) {
  options_.cache_memory_bytes = kGib;
  const absl::Status cache = SizeRanks(options_, kGib).status();
  EXPECT_EQ(cache.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(cache.message()),
              AllOf(HasSubstr("cache-0, which may take 1024 MiB, 341 of them headroom: "), HasSubstr("are missing")));
  options_.cache_memory_bytes = 64 * kMib;
  options_.slot_memory_bytes = kGib;
  const absl::Status inference = SizeRanks(options_, kGib).status();
  EXPECT_THAT(std::string(inference.message()), HasSubstr("inference-0, which may take 1024 MiB"));
  EXPECT_THAT(std::string(inference.message()), HasSubstr("lower --max-context"));
  EXPECT_FALSE(SizeRanks(options_, 100 * kMib).ok());
}

TEST_F(RankSizesTest, CacheRanksHaveRoomForTheSequencesOfAllMachines) {
  const int64_t one = SizeRanks(options_, 0)->cache_memory_bytes;
  options_.inference_ranks = 4;
  options_.cache_ranks = 2;
  EXPECT_EQ(SizeRanks(options_, 0)->cache_memory_bytes, 2 * one);
  // The same on a machine with one of the cache ranks alone.
  options_.part = {.host = "10.0.0.2", .has_router = false, .all_cache_ranks = 2, .all_decoding_ranks = 4};
  options_.inference_ranks = 0;
  options_.cache_ranks = 1;
  const RankSizes sizes = SizeRanks(options_, 0).value();
  EXPECT_EQ(sizes.cache_memory_bytes, 2 * one);
  EXPECT_EQ(sizes.inference_limit_bytes, 0) << "none is here";
}

TEST_F(RankSizesTest, ARankThatHostsItsCacheHasMemoryForBoth) {
  options_.transport = TransportKind::kInproc;
  options_.cache_memory_bytes = kGib;
  const RankSizes sizes = SizeRanks(options_, 0).value();
  EXPECT_GT(sizes.inference_limit_bytes, LimitFor(kGib + sizes.slot_memory_bytes + sizes.prefill_memory_bytes));
  options_.cache_memory_bytes = 0;
  const RankSizes limited = SizeRanks(options_, 2 * kGib).value();
  EXPECT_LE(limited.cache_memory_bytes + limited.slot_memory_bytes + limited.prefill_memory_bytes,
            PlannedWithin(2 * kGib));
}

TEST_F(RankSizesTest, NothingIsSaidOfRanksOnGpus) {
  options_.model = "synthetic:qwen3-14b";
  options_.device = {DeviceChoice::Kind::kGpu, 0};
  options_.cache_device = {DeviceChoice::Kind::kGpu, 1};
  const RankSizes sizes = SizeRanks(options_, 0).value();
  EXPECT_EQ(sizes.inference_limit_bytes, 0);
  EXPECT_EQ(sizes.cache_limit_bytes, 0);
  EXPECT_EQ(sizes.slot_memory_bytes, 0);
  EXPECT_EQ(sizes.cache_memory_bytes, 0);
  EXPECT_EQ(SizeRanks(options_, 64 * kGib)->inference_limit_bytes, 64 * kGib) << "but what is given";
}

}  // namespace
}  // namespace winnow
