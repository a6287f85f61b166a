#include "tests/support/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
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
    : config_(config),
      rope_(ComputeRope(config.rope, config.rotary_dim)),
      window_rope_(ComputeRope(config.window_rope.value_or(config.rope), config.rotary_dim)) {
  for (const std::string& name : checkpoint.names()) weights_[name] = Tensor(checkpoint, name);
  Clear();
}

void ReferenceModel::Clear() {
  position_ = 0;
  keys_.assign(static_cast<size_t>(config_.num_layers), {});
  values_ = index_keys_ = conv_inputs_ = keys_;
  delta_states_.assign(static_cast<size_t>(config_.num_layers), {});
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
  if (name.empty()) return x;  // the model has none there
  Vector w = Weight(name);
  if (config_.norms_add_one) {
    for (float& weight : w) weight += 1;
  }
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + config_.rms_norm_eps);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(x[i] * scale * w[i]);
  return y;
}

void ReferenceModel::NormHeads(const std::string& name, Vector& heads) const {
  if (config_.qk_norm_projection) {
    heads = RmsNorm(name, heads);
    return;
  }
  const auto dim = static_cast<size_t>(config_.head_dim);
  for (size_t begin = 0; begin < heads.size(); begin += dim) {
    const auto at = heads.begin() + static_cast<std::ptrdiff_t>(begin);
    const Vector normed = RmsNorm(name, Vector(at, at + config_.head_dim));
    std::copy(normed.begin(), normed.end(), at);
  }
}

void ReferenceModel::RotateHeads(const RopeTable& rope, int position, Vector& heads) const {
  const auto dim = static_cast<size_t>(config_.head_dim);
  const size_t half = rope.inv_freq.size();  // of what turns, the first elements of a head
  for (size_t begin = 0; begin < heads.size(); begin += dim) {
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * rope.inv_freq[i];
      const double cos = std::cos(static_cast<double>(angle)) * rope.attention_factor;
      const double sin = std::sin(static_cast<double>(angle)) * rope.attention_factor;
      const double a = heads[begin + i];
      const double b = heads[begin + i + half];
      heads[begin + i] = static_cast<float>(a * cos - b * sin);
      heads[begin + i + half] = static_cast<float>(b * cos + a * sin);
    }
  }
}

void ReferenceModel::Rotate(std::span<float> part, bool interleaved) const {
  const size_t half = part.size() / 2;
  Vector turned(part.size());
  for (size_t i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position_) * rope_.inv_freq[i];
    const double cos = std::cos(static_cast<double>(angle)) * rope_.attention_factor;
    const double sin = std::sin(static_cast<double>(angle)) * rope_.attention_factor;
    const double a = part[interleaved ? 2 * i : i], b = part[interleaved ? 2 * i + 1 : i + half];
    turned[i] = static_cast<float>(a * cos - b * sin);
    turned[i + half] = static_cast<float>(b * cos + a * sin);
  }
  std::copy(turned.begin(), turned.end(), part.begin());
}

ReferenceModel::Vector ReferenceModel::Mlp(int layer, const Vector& x) const {
  const LayerNames names = LayerNamesOf(config_, layer);
  if (!names.router.empty()) return Experts(names, x);
  return RmsNorm(names.mlp_post_norm, Project(names.down, Gated(ProjectAll(names.gate_up, x))));
}

ReferenceModel::Vector ReferenceModel::ProjectAll(const std::vector<std::string>& names, const Vector& x) const {
  Vector all;
  for (const std::string& name : names) {
    const Vector y = Project(name, x);
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

ReferenceModel::Vector ReferenceModel::Gated(const Vector& gate_up) const {
  const size_t width = gate_up.size() / 2;
  Vector out(width);
  for (size_t i = 0; i < width; ++i) {
    double gate = gate_up[i], up = gate_up[width + i];
    switch (config_.activation) {
      case Activation::kSilu:
        out[i] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
        break;
      case Activation::kGeluTanh:
        out[i] = static_cast<float>(
            0.5 * gate * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate))) *
            up);
        break;
      case Activation::kClampedSilu:
        gate = std::min(gate, 7.0);
        up = std::clamp(up, -7.0, 7.0);
        out[i] = static_cast<float>(gate / (1 + std::exp(-1.702 * gate)) * (up + 1));
        break;
    }
  }
  return out;
}

ReferenceModel::Vector ReferenceModel::Expert(const LayerNames& names, size_t expert, const Vector& x) const {
  if (names.fused_down.empty()) {
    const LayerNames::Expert& parts = names.experts[expert];
    return Project(parts.down, Gated(ProjectAll(parts.gate_up, x)));
  }
  if (!config_.moe.biases) {  // [expert][out][in], gate and then up
    const auto rows = [&](const std::string& name, const Vector& in, size_t width) {
      const Vector& w = Weight(name);
      Vector y(width);
      for (size_t n = 0; n < width; ++n) {
        double sum = 0;
        for (size_t k = 0; k < in.size(); ++k) {
          sum += static_cast<double>(w[(expert * width + n) * in.size() + k]) * in[k];
        }
        y[n] = static_cast<float>(sum);
      }
      return y;
    };
    const auto width = static_cast<size_t>(config_.moe.intermediate_size);
    return rows(names.fused_down, Gated(rows(names.fused_gate_up, x, 2 * width)), x.size());
  }
  // [expert][in][out], gate and up in turn.
  const auto product = [&](const std::string& name, const Vector& in, size_t width) {
    const Vector& w = Weight(name);
    const Vector& bias = Weight(name + "_bias");
    Vector y(width);
    for (size_t n = 0; n < width; ++n) {
      double sum = bias[expert * width + n];
      for (size_t k = 0; k < in.size(); ++k) {
        sum += static_cast<double>(w[(expert * in.size() + k) * width + n]) * in[k];
      }
      y[n] = static_cast<float>(sum);
    }
    return y;
  };
  const size_t width = static_cast<size_t>(config_.moe.intermediate_size);
  const Vector pairs = product(names.fused_gate_up, x, 2 * width);
  Vector gate_up(2 * width);
  for (size_t i = 0; i < pairs.size(); ++i) gate_up[i % 2 * width + i / 2] = pairs[i];
  return product(names.fused_down, Gated(gate_up), x.size());
}

std::map<size_t, double> ReferenceModel::GroupedChoice(const LayerNames& names, const Vector& logits) const {
  const MoeConfig& moe = config_.moe;
  const auto groups = static_cast<size_t>(moe.groups), size = logits.size() / groups;
  std::vector<double> shares, corrected;
  double exponentials = 0;
  for (const float logit : logits) exponentials += std::exp(static_cast<double>(logit));
  for (const float logit : logits) {
    const double exponential = std::exp(static_cast<double>(logit));
    shares.push_back(moe.sigmoid ? exponential / (1 + exponential) : exponential / exponentials);
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    corrected.push_back(shares[i] + (moe.correction ? Weight(names.router_correction)[i] : 0));
  }
  const auto best = [](const std::vector<double>& of, size_t count) {
    std::vector<size_t> order(of.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return of[a] > of[b]; });
    order.resize(count);
    return order;
  };
  std::vector<double> sums;
  for (size_t group = 0; group < groups; ++group) {
    std::vector<double> of(corrected.begin() + static_cast<std::ptrdiff_t>(group * size),
                           corrected.begin() + static_cast<std::ptrdiff_t>((group + 1) * size));
    std::sort(of.rbegin(), of.rend());
    sums.push_back(size > 1 && moe.group_scores == 2 ? of[0] + of[1] : of[0]);
  }
  std::vector<double> in_reach(corrected.size(), -INFINITY);
  for (const size_t group : best(sums, static_cast<size_t>(moe.groups_per_token))) {
    for (size_t i = group * size; i < (group + 1) * size; ++i) in_reach[i] = corrected[i];
  }
  std::map<size_t, double> chosen;
  double total = 0;
  for (const size_t expert : best(in_reach, static_cast<size_t>(moe.experts_per_token))) {
    chosen[expert] = shares[expert];
    total += shares[expert];
  }
  for (auto& [expert, weight] : chosen) weight = weight / (moe.normalizes ? total + 1e-20 : 1) * moe.scale;
  return chosen;
}

ReferenceModel::Vector ReferenceModel::Experts(const LayerNames& names, const Vector& x) const {
  const Vector logits = Project(names.router, x);
  if (config_.moe.sigmoid || config_.family == ModelFamily::kDeepseekV2) {
    Vector sum(x.size());
    const auto add = [&](double weight, const Vector& y) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(weight * y[i]);
    };
    for (const auto& [expert, weight] : GroupedChoice(names, logits)) add(weight, Expert(names, expert, x));
    if (!names.down.empty()) add(1, Project(names.down, Gated(ProjectAll(names.gate_up, x))));
    return sum;
  }
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto chosen = static_cast<size_t>(config_.moe.experts_per_token);
  double total = 0;
  for (size_t i = 0; i < (config_.moe.normalizes ? chosen : order.size()); ++i) {
    total += std::exp(static_cast<double>(logits[order[i]]) - logits[order[0]]);
  }
  Vector sum(x.size());
  const auto add = [&](double weight, const Vector& y) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(weight * y[i]);
  };
  for (size_t i = 0; i < chosen; ++i) {
    add(std::exp(static_cast<double>(logits[order[i]]) - logits[order[0]]) / total, Expert(names, order[i], x));
  }
  if (!names.shared_gate.empty()) {
    add(1 / (1 + std::exp(-static_cast<double>(Project(names.shared_gate, x)[0]))),
        Project(names.down, Gated(ProjectAll(names.gate_up, x))));
  }
  return sum;
}

void ReferenceModel::Append(uint32_t token_id, const Attended& attended) {
  const Vector& table = Weight(std::string(kEmbeddingTensor));
  const auto row = table.begin() + static_cast<std::ptrdiff_t>(token_id) * config_.hidden_size;
  hidden_.assign(row, row + config_.hidden_size);
  for (float& value : hidden_) value *= config_.embedding_scale;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const LayerNames names = LayerNamesOf(config_, layer);
    AddTo(hidden_, Attention(layer, RmsNorm(names.attention_norm, hidden_), attended));
    AddTo(hidden_, Mlp(layer, RmsNorm(names.mlp_norm, hidden_)));
  }
  ++position_;
}

std::vector<float> ReferenceModel::Logits() const {
  const Vector x = RmsNorm(std::string(kFinalNormTensor), hidden_);
  Vector logits = Project(config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head", x);
  if (const float cap = config_.final_logit_softcap; cap > 0) {
    for (float& logit : logits) logit = cap * std::tanh(logit / cap);
  }
  return logits;
}

}  // namespace winnow
