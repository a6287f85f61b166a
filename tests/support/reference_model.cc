#include "tests/support/reference_model.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "common/base/check.h"
#include "common/model/model_tensors.h"

namespace winnow {
namespace {

double HalfToDouble(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

void AddTo(std::vector<float>& x, const std::vector<float>& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

ReferenceModel::ReferenceModel(const Checkpoint& checkpoint, const ModelConfig& config)
    : config_(config), rope_(ComputeRope(config.rope, config.head_dim)) {
  for (const std::string& name : checkpoint.names()) weights_[name] = Tensor(checkpoint, name);
  Clear();
}

void ReferenceModel::Clear() {
  position_ = 0;
  keys_.assign(static_cast<size_t>(config_.num_layers), {});
  values_ = keys_;
}

ReferenceModel::Vector ReferenceModel::Tensor(const Checkpoint& checkpoint, std::string_view name) const {
  const TensorView view = checkpoint.Find(name).value();
  const size_t width = TensorDtypeBytes(view.dtype);
  Vector out(view.bytes.size() / width);
  for (size_t i = 0; i < out.size(); ++i) {
    uint32_t word = 0;
    std::memcpy(&word, view.bytes.data() + i * width, width);
    if (view.dtype == TensorDtype::kF16) {
      out[i] = static_cast<float>(HalfToDouble(static_cast<uint16_t>(word)));
    } else {
      WINNOW_CHECK(view.dtype == TensorDtype::kBf16 || view.dtype == TensorDtype::kF32);
      if (view.dtype == TensorDtype::kBf16) word <<= 16;
      std::memcpy(&out[i], &word, 4);
    }
  }
  return out;
}

ReferenceModel::Vector ReferenceModel::Project(const std::string& name, const Vector& x) const {
  const Vector& w = Weight(name + ".weight");
  Vector y(w.size() / x.size());
  for (size_t n = 0; n < y.size(); ++n) {
    double sum = 0;
    for (size_t k = 0; k < x.size(); ++k) sum += static_cast<double>(w[n * x.size() + k]) * x[k];
    y[n] = static_cast<float>(sum);
  }
  if (const auto bias = weights_.find(name + ".bias"); bias != weights_.end()) AddTo(y, bias->second);
  return y;
}

ReferenceModel::Vector ReferenceModel::RmsNorm(const std::string& name, const Vector& x) const {
  const Vector& w = Weight(name);
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + config_.rms_norm_eps);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(x[i] * scale * w[i]);
  return y;
}

void ReferenceModel::NormHeads(const std::string& name, Vector& heads) const {
  const auto dim = static_cast<size_t>(config_.head_dim);
  for (size_t begin = 0; begin < heads.size(); begin += dim) {
    const auto at = heads.begin() + static_cast<std::ptrdiff_t>(begin);
    const Vector normed = RmsNorm(name, Vector(at, at + config_.head_dim));
    std::copy(normed.begin(), normed.end(), at);
  }
}

void ReferenceModel::RotateHeads(int position, Vector& heads) const {
  const auto dim = static_cast<size_t>(config_.head_dim);
  for (size_t begin = 0; begin < heads.size(); begin += dim) {
    for (size_t i = 0; i < dim / 2; ++i) {
      const float angle = static_cast<float>(position) * rope_.inv_freq[i];
      const double cos = std::cos(static_cast<double>(angle)) * rope_.attention_factor;
      const double sin = std::sin(static_cast<double>(angle)) * rope_.attention_factor;
      const double a = heads[begin + i];
      const double b = heads[begin + i + dim / 2];
      heads[begin + i] = static_cast<float>(a * cos - b * sin);
      heads[begin + i + dim / 2] = static_cast<float>(b * cos + a * sin);
    }
  }
}

ReferenceModel::Vector ReferenceModel::Attention(int layer, const Vector& x, const Attended& attended) {
  Vector q = Project(LayerTensor(layer, "self_attn.q_proj"), x);
  Vector k = Project(LayerTensor(layer, "self_attn.k_proj"), x);
  Vector v = Project(LayerTensor(layer, "self_attn.v_proj"), x);
  if (config_.qk_norm) {
    NormHeads(LayerTensor(layer, "self_attn.q_norm.weight"), q);
    NormHeads(LayerTensor(layer, "self_attn.k_norm.weight"), k);
  }
  RotateHeads(position_, q);
  RotateHeads(position_, k);
  auto& keys = keys_[static_cast<size_t>(layer)];
  auto& values = values_[static_cast<size_t>(layer)];
  keys.push_back(std::move(k));
  values.push_back(std::move(v));

  const auto dim = static_cast<size_t>(config_.head_dim);
  Vector out(q.size());
  std::vector<double> scores(keys.size());
  std::vector<uint32_t> positions(keys.size());
  std::iota(positions.begin(), positions.end(), 0u);
  for (size_t head = 0; head < static_cast<size_t>(config_.num_query_heads); ++head) {
    const size_t kv = head / static_cast<size_t>(config_.group_size()) * dim;
    for (size_t t = 0; t < keys.size(); ++t) {
      double dot = 0;
      for (size_t i = 0; i < dim; ++i) dot += static_cast<double>(q[head * dim + i]) * keys[t][kv + i];
      scores[t] = dot / std::sqrt(static_cast<double>(dim));
    }
    if (attended) positions = attended(layer, static_cast<int>(head), scores);
    double largest = -INFINITY;
    for (const uint32_t t : positions) largest = std::max(largest, scores[t]);
    double total = 0;
    std::vector<double> sums(dim);
    for (const uint32_t t : positions) {
      const double weight = std::exp(scores[t] - largest);
      total += weight;
      for (size_t i = 0; i < dim; ++i) sums[i] += weight * values[t][kv + i];
    }
    for (size_t i = 0; i < dim; ++i) out[head * dim + i] = static_cast<float>(sums[i] / total);
  }
  return Project(LayerTensor(layer, "self_attn.o_proj"), out);
}

ReferenceModel::Vector ReferenceModel::Mlp(int layer, const Vector& x) const {
  Vector gate = Project(LayerTensor(layer, "mlp.gate_proj"), x);
  const Vector up = Project(LayerTensor(layer, "mlp.up_proj"), x);
  for (size_t i = 0; i < gate.size(); ++i) {
    gate[i] = static_cast<float>(gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i]);
  }
  return Project(LayerTensor(layer, "mlp.down_proj"), gate);
}

void ReferenceModel::Append(uint32_t token_id, const Attended& attended) {
  const Vector& table = Weight(std::string(kEmbeddingTensor));
  const auto row = table.begin() + static_cast<std::ptrdiff_t>(token_id) * config_.hidden_size;
  hidden_.assign(row, row + config_.hidden_size);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    AddTo(hidden_, Attention(layer, RmsNorm(LayerTensor(layer, "input_layernorm.weight"), hidden_), attended));
    AddTo(hidden_, Mlp(layer, RmsNorm(LayerTensor(layer, "post_attention_layernorm.weight"), hidden_)));
  }
  ++position_;
}

std::vector<float> ReferenceModel::Logits() const {
  const Vector x = RmsNorm(std::string(kFinalNormTensor), hidden_);
  return Project(config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head", x);
}

}  // namespace winnow
