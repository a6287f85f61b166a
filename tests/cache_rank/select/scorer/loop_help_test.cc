#include "cache_rank/select/scorer/loop_help.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <vector>

#include "cache_rank/select/scorer/token_scorer.h"
#include "kernels/cpu/thread_team.h"

namespace winnow {
namespace {

bool SameBits(const void* a, const void* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

// Runs `tasks` of a team, whose other workers help: task(index, the loops of its worker).
template <typename Task>
void RunHelped(ThreadTeam& team, LoopHelp& help, int tasks, const Task& task) {
  help.Begin(tasks);
  team.ParallelFor(tasks + team.size() - 1, [&](int index, int worker) {
    if (index >= tasks) return help.Help();
    task(index, help.loop(worker));
    help.EndTask();
  });
}

TEST(LoopHelpTest, EachPartOfALoopRunsOnceWhoeverTakesIt) {
  ThreadTeam team(4);
  LoopHelp help(team.size());
  for (int round = 0; round < 300; ++round) {
    const int tasks = 1 + round % 6;
    std::vector<std::atomic<int>> runs(tasks * 50);
    std::atomic<int> unfinished{0};
    RunHelped(team, help, tasks, [&](int task, LoopHelp::Loop& loop) {
      for (int i = 0; i < 50; i += 10) {
        loop.Run(10, [&](size_t part) { ++runs[task * 50 + i + part]; });
        for (int j = 0; j < i + 10; ++j) unfinished += runs[task * 50 + j] != 1;
      }
    });
    EXPECT_EQ(unfinished, 0) << "a loop returns when all of its parts have run";
    for (const std::atomic<int>& of_part : runs) ASSERT_EQ(of_part, 1) << "round " << round;
  }
}

TEST(LoopHelpTest, AWorkerWithoutATaskTakesPartsOfThoseThatHaveOne) {
  ThreadTeam team(2);
  LoopHelp help(team.size());
  // Each of two parts waits for the other: one thread alone would never come back.
  std::atomic<int> begun{0};
  RunHelped(team, help, 1, [&](int, LoopHelp::Loop& loop) {
    while (!loop.has_help()) sched_yield();
    loop.Run(2, [&](size_t) {
      ++begun;
      while (begun < 2) sched_yield();
    });
    EXPECT_TRUE(loop.has_help());
  });
  EXPECT_EQ(begun, 2);
  EXPECT_FALSE(help.loop(0).has_help()) << "nobody helps when all tasks have ended";
}

TEST(LoopHelpTest, OneWorkerNeedsNone) {
  ThreadTeam team(1);
  LoopHelp help(1);
  int parts = 0;
  RunHelped(team, help, 3, [&](int, LoopHelp::Loop& loop) {
    EXPECT_FALSE(loop.has_help());
    loop.Run(5, [&](size_t) { ++parts; });
  });
  EXPECT_EQ(parts, 15);
}

// Keys of bf16 in tiles, scored in parts by several threads and at once by one.
class HelpedScores : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int kDim = 32, kQueries = 5;

  // Of so many keys, where `groups` is set of every second group of them.
  void Compare(uint32_t num_keys, bool with_groups) {
    const KernelTable& kernels = *CpuKernels(GetParam()).value();
    std::mt19937 random(num_keys);
    std::normal_distribution<float> normal;
    const size_t blocks = (num_keys + kBlockTokens - 1) / kBlockTokens * (with_groups ? 2 : 1);
    std::vector<uint16_t> tiles(blocks * kBlockTokens * kDim);
    for (uint16_t& value : tiles) {
      const float x = normal(random);
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      value = static_cast<uint16_t>(bits >> 16);
    }
    std::vector<const void*> pointers;
    for (size_t b = 0; b < blocks; ++b) pointers.push_back(&tiles[b * kBlockTokens * kDim]);
    std::vector<uint32_t> groups;
    for (uint32_t g = 0; g < num_keys / kKeyGroup; ++g) groups.push_back(2 * g);
    const KeyTable keys{.tiles = pointers.data(),
                        .num_keys = num_keys,
                        .head_dim = kDim,
                        .dtype = Dtype::kBf16,
                        .groups = with_groups ? groups.data() : nullptr};
    std::vector<float> queries(kQueries * kDim);
    for (float& value : queries) value = normal(random);

    SoftmaxScratch alone, together;
    ScratchBuffer<float> scores_alone, scores_together;
    const Softmaxes expected = SoftmaxKeys(kernels, keys, queries.data(), kQueries, {0.2f}, alone);
    const Scores raw = ScoreKeys(kernels, keys, queries.data(), kQueries, {0.2f}, scores_alone);
    ThreadTeam team(3);
    LoopHelp help(team.size());
    RunHelped(team, help, 1, [&](int, LoopHelp::Loop& loop) {
      while (!loop.has_help()) sched_yield();
      const Softmaxes softmaxes = SoftmaxKeys(kernels, keys, queries.data(), kQueries, {0.2f}, together, &loop);
      const Scores scores = ScoreKeys(kernels, keys, queries.data(), kQueries, {0.2f}, scores_together, &loop);
      const size_t runs = SoftmaxRuns(num_keys);
      EXPECT_TRUE(SameBits(softmaxes.lse, expected.lse, kQueries * sizeof(float)));
      EXPECT_TRUE(SameBits(softmaxes.run_scales, expected.run_scales, kQueries * runs * sizeof(float)));
      for (int q = 0; q < kQueries; ++q) {
        const size_t bytes = num_keys * sizeof(float);
        const float* const weights = softmaxes.weights + q * softmaxes.stride;
        EXPECT_TRUE(SameBits(weights, expected.weights + q * expected.stride, bytes)) << "query " << q;
        EXPECT_TRUE(SameBits(scores.row(q), raw.row(q), bytes)) << "query " << q;
      }
    });
  }
};

TEST_P(HelpedScores, HaveTheBitsOfThoseOfOneThread) {
  if (!CpuKernels(GetParam()).ok()) GTEST_SKIP() << "this CPU has no " << GetParam();
  for (const uint32_t num_keys : {511u, 513u, 1024u, 2000u, 8333u}) {
    SCOPED_TRACE(num_keys);
    Compare(num_keys, /*with_groups=*/false);
    Compare(num_keys / kKeyGroup * kKeyGroup, /*with_groups=*/true);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, HelpedScores, testing::Values("portable", "avx2", "avx512", "avx512bf16"));

}  // namespace
}  // namespace winnow
