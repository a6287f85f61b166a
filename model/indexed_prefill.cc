#include "model/indexed_prefill.h"

#include <algorithm>

#include "common/base/check.h"
#include "kernels/indexer.h"

namespace winnow {
namespace {

constexpr int kQueriesAtATime = 16;  // partial states of their attention are kept together

template <typename Body>
void ParallelFor(const KernelTable& kernels, Executor& executor, int count, Body& body) {
  kernels.parallel_for(
      executor, count, [](void* context, int index, int worker) { (*static_cast<Body*>(context))(index, worker); },
      &body);
}

}  // namespace

void IndexedPrefill::IndexRows(const Chunk& chunk) {
  const auto num_rows = static_cast<int>(chunk.first_position) + chunk.num_queries;
  const int num_tiles = (num_rows + kBlockTokens - 1) / kBlockTokens;
  const size_t tile_bytes = (IndexTileBytes(layout_.row.index_dim, layout_.dtype) + 63) / 64 * 64;
  if (tiles_.size() < num_tiles * tile_bytes + 64) tiles_.resize(num_tiles * tile_bytes * 5 / 4 + 64);
  auto* const first = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(tiles_.data()) + 63) / 64 * 64);
  tile_pointers_.resize(static_cast<size_t>(num_tiles));
  const size_t row_bytes = layout_.row_bytes();
  const size_t offset = layout_.row.index_offset(layout_.head_dim) * DtypeBytes(layout_.dtype);
  auto index = [&](int tile, int) {
    std::byte* const to = first + tile * tile_bytes;
    tile_pointers_[static_cast<size_t>(tile)] = to;
    const int begin = tile * kBlockTokens;
    kernels_.index_keys({.rows = static_cast<const std::byte*>(chunk.rows.kv) + begin * row_bytes + offset,
                         .row_elements = static_cast<int>(layout_.row.elements(layout_.head_dim)),
                         .num_rows = std::min(kBlockTokens, num_rows - begin),
                         .head_dim = layout_.row.index_dim,
                         .dtype = layout_.dtype,
                         .tile = to});
  };
  ParallelFor(kernels_, executor_, num_tiles, index);
}

void IndexedPrefill::Select(const Chunk& chunk, int i, int worker) {
  Scratch& scratch = scratch_[static_cast<size_t>(worker)];
  const uint32_t num_keys = chunk.first_position + static_cast<uint32_t>(i) + 1;
  scratch.head_scores.resize(IndexerScratchFloats(indexer_.num_heads));
  if (scratch.scores.size() < num_keys) scratch.scores.resize(num_keys * 5 / 4);
  if (scratch.top_k.size() < TopKScratchWords(num_keys)) scratch.top_k.resize(TopKScratchWords(num_keys) * 5 / 4);
  ScoreByIndexer(kernels_, {.tiles = tile_pointers_.data(),
                            .num_keys = static_cast<int>(num_keys),
                            .head_dim = indexer_.head_dim,
                            .dtype = layout_.dtype,
                            .queries = chunk.index_queries + static_cast<size_t>(i) * layout_.index_query_floats(),
                            .num_heads = indexer_.num_heads,
                            .scores = scratch.scores.data(),
                            .scratch = scratch.head_scores.data()});
  kernels_.top_k({.values = scratch.scores.data(),
                  .first = 0,
                  .last = num_keys,
                  .k = static_cast<uint32_t>(indexer_.top_k),
                  .indices = &lists_[static_cast<size_t>(i % kQueriesAtATime) * indexer_.top_k],
                  .scratch = scratch.top_k.data()});
}

void IndexedPrefill::Attend(const Chunk& chunk) {
  const auto top_k = static_cast<uint32_t>(indexer_.top_k);
  WINNOW_CHECK(layout_.num_kv_heads == 1 && chunk.first_position + 1 >= top_k);
  scratch_.resize(static_cast<size_t>(kernels_.num_workers(executor_)));
  lists_.resize(static_cast<size_t>(kQueriesAtATime) * top_k);
  list_pointers_.clear();
  for (int i = 0; i < kQueriesAtATime; ++i) list_pointers_.push_back(&lists_[static_cast<size_t>(i) * top_k]);
  counts_.assign(kQueriesAtATime, top_k);
  const size_t heads = static_cast<size_t>(kQueriesAtATime) * layout_.num_query_heads;
  attention_scratch_.resize(DecodeAttentionScratchBytes(heads * top_k, heads, layout_.head_dim));
  IndexRows(chunk);
  const size_t query_floats = static_cast<size_t>(layout_.num_query_heads) * layout_.head_dim;
  for (int first = 0; first < chunk.num_queries; first += kQueriesAtATime) {
    const int count = std::min(kQueriesAtATime, chunk.num_queries - first);
    auto select = [&](int i, int worker) { Select(chunk, first + i, worker); };
    ParallelFor(kernels_, executor_, count, select);
    kernels_.decode_attention(executor_, {.q = chunk.queries + first * query_floats,
                                          .num_rows = count,
                                          .num_query_heads = layout_.num_query_heads,
                                          .num_kv_heads = 1,
                                          .head_dim = layout_.head_dim,
                                          .scale = chunk.scale,
                                          .slot_pool = chunk.rows.kv,
                                          .kv_dtype = layout_.dtype,
                                          .row = layout_.row,
                                          .slots = list_pointers_.data(),
                                          .slot_counts = counts_.data(),
                                          .out = chunk.out + first * query_floats,
                                          .scratch = attention_scratch_.data()});
  }
}

}  // namespace winnow
