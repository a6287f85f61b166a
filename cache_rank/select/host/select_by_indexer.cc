#include "cache_rank/select/host/select_by_indexer.h"

#include "cache_rank/select/policy/top_k.h"
#include "kernels/indexer.h"

namespace winnow {

void SelectByIndexer(const KernelTable& kernels, const IndexerQuestion& question, SelectScratch& scratch,
                     std::vector<uint32_t>* selected) {
  float* const scores = scratch.importance.Reserve(question.num_keys);
  ScoreByIndexer(kernels, {.tiles = question.index.keys,
                           .num_keys = static_cast<int>(question.num_keys),
                           .head_dim = question.head_dim,
                           .dtype = question.index.dtype,
                           .queries = question.queries,
                           .num_heads = question.num_heads,
                           .scores = scores,
                           .scratch = scratch.scores.Reserve(IndexerScratchFloats(question.num_heads))});
  scratch.scored_key_bytes +=
      DtypeBytes(question.index.dtype, static_cast<size_t>(question.head_dim)) * uint64_t{question.num_keys};
  SelectTopK(kernels, scores, 0, question.num_keys, question.budget_tokens, scratch.top_k, selected);
}

}  // namespace winnow
