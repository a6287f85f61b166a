#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_config.h"

namespace winnow {

// Part `index` of a model that `count` GPUs hold together: q, k, v, gate and up are split by their outputs (whole
// heads), o and down by their inputs, so that each GPU's o and down give a term of the residual; lm_head by its
// outputs where they can be divided. The rest is held whole.
struct WeightShard {
  int index = 0;
  int count = 1;
};

// Part of a matrix [tensor_rows, tensor_columns] of a checkpoint.
struct WeightPiece {
  std::string tensor;
  size_t tensor_rows, tensor_columns;
  size_t first_row, rows;
  size_t first_column, columns;
};

// What the matrices of a decoder layer are stacked from, the rows of one piece after those of the one before. Sparse
// layers have no gate_up and no down here.
struct LayerPieces {
  std::vector<WeightPiece> qkv, o, gate_up, down;
};

// `part`: the shape that the shard computes with.
LayerPieces PiecesOfLayer(const ModelConfig& part, WeightShard shard, int layer);
// Of an lm_head of its own.
std::vector<WeightPiece> LmHeadPieces(const ModelConfig& part, WeightShard shard);
// Outputs of lm_head that a shard has: all, where they cannot be divided.
int LmHeadFeatures(const ModelConfig& part, WeightShard shard);

}  // namespace winnow
