#include "cache_rank/select/scorer/joint_scoring.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cache_rank/select/host/select_union.h"
#include "tests/cache_rank/store/stored_keys.h"

// What several sequences are asked together has the bits that each gets alone, and shared blocks are read once.

namespace winnow::test {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kBf16, Dtype::kF32};

// Block lists of random keys: list i begins with the blocks of list parents[i], up to `shared[i]` of them.
struct Lists {
  Lists(const KernelTable& kernels, Dtype dtype, int head_dim, std::vector<uint32_t> num_keys,
        std::vector<size_t> parents, std::vector<uint32_t> shared)
      : head_dim(head_dim), dtype(dtype), num_keys(num_keys), tiles(num_keys.size()) {
    const KvLayout layout{
        .num_layers = 1, .num_query_heads = 1, .num_kv_heads = 1, .head_dim = head_dim, .dtype = dtype};
    pool = KvBlockPool::Create(size_t{8} << 20, layout).value();
    for (size_t i = 0; i < num_keys.size(); ++i) {
      for (uint32_t block = 0; block * kBlockTokens < num_keys[i]; ++block) {
        if (i > 0 && block < shared[i]) {
          tiles[i].push_back(tiles[parents[i]][block]);
          continue;
        }
        KvBlockReservation reservation = pool->Reserve(1).value();
        blocks.push_back(reservation.Allocate());
        std::vector<std::byte> rows(kBlockTokens * 2 * head_dim * DtypeBytes(dtype));
        for (uint32_t e = 0; e < kBlockTokens * 2 * static_cast<uint32_t>(head_dim); ++e) {
          const float value = 3 * Noise(7, i, block, e);
          if (dtype == Dtype::kF32) {
            std::memcpy(rows.data() + e * sizeof value, &value, sizeof value);
          } else {
            const uint32_t bits = std::bit_cast<uint32_t>(value) >> 16;
            std::memcpy(rows.data() + e * 2, &bits, 2);
          }
        }
        kernels.index_keys({.rows = rows.data(),
                            .num_rows = kBlockTokens,
                            .first_row = 0,
                            .head_dim = head_dim,
                            .dtype = dtype,
                            .tile = blocks.back().tile()});
        tiles[i].push_back(blocks.back().tile());
      }
    }
  }
  KeyTable Keys(size_t i) const { return {tiles[i].data(), num_keys[i], head_dim, dtype}; }

  const int head_dim;
  const Dtype dtype;
  const std::vector<uint32_t> num_keys;
  std::unique_ptr<KvBlockPool> pool;
  std::vector<KvBlock> blocks;
  std::vector<std::vector<const void*>> tiles;
};

TEST(JointScoring, GivesTheBitsOfEachAloneAndReadsSharedBlocksOnce) {
  constexpr float kScale = 0.3f;
  constexpr int kHeadDim = 32;
  for (const char* isa : {"portable", "avx2", "avx512", "avx512bf16"}) {
    const auto table = CpuKernels(isa);
    if (!table.ok()) continue;
    const KernelTable& kernels = **table;
    for (const Dtype dtype : kDtypes) {
      // Two families (0, 1, 3, 5: of these 3 and 5 part from 1), one that stands alone, and one that is a prefix.
      const Lists lists(kernels, dtype, kHeadDim, {1500, 1531, 40, 1300, 900, 1290, 1472}, {0, 0, 0, 1, 0, 3, 0},
                        {0, 46, 0, 33, 0, 37, 46});
      const uint64_t expected_keys = 1500 + (1531 - 46 * 32) + 40 + (1300 - 33 * 32) + 900 + (1290 - 37 * 32);
      std::vector<std::vector<float>> queries;
      std::vector<KeyPass> passes;
      for (size_t i = 0; i < lists.tiles.size(); ++i) {
        const int count = i % 2 == 0 ? 3 : 6;
        queries.emplace_back();
        for (int e = 0; e < count * kHeadDim; ++e) queries.back().push_back(Noise(9, i, 0, e));
        passes.push_back({lists.Keys(i), queries.back().data(), count});
      }
      JointScratch joint;
      ScratchBuffer<float> buffer, alone_buffer;
      SoftmaxScratch softmax_scratch, alone_scratch;
      std::vector<Scores> scores(passes.size());
      std::vector<Softmaxes> softmaxes(passes.size());
      const KeyTable one{nullptr, 1, kHeadDim, dtype};
      EXPECT_EQ(ScoreKeysJointly(kernels, passes, {kScale}, joint, buffer, scores), expected_keys * one.key_bytes());
      EXPECT_EQ(SoftmaxKeysJointly(kernels, passes, {kScale}, joint, softmax_scratch, softmaxes),
                expected_keys * one.key_bytes());
      for (size_t i = 0; i < passes.size(); ++i) {
        const KeyPass& pass = passes[i];
        const Scores alone = ScoreKeys(kernels, pass.keys, pass.queries, pass.num_queries, {kScale}, alone_buffer);
        const Softmaxes softmax =
            SoftmaxKeys(kernels, pass.keys, pass.queries, pass.num_queries, {kScale}, alone_scratch);
        const size_t runs = SoftmaxRuns(pass.keys.num_keys);
        for (int q = 0; q < pass.num_queries; ++q) {
          const auto same = [&](const float* a, const float* b, size_t n) {
            return std::memcmp(a, b, n * sizeof(float)) == 0;
          };
          EXPECT_TRUE(same(scores[i].row(q), alone.row(q), pass.keys.num_keys)) << isa << " pass " << i;
          EXPECT_TRUE(same(softmaxes[i].weights + q * softmaxes[i].stride, softmax.weights + q * softmax.stride,
                           pass.keys.num_keys))
              << isa << " pass " << i;
          EXPECT_TRUE(same(softmaxes[i].run_scales + q * runs, softmax.run_scales + q * runs, runs));
          EXPECT_EQ(softmaxes[i].lse[q], softmax.lse[q]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace winnow::test
