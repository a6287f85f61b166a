// What a plan says of memory, against the objects that admit sequences.
#include "cmd/plan/cluster_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "absl/strings/str_format.h"
#include "cache_rank/store/kv_room.h"
#include "common/selection/presets.h"
#include "inference_rank/memory/slot_pool.h"
#include "inference_rank/memory/working_set.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;
// An H200 that nobody else uses.
const MemoryThere kOneH200 = {.host_bytes = 2048 * kGib, .gpu_bytes = 139 * kGib, .gpus = 1, .gpu_name = "H200"};

UpOptions Qwen14B(uint32_t budget) {
  UpOptions options;
  options.model = "synthetic:qwen3-14b";
  options.device = {DeviceChoice::Kind::kGpu, 0};
  options.selection.budget = budget;
  options.max_context = 32768;
  options.max_running = 256;
  return options;
}

// Beside a cache GPU a sequence has pools of four budgets: 32,768 rows, all of its context. Counted by the budget alone
// 80 would fit.
TEST(ClusterMemory, PoolsAreCountedAndNotBudgets) {
  UpOptions options = Qwen14B(8192);
  options.cache_device = {DeviceChoice::Kind::kGpu, 1};
  MemoryThere there = kOneH200;
  there.gpus = 5;
  options.cache_ranks = 4;
  const ClusterMemory memory = *PlanClusterMemory(options, there);
  ASSERT_TRUE(memory.fits()) << memory.status;
  // Sinks 4, ring 128 and pool: 32,900 rows are 515 pages of 64; 320 lists of 512 bytes a row.
  const uint64_t sequence_bytes = uint64_t{515} * 64 * 320 * 512;
  const MemoryPlan& plan = *memory.inference[0].plan;
  EXPECT_EQ(memory.inference[0].sequences, plan.slot_bytes / sequence_bytes);
  // 139 GiB less CUDA's, 27.5 of weights, 10 of two prompts and some 2 of activations, nine tenths of the rest.
  EXPECT_GE(memory.inference[0].sequences, 16u);
  EXPECT_LE(memory.inference[0].sequences, 20u);
  EXPECT_EQ(memory.sequences, memory.inference[0].sequences);
  EXPECT_EQ(memory.limited_by, "the slots of inference-0");
  // With pools of one budget four times as many have room.
  options.selection.pool_factor = 1;
  EXPECT_GE(PlanClusterMemory(options, there)->sequences, 3.5 * memory.sequences);
}

TEST(ClusterMemory, GpusThatShareAModelHoldMore) {
  UpOptions options = Qwen14B(2048);
  options.selection.specification = "dense";
  const ClusterMemory one = *PlanClusterMemory(options, kOneH200);
  options.device = *ParseDeviceChoice("cuda:0,1");
  MemoryThere there = kOneH200;
  there.gpus = 2;
  const ClusterMemory two = *PlanClusterMemory(options, there);
  ASSERT_TRUE(one.fits() && two.fits());
  EXPECT_EQ(two.inference[0].gpus, 2);
  EXPECT_NEAR(two.inference[0].plan->weights_bytes, one.inference[0].plan->weights_bytes / 2.0, 1e9)
      << "each has the whole embedding";
  EXPECT_GT(two.sequences, 2 * one.sequences);
}

TEST(ClusterMemory, AModelThatIsTooLargeIsRefusedAsItsRankRefusesIt) {
  UpOptions options = Qwen14B(2048);
  MemoryThere there = kOneH200;
  there.gpu_bytes = 24 * kGib;
  const ClusterMemory memory = *PlanClusterMemory(options, there);
  EXPECT_EQ(memory.status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(memory.status.message());
  EXPECT_THAT(message, HasSubstr("inference-0: the model does not fit: weights 28"));
  EXPECT_THAT(message, HasSubstr("MiB of the memory of the H200 available; "));
  EXPECT_THAT(message, HasSubstr(" are missing: share the model out with --tensor-parallel"));
  EXPECT_EQ(memory.sequences, 0u);
  EXPECT_EQ(message.substr(message.find("the model")), memory.inference[0].plan.status().message());
}

class OfSmallModels : public testing::Test {
 protected:
  // Options of a small random model on CPUs, with sizes from a seed.
  UpOptions Options(uint32_t seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    TinyModel model;
    model.num_layers = draw(1, 4);
    model.num_kv_heads = 1 << draw(0, 2);
    model.num_query_heads = model.num_kv_heads * draw(1, 3);
    model.head_dim = 16 << draw(0, 1);
    model.max_position_embeddings = 4096;
    const std::string path = dir_.path() + "/" + std::to_string(seed);
    std::filesystem::create_directory(path);
    WriteTinyCheckpoint(model, path);
    UpOptions options;
    options.model = path;
    options.device = {DeviceChoice::Kind::kCpu, 0};
    options.max_context = static_cast<uint32_t>(draw(500, 4096));
    options.max_running = 1000;
    options.selection.specification = std::vector<std::string>{"winnow", "dense", "quest", "async-token"}[draw(0, 3)];
    options.selection.budget = static_cast<uint32_t>(16 * draw(1, 32));
    options.selection.pool_factor = static_cast<float>(draw(1, 4));
    options.slot_memory_bytes = int64_t{1} << draw(23, 26);
    options.cache_memory_bytes = int64_t{1} << draw(23, 26);
    return options;
  }

  TempDir dir_;
};

// The most that a plan says there is room for is admitted, and one more is not.
TEST_F(OfSmallModels, ThatManySequencesAreAdmittedAndNotOneMore) {
  const MemoryThere there{.host_bytes = 8 * kGib};
  int with_several = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const UpOptions options = Options(seed);
    const uint32_t positions = options.max_context - seed;
    const ClusterMemory memory = PlanClusterMemory(options, there, positions).value();
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", memory.status.message()));
    if (!memory.fits()) {
      EXPECT_EQ(memory.sequences, 0u);
      continue;
    }
    const KvLayout& layout = memory.model.layout;
    const SelectionSpec& spec = memory.model.selection;

    SlotPool slots = SlotPool::Create(layout.row_bytes(), memory.inference[0].plan->slot_pages).value();
    std::vector<WorkingSet> running;
    for (uint32_t i = 0; i < memory.inference[0].sequences; ++i) {
      absl::StatusOr<WorkingSet> set = WorkingSet::Create(slots, layout, spec, positions, 1);
      ASSERT_TRUE(set.ok()) << i << ": " << set.status();
      running.push_back(*std::move(set));
    }
    if (memory.inference[0].sequences < options.max_running) {
      EXPECT_FALSE(WorkingSet::Create(slots, layout, spec, positions, 1).ok());
    }

    const auto kv_bytes = static_cast<size_t>(memory.cache[0].plan->kv_bytes);
    const std::unique_ptr<KvBlockPool> pool = KvBlockPool::Create(kv_bytes, layout).value();
    const KvRoom& room = *memory.cache[0].room;
    EXPECT_EQ(room.total_blocks, pool->total());
    std::vector<KvBlockReservation> stored;
    for (uint64_t i = 0; i < memory.cache[0].sequences; ++i) {
      absl::StatusOr<KvBlockReservation> blocks = pool->Reserve(room.demand.blocks, room.demand.index_bytes);
      ASSERT_TRUE(blocks.ok()) << i << ": " << blocks.status();
      stored.push_back(*std::move(blocks));
    }
    const absl::Status one_more = pool->Reserve(room.demand.blocks, room.demand.index_bytes).status();
    EXPECT_THAT(std::string(one_more.message()),
                HasSubstr(absl::StrCat(room.demand.blocks, " blocks of ", room.block_bytes, " bytes wanted")));
    EXPECT_EQ(memory.sequences, std::min<uint64_t>(running.size(), stored.size()));
    with_several += memory.sequences > 1;
  }
  EXPECT_GT(with_several, 10) << "the sizes must try something";
}

// Exactly what is needed is enough, and a byte less is not, with the same figures.
TEST_F(OfSmallModels, TheMemoryThatAPlanAddsUpToIsEnoughAndNoByteLess) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    UpOptions options = Options(seed);
    options.prefill.memory_bytes = 64 << 20;
    options.slot_memory_bytes = 256 << 20;
    const ClusterMemory memory = *PlanClusterMemory(options, {.host_bytes = 8 * kGib});
    ASSERT_TRUE(memory.fits()) << memory.status;
    const MemoryPlan& plan = *memory.inference[0].plan;
    EXPECT_EQ(plan.least_bytes, plan.total_bytes()) << "nothing is automatic";
    const MemoryNeeds& needs = memory.inference[0].needs;
    EXPECT_TRUE(PlanMemory(needs, plan.total_bytes()).ok());
    const absl::Status refused = PlanMemory(needs, plan.total_bytes() - 1).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrFormat("= %.1f MiB of ", static_cast<double>(plan.total_bytes()) / (1 << 20))));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--slot-memory"));
  }
}

TEST_F(OfSmallModels, RanksThatFitOneByOneMayNotFitTogether) {
  UpOptions options = Options(1);
  options.slot_memory_bytes = options.cache_memory_bytes = 3 * static_cast<int64_t>(kGib);
  EXPECT_TRUE(PlanClusterMemory(options, {.host_bytes = 7 * kGib})->fits());
  const ClusterMemory memory = *PlanClusterMemory(options, {.host_bytes = 5 * kGib});
  EXPECT_TRUE(memory.inference[0].plan.ok() && memory.cache[0].plan.ok());
  EXPECT_EQ(memory.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status.message()), HasSubstr("do not fit its memory together: inference-0 3."));
  EXPECT_THAT(std::string(memory.status.message()), HasSubstr("cache-0 3.00 GiB"));
  EXPECT_THAT(std::string(memory.status.message()), HasSubstr("of 5.00 GiB"));
  // What is automatic is less where less is there.
  options.slot_memory_bytes = 0;
  EXPECT_TRUE(PlanClusterMemory(options, {.host_bytes = 5 * kGib})->fits());
}

TEST_F(OfSmallModels, WhatNoMachineCouldStartIsRefused) {
  UpOptions options = Options(2);
  EXPECT_TRUE(CheckRanksFit(options).ok());
  options.slot_memory_bytes = 1;
  EXPECT_THAT(std::string(CheckRanksFit(options).message()), HasSubstr("raise --slot-memory"));
}

// The index of the keys lies in the fast tier, which then is what ends it.
TEST_F(OfSmallModels, AFastTierLimitsSequencesByTheirIndex) {
  UpOptions options = Options(3);
  options.selection.specification = "async-token";
  options.max_context = 4096;
  options.cache_memory_bytes = static_cast<int64_t>(kGib);
  const KvRoom one = *PlanClusterMemory(options, {.host_bytes = 8 * kGib})->cache[0].room;
  options.fast_memory_bytes = 64 << 20;
  const ClusterMemory memory = *PlanClusterMemory(options, {.host_bytes = 8 * kGib});
  ASSERT_TRUE(memory.fits()) << memory.status;
  const KvRoom& two = *memory.cache[0].room;
  EXPECT_EQ(two.total_blocks, one.total_blocks);
  EXPECT_LT(two.fast_bytes, size_t{64} << 20) << "some is for staging";
  EXPECT_EQ(two.sequences(), two.fast_bytes / two.demand.index_bytes);
  EXPECT_LT(two.sequences(), one.sequences());
}

TEST_F(OfSmallModels, ShardsOfASequenceLieOnSeveralCacheRanks) {
  UpOptions options = Options(4);
  options.cache_ranks = 2;
  const uint64_t whole = PlanClusterMemory(options, {.host_bytes = 8 * kGib})->cache[0].sequences;
  options.placement.cache_shards = 2;
  const ClusterMemory memory = *PlanClusterMemory(options, {.host_bytes = 8 * kGib});
  EXPECT_EQ(memory.cache[0].shards, 2);
  EXPECT_GE(memory.cache[0].sequences, whole) << "two halves on each in the place of one whole";
}

}  // namespace
}  // namespace winnow
