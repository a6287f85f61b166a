// Attention of the plain forward pass: with keys and values, over latents with and without an indexer, and linear.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/check.h"
#include "common/model/model_tensors.h"
#include "tests/support/reference_model.h"

namespace winnow {

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

}  // namespace winnow
