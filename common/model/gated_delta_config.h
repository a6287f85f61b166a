#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/json_fields.h"

namespace winnow {

// The layers of a hybrid model that keep a state of constant size where others keep rows of keys and values: linear
// attention with the gated delta rule. What a token's projection gives goes through a short causal convolution of each
// channel; then, of each value head, the state S [key_dim, value_dim] forgets a share of what it holds and learns the
// difference between the token's value and what it answers to the token's key:
//   S = decay * S,  S += key (beta * (value - S^T key))^T,  output = S^T query.
struct GatedDeltaConfig {
  int num_key_heads = 0;    // of queries and keys
  int num_value_heads = 0;  // a multiple: consecutive ones share a key head
  int key_dim = 0;
  int value_dim = 0;
  int conv_width = 0;  // tokens that a convolution reads, the newest included; >= 2
  // Whether projections are stored key head by key head, with all that belongs to one, as Qwen3-Next has them, or part
  // by part, as Qwen3.5: queries, keys and values of all heads, gates, and what is learnt and forgotten.
  bool by_key_head = true;
  std::vector<bool> layers;  // [num_layers] which layers are of this kind: neither none nor all of them

  int key_features() const { return num_key_heads * key_dim; }
  int value_features() const { return num_value_heads * value_dim; }
  int values_per_key() const { return num_value_heads / num_key_heads; }
  // Channels of the convolution: all queries, then all keys, then all values.
  int conv_features() const { return 2 * key_features() + value_features(); }
  // Of the product that begins a layer: those, and what gates the output.
  int projected_features() const { return conv_features() + value_features(); }

  int num_layers() const;
  // Of one layer and sequence, f32: what the convolution still reads, [conv_width - 1, conv_features] with the oldest
  // token first, then S of each value head, [num_value_heads, key_dim, value_dim].
  size_t tail_floats() const { return static_cast<size_t>(conv_width - 1) * conv_features(); }
  size_t layer_floats() const { return tail_floats() + static_cast<size_t>(num_value_heads) * key_dim * value_dim; }
  // Of all layers of the kind, one after the other.
  size_t state_floats() const { return num_layers() * layer_floats(); }
};

absl::StatusOr<GatedDeltaConfig> ParseGatedDeltaConfig(const JsonFields& config, bool by_key_head, int num_layers);

}  // namespace winnow
