#pragma once
#include <span>
#include <vector>

#include "kernels/params/matmul.h"

namespace winnow {

// What a layer of latent attention has beside the product that begins it (LayerWeights::qkv), whose outputs are what
// queries are made of, then latent and turning part of the key.
struct LatentWeights {
  std::span<const float> query_norm;  // [query_rank]; empty where queries have no latent
  PackedMatrix query_up;              // query_rank -> [num_query_heads, nope_dim + rope_dim]; no data likewise
  std::span<const float> key_norm;    // [rank]
  // By query head. Keys and values of a head are never computed: its query is multiplied with key_up, in the form of
  // keys with zeros where they turn, and what it attends to with value_up.
  std::vector<PackedMatrix> key_up;    // nope_dim -> key_dim
  std::vector<PackedMatrix> value_up;  // key_dim -> value_dim
  // Of a model with an indexer.
  PackedMatrix index_query;                // query_rank -> [num_index_heads, index_dim]
  PackedMatrix index_key;                  // hidden_size -> index_dim
  PackedMatrix index_weight;               // hidden_size -> num_index_heads, f32
  std::span<const float> index_norm;       // [index_dim]
  std::span<const float> index_norm_bias;  // [index_dim]
};

}  // namespace winnow
