#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/model/latent_config.h"
#include "kernels/kernel_table.h"
#include "model/forward.h"

namespace winnow {

// Attention of a prompt's positions to what the model's own indexer chooses for each of them: the top_k positions up to
// its own, as decode steps with the preset `native` do. Positions that have no more than that before them are left to
// the caller, who attends to everything. One list for all heads; rows with one kv head. Holds scratch alone.
class IndexedPrefill {
 public:
  IndexedPrefill(const IndexerConfig& indexer, const KvLayout& layout, const KernelTable& kernels, Executor& executor)
      : indexer_(indexer), layout_(layout), kernels_(kernels), executor_(executor) {}

  struct Chunk {
    const float* queries = nullptr;        // [num_queries, num_query_heads, head_dim], rotated
    const float* index_queries = nullptr;  // [num_queries, KvLayout::index_query_floats]
    int num_queries = 0;
    uint32_t first_position = 0;  // at least top_k - 1
    PrefillKv::Rows rows;         // of all positions up to the last query's
    float scale = 0;
    float* out = nullptr;  // [num_queries, num_query_heads, head_dim]
  };
  void Attend(const Chunk& chunk);

 private:
  void IndexRows(const Chunk& chunk);
  // The positions that query `i` attends to, into its list.
  void Select(const Chunk& chunk, int i, int worker);

  const IndexerConfig indexer_;
  const KvLayout layout_;
  const KernelTable& kernels_;
  Executor& executor_;

  std::vector<std::byte> tiles_;  // of the index keys of all rows
  std::vector<const void*> tile_pointers_;
  std::vector<uint32_t> lists_;  // [queries at a time, top_k]
  struct Scratch {
    std::vector<float> head_scores, scores;
    std::vector<uint32_t> top_k;
  };
  std::vector<Scratch> scratch_;  // by worker
  std::vector<const uint32_t*> list_pointers_;
  std::vector<uint32_t> counts_;
  std::vector<std::byte> attention_scratch_;
};

}  // namespace winnow
