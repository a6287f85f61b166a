#include "cache_rank/select/host/select_by_indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cache_rank/store/sequence_kv.h"
#include "common/selection/indexer_spec.h"
#include "common/selection/presets.h"

namespace winnow {
namespace {

// Rows that came in parts, of a sequence whose tiles hold index keys, against a sort of all sums.
TEST(NativePreset, TakesThePositionsOfTheLargestSums) {
  const KernelTable& kernels = **CpuKernels();
  const KvLayout layout{.num_layers = 1,
                        .num_query_heads = 4,
                        .num_kv_heads = 1,
                        .head_dim = 48,
                        .dtype = Dtype::kF32,
                        .row = {.value_is_key = true, .index_dim = 20},
                        .num_index_heads = 3};
  const SelectionSpec spec = WithIndexer(FindPreset("native").value(), 64);
  const auto pool = KvBlockPool::Create(1 << 22, layout).value();
  SequenceKv kv = SequenceKv::Create(pool.get(), &kernels, layout, 1500, IndexLayoutFor(spec)).value();
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const size_t elements = layout.row.elements(layout.head_dim);
  std::vector<float> rows(1300 * elements);
  for (float& value : rows) value = normal(random);
  for (uint32_t first = 0; first < 1300; first += 130) {
    const auto* from = reinterpret_cast<const std::byte*>(rows.data() + first * elements);
    ASSERT_TRUE(kv.Append(0, first, 130, from).ok());
  }
  SelectScratch scratch;
  std::vector<uint32_t> selected;
  for (const uint32_t num_keys : {40u, 64u, 65u, 700u, 1300u}) {
    std::vector<float> queries(layout.index_query_floats());
    for (float& value : queries) value = normal(random);
    SelectByIndexer(kernels,
                    {.index = kv.index(0, 0),
                     .num_keys = num_keys,
                     .head_dim = 20,
                     .num_heads = 3,
                     .queries = queries.data(),
                     .budget_tokens = spec.budget_tokens},
                    scratch, &selected);
    std::vector<double> sums(num_keys);
    for (uint32_t key = 0; key < num_keys; ++key) {
      for (size_t head = 0; head < 3; ++head) {
        double dot = 0;
        for (size_t i = 0; i < 20; ++i) dot += double{queries[head * 20 + i]} * rows[key * elements + 48 + i];
        sums[key] += queries[60 + head] * std::max(dot, 0.0);
      }
    }
    std::vector<uint32_t> expected(num_keys);
    std::iota(expected.begin(), expected.end(), 0u);
    std::stable_sort(expected.begin(), expected.end(), [&](uint32_t a, uint32_t b) { return sums[a] > sums[b]; });
    expected.resize(std::min<size_t>(64, num_keys));
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(selected, expected) << num_keys;
  }
}

}  // namespace
}  // namespace winnow
