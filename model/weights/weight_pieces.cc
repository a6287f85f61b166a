#include "model/weights/weight_pieces.h"

#include "common/model/model_tensors.h"

namespace winnow {

LayerPieces PiecesOfLayer(const ModelConfig& part, WeightShard shard, int layer) {
  const size_t index = shard.index, shards = shard.count;
  const size_t hidden = part.hidden_size, intermediate = part.intermediate_size;
  const size_t q = part.q_features(), kv = part.kv_features();
  const auto rows = [&](const char* name, size_t count) {
    return WeightPiece{LayerTensor(layer, name), count * shards, hidden, index * count, count, 0, hidden};
  };
  const auto columns = [&](const char* name, size_t count) {
    return WeightPiece{LayerTensor(layer, name), hidden, count * shards, 0, hidden, index * count, count};
  };
  LayerPieces pieces;
  pieces.qkv = {rows("self_attn.q_proj.weight", q), rows("self_attn.k_proj.weight", kv),
                rows("self_attn.v_proj.weight", kv)};
  pieces.o = {columns("self_attn.o_proj.weight", q)};
  if (part.moe.IsSparse(layer)) return pieces;
  pieces.gate_up = {rows("mlp.gate_proj.weight", intermediate), rows("mlp.up_proj.weight", intermediate)};
  pieces.down = {columns("mlp.down_proj.weight", intermediate)};
  return pieces;
}

int LmHeadFeatures(const ModelConfig& part, WeightShard shard) {
  return part.vocab_size % shard.count == 0 ? part.vocab_size / shard.count : part.vocab_size;
}

std::vector<WeightPiece> LmHeadPieces(const ModelConfig& part, WeightShard shard) {
  const size_t vocab = part.vocab_size, hidden = part.hidden_size, features = LmHeadFeatures(part, shard);
  const size_t first = features == vocab ? 0 : shard.index * features;
  return {{std::string(kLmHeadTensor), vocab, hidden, first, features, 0, hidden}};
}

}  // namespace winnow
