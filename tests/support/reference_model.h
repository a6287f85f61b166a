#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/model/checkpoint.h"
#include "common/model/layer_names.h"
#include "common/model/model_config.h"
#include "common/model/rope.h"

namespace winnow {

// A plain decoder forward pass for tests: reads the checkpoint's tensors as they are, keeps f32 activations, sums in
// f64, uses no kernel. Token by token with its own KV cache.
class ReferenceModel {
 public:
  ReferenceModel(const Checkpoint& checkpoint, const ModelConfig& config);

  // The positions that a query head of the newest token attends to, from its scaled scores of all positions so far.
  using Attended = std::function<std::vector<uint32_t>(int layer, int query_head, std::span<const double> scores)>;

  // Appends one token at the next position, which attends to everything, or to what `attended` says.
  void Append(uint32_t token_id, const Attended& attended = nullptr);
  // Logits [vocab_size] after the newest token.
  std::vector<float> Logits() const;
  void Clear();

 private:
  using Vector = std::vector<float>;

  Vector Tensor(const Checkpoint& checkpoint, std::string_view name) const;
  // y = W x + b; the bias is optional.
  Vector Project(const std::string& name, const Vector& x) const;
  Vector RmsNorm(const std::string& name, const Vector& x) const;
  void NormHeads(const std::string& name, Vector& heads) const;
  void RotateHeads(const RopeTable& rope, int position, Vector& heads) const;
  Vector Attention(int layer, const Vector& x, const Attended& attended);
  // As published: keys and values of every head are made of the latents.
  Vector LatentAttention(int layer, const Vector& x, const Attended& attended);
  // The gated delta rule as published, one token at a time.
  Vector LinearAttention(int layer, const Vector& x);
  // The positions that the model's own indexer chooses for the newest token.
  std::vector<uint32_t> Indexed(const LayerNames& names, const Vector& x, const Vector& query_latent,
                                std::vector<Vector>& index_keys) const;
  // Rotates pairs of `part` by the newest position; neighbours, or half of `part` apart.
  void Rotate(std::span<float> part, bool interleaved) const;
  Vector LatentNorm(const std::string& name, const Vector& x) const;
  Vector Mlp(int layer, const Vector& x) const;
  // The projections' outputs, one after the other.
  Vector ProjectAll(const std::vector<std::string>& names, const Vector& x) const;
  Vector Gated(const Vector& gate_up) const;
  Vector Expert(const LayerNames& names, size_t expert, const Vector& x) const;
  Vector Experts(const LayerNames& names, const Vector& x) const;
  // DeepSeek's routing: the chosen experts with their weights.
  std::map<size_t, double> GroupedChoice(const LayerNames& names, const Vector& logits) const;
  const Vector& Weight(const std::string& name) const { return weights_.at(name); }

  ModelConfig config_;
  RopeTable rope_, window_rope_;
  std::map<std::string, Vector> weights_;
  int position_ = 0;
  std::vector<std::vector<Vector>> keys_;    // [layer][position]: kv_features, rotated
  std::vector<std::vector<Vector>> values_;  // [layer][position]: kv_features
  // Of latent attention keys_ are latents and what turns, rotated.
  std::vector<std::vector<Vector>> index_keys_;    // [layer][position]
  std::vector<std::vector<Vector>> conv_inputs_;   // [layer][position]: queries, keys and values before convolution
  std::vector<std::vector<double>> delta_states_;  // [layer]: [value head][key_dim][value_dim]
  Vector hidden_;
};

}  // namespace winnow
