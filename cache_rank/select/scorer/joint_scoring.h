#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache_rank/select/scorer/token_scorer.h"

namespace winnow {

// The keys of one sequence, and the queries that they are to be scored by.
struct KeyPass {
  KeyTable keys;                   // no groups
  const float* queries = nullptr;  // [num_queries, keys.head_dim]
  int num_queries = 0;
};

struct JointScratch {
  ScratchBuffer<float> queries;
  std::vector<uint32_t> order;
  std::vector<int> first_query;  // of each pass in that order
};

// Scores of several sequences whose block lists may begin alike: blocks that lists share are read once, for the queries
// of all. Passes have keys of one head_dim and dtype. The bits of each result are those of ScoreKeys and SoftmaxKeys
// for that pass alone. Both return the bytes of keys that were read. One of `results` per pass.
uint64_t ScoreKeysJointly(const KernelTable& kernels, std::span<const KeyPass> passes, ScoreForm form,
                          JointScratch& scratch, ScratchBuffer<float>& buffer, std::span<Scores> results);
uint64_t SoftmaxKeysJointly(const KernelTable& kernels, std::span<const KeyPass> passes, ScoreForm form,
                            JointScratch& scratch, SoftmaxScratch& buffer, std::span<Softmaxes> results);

}  // namespace winnow
