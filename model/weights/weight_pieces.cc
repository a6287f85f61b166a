#include "model/weights/weight_pieces.h"

#include "common/model/layer_names.h"
#include "common/model/model_tensors.h"

namespace winnow {

LayerPieces PiecesOfLayer(const ModelConfig& part, WeightShard shard, int layer) {
  const size_t index = shard.index, shards = shard.count;
  const size_t hidden = part.hidden_size, intermediate = part.intermediate_size;
  const size_t q = part.q_features(), kv = part.kv_features();
  const LayerNames names = LayerNamesOf(part, layer);
  // `count` rows of a shard; where a tensor of `tensor_rows` has others before them, from `first` on.
  const auto rows = [&](const std::string& projection, size_t count, size_t tensor_rows, size_t first) {
    return WeightPiece{
        projection + ".weight", tensor_rows * shards, hidden, first * shards + index * count, count, 0, hidden};
  };
  const auto columns = [&](const std::string& projection, size_t count) {
    return WeightPiece{projection + ".weight", hidden, count * shards, 0, hidden, index * count, count};
  };
  LayerPieces pieces;
  if (part.latent) {
    const size_t queries = part.query_projection_features(), key = part.latent->shape.key_dim();
    pieces.qkv = {rows(names.qkv[0], queries, queries, 0), rows(names.qkv[1], key, key, 0)};
    if (const IndexerConfig& indexer = part.latent->indexer; indexer.num_heads > 0) {
      const auto dim = static_cast<size_t>(indexer.head_dim), heads = static_cast<size_t>(indexer.num_heads);
      pieces.qkv.push_back(rows(names.index_key, dim, dim, 0));
      pieces.qkv.push_back(rows(names.index_weight, heads, heads, 0));
    }
  } else if (names.qkv.size() == 1) {
    const size_t all = q + 2 * kv;
    pieces.qkv = {rows(names.qkv[0], q, all, 0), rows(names.qkv[0], kv, all, q), rows(names.qkv[0], kv, all, q + kv)};
  } else {
    pieces.qkv = {rows(names.qkv[0], q, q, 0), rows(names.qkv[1], kv, kv, 0), rows(names.qkv[2], kv, kv, 0)};
  }
  pieces.o = {columns(names.o, part.o_features())};
  if (part.moe.IsSparse(layer)) return pieces;
  if (names.gate_up.size() == 1) {
    pieces.gate_up = {rows(names.gate_up[0], intermediate, 2 * intermediate, 0),
                      rows(names.gate_up[0], intermediate, 2 * intermediate, intermediate)};
  } else {
    pieces.gate_up = {rows(names.gate_up[0], intermediate, intermediate, 0),
                      rows(names.gate_up[1], intermediate, intermediate, 0)};
  }
  pieces.down = {columns(names.down, intermediate)};
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
