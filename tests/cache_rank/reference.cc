#include "tests/cache_rank/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace winnow::test {
namespace {

double Dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

ServedShape SmallShape(int num_layers) {
  v1::KvShape shape;
  shape.set_num_layers(num_layers);
  shape.set_num_query_heads(4);
  shape.set_num_kv_heads(2);
  shape.set_head_dim(16);
  shape.set_kv_dtype(v1::KV_DTYPE_F32);
  for (int i = 0; i < 8; ++i) shape.add_rope_inv_freq(static_cast<float>(std::pow(10000.0, -i / 8.0)));
  shape.set_rope_attention_factor(1);
  shape.set_attention_scale(1.0f);  // larger than 1/sqrt(16): sharper softmaxes make wrong selections visible
  return ParseKvShape(shape).value();
}

SelectionSpec SmallSpec(Predictor predictor) {
  SelectionSpec spec;
  spec.preset = "test";
  spec.predictor = predictor;
  spec.budget_tokens = 48;
  spec.sink_tokens = 4;
  spec.recent_tokens = 32;
  return spec;
}

float Noise(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  // splitmix64 over the arguments.
  uint64_t x = seed;
  for (uint64_t part : {a, b, c}) {
    x += part + 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
  }
  return static_cast<float>(static_cast<double>(x >> 11) / (1ull << 52) - 1.0);
}

Vector RotateReference(const Vector& q, uint32_t position, const RopeShape& rope) {
  const size_t half = q.size() / 2;
  Vector out(q.size());
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * rope.inv_freq[i];
    const double c = std::cos(angle) * rope.attention_factor, s = std::sin(angle) * rope.attention_factor;
    out[i] = q[i] * c - q[i + half] * s;
    out[i + half] = q[i + half] * c + q[i] * s;
  }
  return out;
}

Vector RegressReference(TemporalVariant variant, const std::vector<Vector>& queries) {
  const int w = static_cast<int>(queries.size()) - 1;
  const Vector& y = queries.back();
  if (w == 0) return y;
  double mean = 0;
  for (int i = 0; i < w; ++i) mean += Dot(queries[i], queries[i]) / w;
  std::vector<Vector> a(w, Vector(w + 1));
  for (int i = 0; i < w; ++i) {
    for (int j = 0; j < w; ++j) a[i][j] = Dot(queries[i], queries[j]) + (i == j ? 1e-3 * mean : 0);
    a[i][w] = Dot(queries[i], y);
  }
  for (int column = 0; column < w; ++column) {
    int pivot = column;
    for (int i = column; i < w; ++i) pivot = std::abs(a[i][column]) > std::abs(a[pivot][column]) ? i : pivot;
    std::swap(a[column], a[pivot]);
    for (int i = 0; i < w; ++i) {
      if (i == column) continue;
      const double factor = a[i][column] / a[column][column];
      for (int j = column; j <= w; ++j) a[i][j] -= factor * a[column][j];
    }
  }
  Vector v(w);
  for (int i = 0; i < w; ++i) v[i] = a[i][w] / a[i][i];
  if (variant == TemporalVariant::kSoftmax) {
    double sum = 0;
    for (double& x : v) sum += x = std::exp(x);
    for (double& x : v) x /= sum;
  } else if (variant == TemporalVariant::kClipped) {
    double sum = 0;
    for (double& x : v) sum += x = std::max(x, 0.0);
    for (double& x : v) x /= std::max(sum, 1e-6);
  }
  Vector out(y.size());
  for (size_t d = 0; d < y.size(); ++d) {
    for (int i = 0; i < w; ++i) out[d] += v[i] * queries[i + 1][d];
  }
  return out;
}

double ScoreReference(const Vector& query, const Vector& key, double scale, double cap) {
  const double score = scale * Dot(query, key);
  return cap > 0 ? cap * std::tanh(score / cap) : score;
}

Vector SoftmaxReference(const Vector& query, const std::vector<Vector>& keys, double scale, double cap) {
  Vector p(keys.size());
  double max = -INFINITY, sum = 0;
  for (size_t j = 0; j < keys.size(); ++j) max = std::max(max, p[j] = ScoreReference(query, keys[j], scale, cap));
  for (double& x : p) sum += x = std::exp(x - max);
  for (double& x : p) x /= sum;
  return p;
}

Vector ImportanceReference(GroupAggregation aggregation, const std::vector<Vector>& queries,
                           const std::vector<Vector>& keys, double scale, double cap) {
  Vector importance(keys.size(), aggregation == GroupAggregation::kMax ? -INFINITY : 0.0);
  for (const Vector& query : queries) {
    const Vector softmax = SoftmaxReference(query, keys, scale, cap);
    for (size_t j = 0; j < keys.size(); ++j) {
      const double score = ScoreReference(query, keys[j], scale, cap);
      if (aggregation == GroupAggregation::kSoftmaxSum) importance[j] += softmax[j];
      if (aggregation == GroupAggregation::kMax) importance[j] = std::max(importance[j], score);
      if (aggregation == GroupAggregation::kMean) importance[j] += score / static_cast<double>(queries.size());
    }
  }
  return importance;
}

double MassReference(const std::vector<Vector>& queries, const std::vector<Vector>& keys, double scale, uint32_t sinks,
                     const std::vector<uint32_t>& selected, uint32_t recent_start, double cap) {
  double mass = 0;
  for (const Vector& query : queries) {
    const Vector p = SoftmaxReference(query, keys, scale, cap);
    for (size_t j = 0; j < keys.size(); ++j) {
      const bool attended = j < sinks || j >= recent_start || std::count(selected.begin(), selected.end(), j) > 0;
      mass += attended ? p[j] : 0;
    }
  }
  return mass / static_cast<double>(queries.size());
}

double PageScoreReference(bool cuboid, const Vector& query, const std::vector<Vector>& keys, uint32_t first,
                          uint32_t tokens) {
  double score = 0;
  for (size_t d = 0; d < query.size(); ++d) {
    double hi = -INFINITY, lo = INFINITY, distance = 0;
    for (uint32_t r = first; r < first + tokens; ++r) {
      hi = std::max(hi, keys[r][d]);
      lo = std::min(lo, keys[r][d]);
    }
    const double centre = (hi + lo) / 2;
    for (uint32_t r = first; r < first + tokens; ++r) distance += std::abs(keys[r][d] - centre) / tokens;
    if (cuboid) hi = centre + distance, lo = centre - distance;
    score += std::max(query[d] * hi, query[d] * lo);
  }
  return score;
}

Vector HierarchicalReference(const Vector& query, const std::vector<Vector>& keys, uint32_t end, uint32_t page,
                             uint32_t physical_page) {
  Vector best(end, -INFINITY);
  for (uint32_t first = 0; first + page <= end; first += page) {
    double bound = 0;
    for (size_t d = 0; d < query.size(); ++d) {
      double most = -INFINITY;
      for (uint32_t j = first; j < first + page; ++j) most = std::max(most, query[d] * keys[j][d]);
      bound += most;
    }
    const uint32_t begin = first / physical_page * physical_page;
    for (uint32_t j = begin; j < std::min(begin + physical_page, end); ++j) best[j] = std::max(best[j], bound);
  }
  return best;
}

std::string CheckTopK(const Vector& importance, const std::vector<uint32_t>& selected, uint32_t first, uint32_t last,
                      uint32_t count, double tolerance) {
  if (selected.size() != count) return "selected " + std::to_string(selected.size()) + " of " + std::to_string(count);
  std::vector<bool> in(importance.size());
  double least = INFINITY;
  for (size_t i = 0; i < selected.size(); ++i) {
    if (selected[i] < first || selected[i] >= last)
      return "position " + std::to_string(selected[i]) + " is outside the range";
    if (i > 0 && selected[i] <= selected[i - 1]) return "positions are not ascending";
    in[selected[i]] = true;
    least = std::min(least, importance[selected[i]]);
  }
  for (uint32_t j = first; j < last; ++j) {
    if (!in[j] && importance[j] - least > tolerance * std::min(1.0, std::abs(importance[j]))) {
      return "position " + std::to_string(j) + " of importance " + std::to_string(importance[j]) + " is left out, " +
             std::to_string(least) + " is in";
    }
  }
  return "";
}

}  // namespace winnow::test
