#include "cache_rank/select/scorer/joint_scoring.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

// Blocks that are scored for all queries before the next ones are: few enough to stay in the second-level cache while
// kernels go over them for some queries at a time.
constexpr uint32_t kBlocksOfStep = 16;

// Walks the tree that block lists form, once they are ordered: what a range of passes shares is scored for all of them,
// then each part of the range goes on.
class JointScoring {
 public:
  JointScoring(const KernelTable& kernels, std::span<const KeyPass> passes, ScoreForm form, JointScratch& scratch,
               ScratchBuffer<float>& buffer)
      : kernels_(kernels), passes_(passes), form_(form), scratch_(scratch) {
    scratch_.order.resize(passes.size());
    std::iota(scratch_.order.begin(), scratch_.order.end(), 0);
    std::sort(scratch_.order.begin(), scratch_.order.end(), [&](uint32_t a, uint32_t b) {
      const KeyTable& one = passes[a].keys;
      const KeyTable& other = passes[b].keys;
      return std::lexicographical_compare(one.tiles, one.tiles + FullBlocks(one), other.tiles,
                                          other.tiles + FullBlocks(other), std::less<const void*>());
    });
    uint32_t most_keys = 0;
    int queries = 0;
    scratch_.first_query.clear();
    for (const uint32_t i : scratch_.order) {
      const KeyPass& pass = passes[i];
      WINNOW_CHECK(pass.keys.groups == nullptr && pass.keys.head_dim == passes[0].keys.head_dim &&
                   pass.keys.dtype == passes[0].keys.dtype && pass.keys.in_rows == passes[0].keys.in_rows);
      scratch_.first_query.push_back(queries);
      queries += pass.num_queries;
      most_keys = std::max(most_keys, pass.keys.num_keys);
    }
    scratch_.first_query.push_back(queries);
    const int head_dim = passes[0].keys.head_dim;
    queries_ = scratch_.queries.Reserve(static_cast<size_t>(queries) * head_dim);
    for (size_t i = 0; i < passes.size(); ++i) {
      const KeyPass& pass = Pass(i);
      std::copy_n(pass.queries, static_cast<size_t>(pass.num_queries) * head_dim,
                  queries_ + static_cast<size_t>(scratch_.first_query[i]) * head_dim);
    }
    stride_ = ScoresStride(most_keys);
    scores_ = buffer.Reserve(static_cast<size_t>(stride_) * queries);
  }

  // Returns the bytes read.
  uint64_t Run() {
    ScoreRange(0, passes_.size(), 0);
    return key_bytes_;
  }

  const KeyPass& Pass(size_t i) const { return passes_[scratch_.order[i]]; }
  float* scores(size_t i) const { return scores_ + scratch_.first_query[i] * stride_; }
  int64_t stride() const { return stride_; }

 private:
  static uint32_t FullBlocks(const KeyTable& keys) { return keys.num_keys / kBlockTokens; }

  // Blocks that passes i and i + 1 share.
  uint32_t SharedBlocks(size_t i) const {
    const KeyTable& one = Pass(i).keys;
    const KeyTable& other = Pass(i + 1).keys;
    const uint32_t most = std::min(FullBlocks(one), FullBlocks(other));
    return static_cast<uint32_t>(std::mismatch(one.tiles, one.tiles + most, other.tiles).first - one.tiles);
  }

  // Passes [first, last), which share the blocks below `block`; these are done.
  void ScoreRange(size_t first, size_t last, uint32_t block) {
    if (last - first == 1) return Score(first, last, block, Pass(first).keys.num_keys);
    uint32_t shared = UINT32_MAX;
    for (size_t i = first; i + 1 < last; ++i) shared = std::min(shared, SharedBlocks(i));
    if (shared > block) Score(first, last, block, shared * kBlockTokens);
    shared = std::max(shared, block);
    // In order, lists that share more lie side by side.
    for (size_t begin = first; begin < last;) {
      size_t end = begin + 1;
      while (end < last && SharedBlocks(end - 1) > shared) ++end;
      ScoreRange(begin, end, shared);
      begin = end;
    }
  }

  // Keys from `block` on, below `end`, for the queries of passes [first, last).
  void Score(size_t first, size_t last, uint32_t block, uint32_t end) {
    const KeyTable& keys = Pass(first).keys;
    const int query = scratch_.first_query[first];
    KeyScoreParams params{.head_dim = keys.head_dim,
                          .dtype = keys.dtype,
                          .in_rows = keys.in_rows,
                          .queries = queries_ + static_cast<size_t>(query) * keys.head_dim,
                          .num_queries = scratch_.first_query[last] - query,
                          .scale = form_.scale,
                          .score_cap = form_.cap,
                          .scores_stride = stride_};
    for (uint32_t begin = block * kBlockTokens; begin < end; begin += kBlocksOfStep * kBlockTokens) {
      params.tiles = keys.tiles + begin / kBlockTokens;
      params.num_keys = static_cast<int>(std::min(end - begin, kBlocksOfStep * kBlockTokens));
      params.scores = scores_ + query * stride_ + begin;
      kernels_.key_score(params);
    }
    KeyTable read = keys;
    read.num_keys = end - std::min(end, block * kBlockTokens);
    key_bytes_ += read.key_bytes();
  }

  const KernelTable& kernels_;
  const std::span<const KeyPass> passes_;
  const ScoreForm form_;
  JointScratch& scratch_;
  float* queries_ = nullptr;  // [all queries, head_dim], in the order of scratch_.order
  float* scores_ = nullptr;   // [all queries, stride_]
  int64_t stride_ = 0;
  uint64_t key_bytes_ = 0;
};

}  // namespace

uint64_t ScoreKeysJointly(const KernelTable& kernels, std::span<const KeyPass> passes, ScoreForm form,
                          JointScratch& scratch, ScratchBuffer<float>& buffer, std::span<Scores> results) {
  JointScoring scoring(kernels, passes, form, scratch, buffer);
  const uint64_t bytes = scoring.Run();
  for (size_t i = 0; i < passes.size(); ++i) results[scratch.order[i]] = {scoring.scores(i), scoring.stride()};
  return bytes;
}

uint64_t SoftmaxKeysJointly(const KernelTable& kernels, std::span<const KeyPass> passes, ScoreForm form,
                            JointScratch& scratch, SoftmaxScratch& buffer, std::span<Softmaxes> results) {
  JointScoring scoring(kernels, passes, form, scratch, buffer.weights);
  const uint64_t bytes = scoring.Run();
  size_t runs = 0, queries = 0;
  for (const KeyPass& pass : passes) {
    runs += pass.num_queries * SoftmaxRuns(pass.keys.num_keys);
    queries += pass.num_queries;
  }
  float* scales = buffer.run_scales.Reserve(runs);
  float* sums = buffer.run_sums.Reserve(runs);
  float* lse = buffer.lse.Reserve(queries);
  for (size_t i = 0; i < passes.size(); ++i) {
    const KeyPass& pass = scoring.Pass(i);
    float* weights = scoring.scores(i);
    kernels.score_softmax({.scores = weights,
                           .scores_stride = scoring.stride(),
                           .num_queries = pass.num_queries,
                           .num_keys = static_cast<int>(pass.keys.num_keys),
                           .run_scales = scales,
                           .lse = lse,
                           .scratch = sums});
    results[scratch.order[i]] = {weights, scoring.stride(), scales, lse, pass.num_queries, pass.keys.num_keys};
    const size_t of_pass = pass.num_queries * SoftmaxRuns(pass.keys.num_keys);
    scales += of_pass;
    sums += of_pass;
    lse += pass.num_queries;
  }
  return bytes;
}

}  // namespace winnow
