#pragma once
#include <cstddef>
#include <cstdint>

// Linear attention with the gated delta rule, and the gate of attention in the same models. What holds for all
// parameters stands in kernels/kernel_table.h.

namespace winnow {

// Consecutive positions of one sequence among the rows of a batch, with what the sequence keeps of the layer. Both
// parts are read, and hold what follows the last row afterwards.
struct DeltaPiece {
  int first_row = 0;
  int num_rows = 0;
  float* tail = nullptr;   // [conv_width - 1, conv_features]: inputs of the convolution, the oldest token first
  float* state = nullptr;  // [num_value_heads, key_dim, value_dim]
};

// Where heads lie in a row: those that belong to key head g begin at first + g * group_stride, in elements, and follow
// each other.
struct HeadPlaces {
  int first = 0;
  int group_stride = 0;
};

// A layer's linear attention, from its projections to what the output projection reads. Of every row: queries, keys and
// values go through a causal convolution of each channel and SiLU; queries and keys are normalised to length 1, and
// queries divided by sqrt(key_dim). With beta = sigmoid(learning) and decay = exp(-exp(log_forgetting) *
// softplus(forgetting + rate_bias)) the state S of each value head becomes decay * S + key (beta * (value - decay * S^T
// key))^T, and S^T query is its output, which is RMS-normalised and multiplied with norm_weight and SiLU(gate).
//
// Where pieces are cut changes no bit.
struct GatedDeltaParams {
  const float* projected = nullptr;  // [num_rows] x projected_stride
  int64_t projected_stride = 0;
  HeadPlaces query, key, value, gate;
  const float* rates = nullptr;  // [num_rows] x rates_stride
  int64_t rates_stride = 0;
  HeadPlaces learning, forgetting;

  int num_key_heads = 0;
  int num_value_heads = 0;  // a multiple
  int key_dim = 0;
  int value_dim = 0;
  int conv_width = 0;                     // >= 2
  const float* conv = nullptr;            // [conv_width, conv_features]; all queries, then all keys, then all values
  const float* log_forgetting = nullptr;  // [num_value_heads]
  const float* rate_bias = nullptr;       // [num_value_heads]
  const float* norm_weight = nullptr;     // [value_dim]
  float norm_epsilon = 0;

  const DeltaPiece* pieces = nullptr;  // [num_pieces], no two of one sequence
  int num_pieces = 0;
  float* scratch = nullptr;  // [num_rows] x GatedDeltaScratchFloats
  float* out = nullptr;      // [num_rows, num_value_heads, value_dim]
};

// Of one row: of each key head its query, key and values, and of each of its value heads decay, beta, and the product
// of query and key.
constexpr size_t GatedDeltaScratchFloats(int num_key_heads, int num_value_heads, int key_dim, int value_dim) {
  return static_cast<size_t>(num_key_heads) * 2 * key_dim + static_cast<size_t>(num_value_heads) * (value_dim + 3);
}

// x *= sigmoid(gate), element by element.
struct GateHeadsParams {
  float* x = nullptr;           // [num_rows, width]
  const float* gate = nullptr;  // [num_rows, width]
  int width = 0;
  int num_rows = 0;
};

}  // namespace winnow
