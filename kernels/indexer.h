#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.h"

namespace winnow {

// The rule by which a model's own indexer scores index keys for one position, wherever that is done:
//   scores[j] = sum over its heads h, ascending, of weights[h] * max(queries[h] . key[j], 0)
struct IndexerScoreParams {
  const void* const* tiles = nullptr;  // [ceil(num_keys / 32)] index tiles of index keys
  int num_keys = 0;
  int head_dim = 0;
  Dtype dtype = Dtype::kBf16;      // of the tiles
  const float* queries = nullptr;  // [num_heads, head_dim], then weights [num_heads]
  int num_heads = 0;
  float* scores = nullptr;   // [num_keys]; what is not a number becomes 0
  float* scratch = nullptr;  // IndexerScratchFloats
};
// Added to the variance of index keys, whatever a model adds to that of its other norms.
inline constexpr float kIndexNormEpsilon = 1e-6f;
inline constexpr int kIndexerRun = 512;  // keys that are scored together
constexpr size_t IndexerScratchFloats(int num_heads) {
  return static_cast<size_t>(num_heads) * kIndexerRun;
}

// On the calling thread.
void ScoreByIndexer(const KernelTable& kernels, const IndexerScoreParams& params);

}  // namespace winnow
