#pragma once
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/latent_shape.h"
#include "common/model/json_fields.h"

namespace winnow {

// The indexer of a model that brings one: each token has an index key, each position index queries with weights, and
// the position attends to the `top_k` positions of the largest sums of weight * max(query . key, 0), ties to the lower
// one.
struct IndexerConfig {
  int num_heads = 0;  // 0: the model has none
  int head_dim = 0;
  int top_k = 0;
  bool interleaved = false;  // turning pairs of index keys are neighbours

  friend bool operator==(const IndexerConfig&, const IndexerConfig&) = default;
};

// Of the norms of latents, whatever a model adds in its others.
inline constexpr float kLatentNormEpsilon = 1e-6f;

// Latent attention as DeepSeek has it: keys and values of all heads are projections of one latent of a token, beside
// which one part of the key, shared by all heads, turns with the position.
struct LatentConfig {
  LatentShape shape;
  int query_rank = 0;        // of the latent that queries are projected from; 0: from the residual
  int nope_dim = 0;          // of a head's query, what does not turn
  int value_dim = 0;         // of a head
  bool interleaved = false;  // turning pairs are stored as neighbours
  IndexerConfig indexer;

  int query_dim() const { return nope_dim + shape.rope_dim; }
  // Of the first product of queries.
  int query_features(int num_query_heads) const { return query_rank > 0 ? query_rank : num_query_heads * query_dim(); }

  friend bool operator==(const LatentConfig&, const LatentConfig&) = default;
};

// `has_indexer`: the family brings one; `index_interleaved`: how its turning pairs are stored where no field says so.
absl::StatusOr<LatentConfig> ParseLatentConfig(const JsonFields& config, bool has_indexer, bool index_interleaved,
                                               int num_layers);

}  // namespace winnow
