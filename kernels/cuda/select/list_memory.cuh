#pragma once
#include <cstdint>

#include "kernels/cuda/select/cluster_bins.cuh"
#include "kernels/cuda/select/select_memory.cuh"

// What a block of a two-stage selection in one launch holds in shared memory.

namespace winnow::device {

inline constexpr int kListThreads = 512;
inline constexpr int kListWarps = kListThreads / 32;
inline constexpr uint32_t kListGroup = 128;  // columns of which a block has a multiple
// Sizes of a launch, and where the parts of a block's shared memory lie.
struct ListShape {
  uint32_t cluster_blocks;
  uint32_t block_columns;  // whose scores a block holds: a multiple of kListGroup
  uint32_t score_stride;   // floats of a query
  uint32_t most_columns;  // of a block whose list is scored whole; more than block_columns have scores in global memory
  uint32_t pages, groups;  // of a list, at most
  bool pages_in_shared, groups_in_shared;
  // Offsets. Bins of pages lie where the streams have their tables, what is cut where they have their rings, and bounds
  // of pages, and of groups before them, where the scores of keys will be.
  uint32_t page_operand, key_operand, tables, granules, kept_groups, ring, scores, bytes;
};

struct ListLaunch {
  SelectParams params;
  ListShape shape;
  // Where they do not fit in shared memory: [num_lists, pages] and [num_lists, groups].
  uint32_t *page_keys, *group_keys;
  float* key_scores;  // [num_lists, group, key_stride], likewise
  int64_t key_stride;
};

struct ListControl {
  SelectControl select;
  ClusterCutControl cut;
  float page_factors[kMaxGroup], key_factors[kMaxGroup];
  uint32_t least_page, greatest_page, least_group, greatest_group;  // keys
  uint32_t own_greatest[kMaxGroup];                                 // scores, as keys
  // What the cluster's blocks tell each other of the softmaxes.
  uint32_t greatest[kMaxClusterBlocks][kMaxGroup];
  uint64_t sums[kMaxClusterBlocks][kMaxGroup];  // relative to the greatest score of all, in 2^-44
  uint64_t warp_sums[kListWarps][kMaxGroup];
};

// A block's shared memory.
struct ListMemory {
  ListControl& control;
  TopKMemory top_k;  // control and bins alone
  uint32_t* before;  // a word for each of a bitmap
  uint32_t* granules;
  uint32_t* groups;  // that stay
  float* scores;
  uint32_t score_stride;
  ClusterCutMemory cut;

  __device__ ListMemory(uint8_t* base, const ListShape& shape, bool by_mass)
      : control(*reinterpret_cast<ListControl*>(base)),
        top_k{},
        before(reinterpret_cast<uint32_t*>(base + shape.tables) + kBins),
        granules(reinterpret_cast<uint32_t*>(base + shape.granules)),
        groups(reinterpret_cast<uint32_t*>(base + shape.kept_groups)),
        scores(reinterpret_cast<float*>(base + shape.scores)),
        score_stride(shape.score_stride) {
    top_k.control = &control.select.top_k;
    top_k.bins = reinterpret_cast<uint32_t*>(base + shape.tables);
    cut.control = &control.cut;
    cut.Place(base + shape.ring, shape.cluster_blocks, by_mass);
  }
};

}  // namespace winnow::device
