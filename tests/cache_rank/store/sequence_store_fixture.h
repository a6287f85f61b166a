#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "cache_rank/store/sequence_store.h"
#include "tests/cache_rank/reference.h"

namespace winnow {

// Every row of a sequence is a function of (seed, layer, head, position).
class SequenceStoreTest : public testing::Test {
 protected:
  SequenceStoreTest() : shape_(test::SmallShape()), kernels_(CpuKernels("portable").value()) { Restart(400); }

  void Restart(size_t blocks) {
    store_.reset();
    pool_ = KvBlockPool::Create(blocks * BlockBytes(shape_.layout), shape_.layout).value();
    store_ = std::make_unique<SequenceStore>(pool_.get(), kernels_, shape_.layout, std::chrono::seconds(60));
  }
  absl::StatusOr<CachedSequence*> Open(uint64_t id, uint32_t max_positions, Predictor predictor = Predictor::kDepth,
                                       uint32_t prompt = 0) {
    return store_->Open(1, {.sequence_id = id,
                            .spec = test::SmallSpec(predictor),
                            .max_positions = max_positions,
                            .prompt_tokens = prompt,
                            .sampling = {}});
  }
  std::vector<float> Rows(uint64_t seed, int layer, uint32_t first, uint32_t count) const {
    std::vector<float> rows;
    for (int h = 0; h < shape_.layout.num_kv_heads; ++h) {
      for (uint32_t p = first; p < first + count; ++p) {
        for (int d = 0; d < 2 * shape_.layout.head_dim; ++d) rows.push_back(test::Noise(seed, layer * 8 + h, p, d));
      }
    }
    return rows;
  }
  absl::Status AppendLayer(SequenceKv& kv, uint64_t seed, int layer, uint32_t first, uint32_t count) {
    return kv.Append(layer, first, count, reinterpret_cast<const std::byte*>(Rows(seed, layer, first, count).data()));
  }
  void Append(SequenceKv& kv, uint64_t seed, uint32_t first, uint32_t count) {
    for (int layer = 0; layer < shape_.layout.num_layers; ++layer)
      ASSERT_TRUE(AppendLayer(kv, seed, layer, first, count).ok());
  }
  // Rows and index tiles of [first, last) are those of `seed`.
  void ExpectRows(const SequenceKv& kv, uint64_t seed, uint32_t first, uint32_t last) {
    const int dim = shape_.layout.head_dim;
    for (int layer = 0; layer < shape_.layout.num_layers; ++layer) {
      for (int head = 0; head < shape_.layout.num_kv_heads; ++head) {
        std::vector<float> rows((last - first) * 2 * dim, -9);
        kv.CopyRows(layer, head, first, last - first, reinterpret_cast<std::byte*>(rows.data()));
        for (uint32_t p = first; p < last; ++p) {
          const auto* tile = static_cast<const float*>(kv.tiles(layer, head)[p / kBlockTokens]);
          for (int d = 0; d < 2 * dim; ++d) {
            const float expected = test::Noise(seed, layer * 8 + head, p, d);
            ASSERT_EQ(rows[(p - first) * 2 * dim + d], expected) << "layer " << layer << " position " << p;
            if (d < dim) {
              ASSERT_EQ(tile[d * kBlockTokens + p % kBlockTokens], expected) << "key of position " << p;
            }
          }
        }
      }
    }
  }
  size_t Lists() const { return shape_.layout.num_layers * shape_.layout.num_kv_heads; }

  const ServedShape shape_;
  const KernelTable* const kernels_;
  std::unique_ptr<KvBlockPool> pool_;
  std::unique_ptr<SequenceStore> store_;
};

}  // namespace winnow
