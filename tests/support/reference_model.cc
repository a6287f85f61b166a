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

ReferenceModel::Vector ReferenceModel::LatentNorm(const std::string& name, const Vector& x) const {
  const Vector& w = Weight(name);
  double sum = 0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(x[i] * scale * w[i]);
  return y;
}

std::vector<uint32_t> ReferenceModel::Indexed(const LayerNames& names, const Vector& x, const Vector& query_latent,
                                              std::vector<Vector>& index_keys) const {
  const IndexerConfig& indexer = config_.latent->indexer;
  const auto dim = static_cast<size_t>(indexer.head_dim), rope = static_cast<size_t>(config_.latent->shape.rope_dim);
  Vector key = Project(names.index_key, x);
  double mean = 0, square = 0;
  for (const float value : key) mean += value / static_cast<double>(dim);
  for (const float value : key) square += (value - mean) * (value - mean) / static_cast<double>(dim);
  for (size_t i = 0; i < dim; ++i) {
    key[i] = static_cast<float>((key[i] - mean) / std::sqrt(square + 1e-6) * Weight(names.index_norm)[i] +
                                Weight(names.index_norm_bias)[i]);
  }
  Rotate(std::span(key).first(rope), indexer.interleaved);
  index_keys.push_back(std::move(key));
  Vector queries = Project(names.index_query, query_latent);
  const Vector weights = Project(names.index_weight, x);
  std::vector<double> scores(index_keys.size());
  for (size_t head = 0; head < weights.size(); ++head) {
    const std::span<float> query = std::span(queries).subspan(head * dim, dim);
    Rotate(query.first(rope), indexer.interleaved);
    for (size_t t = 0; t < scores.size(); ++t) {
      double dot = 0;
      for (size_t i = 0; i < dim; ++i) dot += static_cast<double>(query[i]) * index_keys[t][i];
      scores[t] += weights[head] * std::max(dot, 0.0);
    }
  }
  std::vector<uint32_t> chosen(scores.size());
  std::iota(chosen.begin(), chosen.end(), 0u);
  std::stable_sort(chosen.begin(), chosen.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  chosen.resize(std::min(chosen.size(), static_cast<size_t>(indexer.top_k)));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

ReferenceModel::Vector ReferenceModel::LatentAttention(int layer, const Vector& x, const Attended& attended) {
  const LayerNames names = LayerNamesOf(config_, layer);
  const LatentConfig& latent = *config_.latent;
  const auto rank = static_cast<size_t>(latent.shape.rank), nope = static_cast<size_t>(latent.nope_dim),
             value_dim = static_cast<size_t>(latent.value_dim), query_dim = static_cast<size_t>(latent.query_dim());
  Vector query_latent = Project(names.qkv[0], x), q = query_latent;
  if (latent.query_rank > 0) {
    query_latent = LatentNorm(names.query_latent_norm, query_latent);
    q = Project(names.query_up, query_latent);
  }
  const Vector projected = Project(names.qkv[1], x);
  Vector key = LatentNorm(names.key_latent_norm, Vector(projected.begin(), projected.begin() + latent.shape.rank));
  key.insert(key.end(), projected.begin() + latent.shape.rank, projected.end());
  Rotate(std::span(key).subspan(rank), latent.interleaved);
  auto& keys = keys_[static_cast<size_t>(layer)];
  keys.push_back(std::move(key));
  std::vector<uint32_t> positions(keys.size());
  std::iota(positions.begin(), positions.end(), 0u);
  if (latent.indexer.num_heads > 0) {
    positions = Indexed(names, x, query_latent, index_keys_[static_cast<size_t>(layer)]);
  }

  std::vector<Vector> expanded;  // of each position: keys and values of all heads
  for (const Vector& at : keys) {
    expanded.push_back(Project(names.key_value_up, Vector(at.begin(), at.begin() + latent.shape.rank)));
  }
  Vector out;
  for (size_t head = 0; head < static_cast<size_t>(config_.num_query_heads); ++head) {
    const std::span<float> query = std::span(q).subspan(head * query_dim, query_dim);
    Rotate(query.subspan(nope), latent.interleaved);
    const size_t first = head * (nope + value_dim);
    std::vector<double> scores(keys.size());
    for (size_t t = 0; t < keys.size(); ++t) {
      double dot = 0;
      for (size_t i = 0; i < nope; ++i) dot += static_cast<double>(query[i]) * expanded[t][first + i];
      for (size_t i = nope; i < query_dim; ++i) dot += static_cast<double>(query[i]) * keys[t][rank + i - nope];
      scores[t] = dot * config_.attention_scale;
    }
    const std::vector<uint32_t> read = attended ? attended(layer, static_cast<int>(head), scores) : positions;
    double largest = -INFINITY, total = 0;
    for (const uint32_t t : read) largest = std::max(largest, scores[t]);
    std::vector<double> sums(value_dim);
    for (const uint32_t t : read) {
      const double weight = std::exp(scores[t] - largest);
      total += weight;
      for (size_t i = 0; i < value_dim; ++i) sums[i] += weight * expanded[t][first + nope + i];
    }
    for (const double sum : sums) out.push_back(static_cast<float>(sum / total));
  }
  return Project(names.o, out);
}

ReferenceModel::Vector ReferenceModel::LinearAttention(int layer, const Vector& x) {
  const LayerNames names = LayerNamesOf(config_, layer);
  const GatedDeltaConfig& shape = *config_.delta;
  const auto dk = static_cast<size_t>(shape.key_dim), dv = static_cast<size_t>(shape.value_dim),
             groups = static_cast<size_t>(shape.num_key_heads), shared = static_cast<size_t>(shape.values_per_key()),
             width = static_cast<size_t>(shape.conv_width);
  const Vector projected = ProjectAll(names.qkv, x), rates = ProjectAll(names.rates, x);
  Vector inputs, gates;
  const size_t group_size = 2 * dk + 2 * shared * dv;
  const auto append = [&](Vector& to, size_t group, size_t first, size_t count) {
    const auto at = projected.begin() + static_cast<std::ptrdiff_t>(group * group_size + first);
    to.insert(to.end(), at, at + static_cast<std::ptrdiff_t>(count));
  };
  for (size_t g = 0; shape.by_key_head && g < groups; ++g) append(inputs, g, 0, dk);
  for (size_t g = 0; shape.by_key_head && g < groups; ++g) append(inputs, g, dk, dk);
  for (size_t g = 0; shape.by_key_head && g < groups; ++g) append(inputs, g, 2 * dk, shared * dv);
  for (size_t g = 0; shape.by_key_head && g < groups; ++g) append(gates, g, 2 * dk + shared * dv, shared * dv);
  if (!shape.by_key_head) {
    const auto end_of_inputs = projected.begin() + shape.conv_features();
    inputs.assign(projected.begin(), end_of_inputs);
    gates.assign(end_of_inputs, projected.end());
  }
  auto& history = conv_inputs_[static_cast<size_t>(layer)];
  history.push_back(inputs);
  std::vector<double> mixed(inputs.size());
  for (size_t c = 0; c < mixed.size(); ++c) {
    for (size_t tap = 0; tap < width; ++tap) {
      if (history.size() + tap < width) continue;
      mixed[c] += double{Weight(names.conv)[c * width + tap]} * history[history.size() + tap - width][c];
    }
    mixed[c] /= 1 + std::exp(-mixed[c]);
  }
  auto& states = delta_states_[static_cast<size_t>(layer)];
  states.resize(groups * shared * dk * dv);
  Vector out;
  for (size_t head = 0; head < groups * shared; ++head) {
    const size_t g = head / shared, in_group = head % shared;
    const auto normed = [&](size_t first, double length) {
      std::vector<double> v(mixed.begin() + static_cast<std::ptrdiff_t>(first),
                            mixed.begin() + static_cast<std::ptrdiff_t>(first + dk));
      double square = 0;
      for (const double value : v) square += value * value;
      for (double& value : v) value *= length / std::sqrt(square + 1e-6);
      return v;
    };
    const std::vector<double> query = normed(g * dk, 1 / std::sqrt(static_cast<double>(dk))),
                              key = normed((groups + g) * dk, 1);
    const size_t learns = shape.by_key_head ? g * 2 * shared + in_group : head;
    const size_t forgets = shape.by_key_head ? learns + shared : head + groups * shared;
    const double beta = 1 / (1 + std::exp(-double{rates[learns]}));
    const double forgetting = double{rates[forgets]} + Weight(names.rate_bias)[head];
    const double decay =
        std::exp(-std::exp(double{Weight(names.log_forgetting)[head]}) * std::log1p(std::exp(forgetting)));
    double* const state = states.data() + head * dk * dv;
    std::vector<double> answer(dv);
    double square = 0;
    for (size_t j = 0; j < dv; ++j) {
      double recalled = 0;
      for (size_t i = 0; i < dk; ++i) recalled += key[i] * (state[i * dv + j] *= decay);
      const double learnt = beta * (mixed[2 * groups * dk + head * dv + j] - recalled);
      for (size_t i = 0; i < dk; ++i) answer[j] += query[i] * (state[i * dv + j] += key[i] * learnt);
      square += answer[j] * answer[j];
    }
    for (size_t j = 0; j < dv; ++j) {
      const double gate = gates[head * dv + j];
      out.push_back(static_cast<float>(answer[j] / std::sqrt(square / static_cast<double>(dv) + config_.rms_norm_eps) *
                                       Weight(names.delta_norm)[j] * gate / (1 + std::exp(-gate))));
    }
  }
  return Project(names.o, out);
}

ReferenceModel::Vector ReferenceModel::Attention(int layer, const Vector& x, const Attended& attended) {
  if (config_.latent) return LatentAttention(layer, x, attended);
  if (config_.is_delta(layer)) return LinearAttention(layer, x);
  const LayerNames names = LayerNamesOf(config_, layer);
  Vector qkv = ProjectAll(names.qkv, x), gates;
  if (config_.attention_gate) {  // each head's query is followed by its gate
    Vector without;
    for (int i = 0; i < config_.query_projection_features(); ++i) {
      (i / config_.head_dim % 2 == 0 ? without : gates).push_back(qkv[static_cast<size_t>(i)]);
    }
    without.insert(without.end(), qkv.begin() + config_.query_projection_features(), qkv.end());
    qkv = without;
  }
  const auto part = [&](int begin, int count) { return Vector(qkv.begin() + begin, qkv.begin() + begin + count); };
  Vector q = part(0, config_.q_features());
  Vector k = part(config_.q_features(), config_.kv_features());
  Vector v = part(config_.q_features() + config_.kv_features(), config_.kv_features());
  if (config_.qk_norm) {
    NormHeads(names.q_norm, q);
    NormHeads(names.k_norm, k);
  }
  const int window = static_cast<int>(config_.window(layer));
  const RopeTable& rope = window > 0 ? window_rope_ : rope_;
  RotateHeads(rope, position_, q);
  RotateHeads(rope, position_, k);
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
      scores[t] =
          config_.attention_scale > 0 ? dot * config_.attention_scale : dot / std::sqrt(static_cast<double>(dim));
      if (const double cap = config_.attention_softcap; cap > 0) scores[t] = cap * std::tanh(scores[t] / cap);
    }
    if (attended) positions = attended(layer, static_cast<int>(head), scores);
    if (window > 0) {
      positions.clear();
      for (int t = std::max(0, position_ - window + 1); t <= position_; ++t) {
        positions.push_back(static_cast<uint32_t>(t));
      }
    }
    double largest = config_.attention_sinks ? Weight(names.sinks)[head] : -INFINITY;
    for (const uint32_t t : positions) largest = std::max(largest, scores[t]);
    double total = config_.attention_sinks ? std::exp(Weight(names.sinks)[head] - largest) : 0;
    std::vector<double> sums(dim);
    for (const uint32_t t : positions) {
      const double weight = std::exp(scores[t] - largest);
      total += weight;
      for (size_t i = 0; i < dim; ++i) sums[i] += weight * values[t][kv + i];
    }
    for (size_t i = 0; i < dim; ++i) out[head * dim + i] = static_cast<float>(sums[i] / total);
  }
  for (size_t i = 0; i < gates.size(); ++i) out[i] = static_cast<float>(out[i] / (1 + std::exp(-double{gates[i]})));
  return RmsNorm(names.attention_post_norm, Project(names.o, out));
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
