#pragma once
#include <memory>
#include <vector>

#include "cache_rank/store/sequence_kv.h"
#include "tests/cache_rank/reference.h"

namespace winnow::test {

// One stored layer of random keys, and the same keys in double.
struct StoredKeys {
  StoredKeys(const ServedShape& shape, uint64_t seed, uint32_t count, uint32_t chunk = 7, const IndexLayout& index = {},
             float (*spread)(uint32_t position) = nullptr)
      : pool(KvBlockPool::Create(size_t{16} << 20, shape.layout).value()),
        kv(SequenceKv::Create(pool.get(), CpuKernels("portable").value(), shape.layout, count, index).value()) {
    const int dim = shape.layout.head_dim, heads = shape.layout.num_kv_heads;
    keys.assign(heads, {});
    for (uint32_t first = 0; first < count; first += chunk) {
      const uint32_t n = std::min(chunk, count - first);
      std::vector<float> rows;  // [heads][n][2 * dim]
      for (int h = 0; h < heads; ++h) {
        for (uint32_t p = first; p < first + n; ++p) {
          Vector key;
          for (int d = 0; d < 2 * dim; ++d) {
            rows.push_back(Noise(seed, h, p, d) * (spread == nullptr ? 1.0f : spread(p)));
            if (d < dim) key.push_back(rows.back());
          }
          keys[h].push_back(key);
        }
      }
      for (int layer = 0; layer < shape.layout.num_layers; ++layer) {
        if (!kv.Append(layer, first, n, reinterpret_cast<const std::byte*>(rows.data())).ok()) std::abort();
      }
    }
  }
  // The first n keys of a kv head.
  std::vector<Vector> Keys(int head, uint32_t n) const { return {keys[head].begin(), keys[head].begin() + n}; }

  std::unique_ptr<KvBlockPool> pool;
  SequenceKv kv;
  std::vector<std::vector<Vector>> keys;  // [num_kv_heads][position]
};

}  // namespace winnow::test
