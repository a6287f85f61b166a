#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"
#include "tests/support/host_gpu/host_cpu.h"
#include "tests/support/host_gpu/host_exchange.h"

namespace winnow::test {
namespace {

using device::Stream;

void RotateQueries(Stream, const device::RotateQueriesParams& p) {
  const size_t features = static_cast<size_t>(p.num_heads) * p.head_dim;
  std::vector<float> query(features);
  for (int row = 0; row < p.num_rows; ++row) {
    if (p.positions[row] == device::kNoPosition) continue;
    for (size_t i = 0; i < features; ++i)
      query[i] = p.queries[row * features + i] + (p.bias == nullptr ? 0 : p.bias[i]);
    for (int head = 0; head < p.num_heads && p.norm_weight != nullptr; ++head) {
      float* values = query.data() + static_cast<size_t>(head) * p.head_dim;
      const double squares = std::inner_product(values, values + p.head_dim, values, 0.0);
      const double factor = 1 / std::sqrt(squares / p.head_dim + p.norm_epsilon);
      for (int d = 0; d < p.head_dim; ++d) values[d] = static_cast<float>(values[d] * factor) * p.norm_weight[d];
    }
    Cpu().rotate({.q_pre_rope = query.data(),
                  .num_rows = 1,
                  .num_heads = p.num_heads,
                  .head_dim = p.head_dim,
                  .positions = p.positions + row,
                  .rope_inv_freq = p.rope.inv_freq,
                  .rope_attention_factor = p.rope.attention_factor,
                  .q = p.out + row * features});
  }
}

void Rotate(const device::RopeParams& rope, uint32_t position, int head_dim, const float* query, float* out) {
  Cpu().rotate({.q_pre_rope = query,
                .num_rows = 1,
                .num_heads = 1,
                .head_dim = head_dim,
                .positions = &position,
                .rope_inv_freq = rope.inv_freq,
                .rope_attention_factor = rope.attention_factor,
                .q = out});
}

void StoreQueries(Stream, const device::StoreQueriesParams& p) {
  for (int item = 0; item < p.num_rows * p.num_heads; ++item) {
    const int row = item / p.num_heads;
    const uint32_t position = p.positions[row];
    if (position == device::kNoPosition) continue;
    const float* query = p.queries + static_cast<size_t>(item) * p.head_dim;
    float* out = p.rings.queries + p.sequences[row] * p.rings.sequence_stride +
                 (static_cast<size_t>(position % p.rings.capacity) * p.num_heads + item % p.num_heads) * p.head_dim;
    std::copy_n(query, p.head_dim, out);
  }
}

// Gauss-Jordan elimination of (X X^T + lambda I) v = X y, which is positive definite.
std::vector<double> Blend(const std::vector<const float*>& past, int head_dim, device::BlendWeights weights) {
  const size_t w = past.size() - 1;
  std::vector<std::vector<double>> rows(w, std::vector<double>(w + 1));
  double trace = 0;
  for (size_t i = 0; i < w; ++i) {
    for (size_t j = 0; j <= w; ++j) rows[i][j] = std::inner_product(past[i], past[i] + head_dim, past[j], 0.0);
    trace += rows[i][i];
  }
  for (size_t i = 0; i < w; ++i) rows[i][i] += 1e-3 * trace / static_cast<double>(w);
  for (size_t k = 0; k < w; ++k) {
    for (size_t i = 0; i < w; ++i) {
      if (i == k) continue;
      const double factor = rows[i][k] / rows[k][k];
      for (size_t j = k; j <= w; ++j) rows[i][j] -= factor * rows[k][j];
    }
  }
  std::vector<double> v(w);
  for (size_t i = 0; i < w; ++i) v[i] = rows[i][w] / rows[i][i];
  WINNOW_CHECK(weights == device::BlendWeights::kSoftmax);
  const double most = *std::max_element(v.begin(), v.end());
  double sum = 0;
  for (double& value : v) sum += value = std::exp(value - most);
  for (double& value : v) value /= sum;
  return v;
}

void PredictQueries(Stream, const device::PredictQueriesParams& p) {
  for (int item = 0; item < p.num_rows * p.num_heads; ++item) {
    const int row = item / p.num_heads;
    const uint32_t position = p.positions[row], sequence = p.sequences[row];
    if (position == device::kNoPosition) continue;
    const uint32_t held = std::min(position - p.first_positions[sequence], p.rings.capacity);
    const uint32_t count = std::min(p.window + 1, held);
    std::vector<std::vector<float>> rotated;
    std::vector<const float*> past;
    for (uint32_t at = position - count; at < position; ++at) {
      past.push_back(p.rings.queries + sequence * p.rings.sequence_stride +
                     (static_cast<size_t>(at % p.rings.capacity) * p.num_heads + item % p.num_heads) * p.head_dim);
      if (!p.post_rope) continue;
      std::vector<float>& to = rotated.emplace_back(p.head_dim);
      Rotate(p.rope, at, p.head_dim, past.back(), to.data());
      past.back() = to.data();
    }
    std::vector<float> prediction(past.back(), past.back() + p.head_dim);
    if (count > 1) {
      const std::vector<double> v = Blend(past, p.head_dim, p.weights);
      for (int d = 0; d < p.head_dim; ++d) {
        double sum = 0;
        for (size_t i = 0; i < v.size(); ++i) sum += v[i] * past[i + 1][d];
        prediction[d] = static_cast<float>(sum);
      }
    }
    float* out = p.out + static_cast<size_t>(item) * p.head_dim;
    if (p.post_rope) {
      std::copy(prediction.begin(), prediction.end(), out);
    } else {
      Rotate(p.rope, position, p.head_dim, prediction.data(), out);
    }
  }
}

void BeginPlan(Stream, const device::BeginPlanParams& p) {
  ++*p.plan;
  for (int row = 0; row < p.num_rows; ++row) {
    const bool follows_step = p.step_positions != nullptr;
    uint32_t position = p.next_positions[row];
    if (position != device::kNoPosition) {
      if (follows_step) position = p.step_positions[row];
      if (!follows_step) ++p.next_positions[row];
    }
    p.positions[row] = position;
    for (int head = 0; head < p.num_kv_heads; ++head) {
      p.list_positions[row * p.num_kv_heads + head] = position;
      for (int layer = 0; layer < p.num_layers; ++layer) {
        device::SelectionList& list = p.lists[(static_cast<size_t>(layer) * p.max_rows + row) * p.num_kv_heads + head];
        const bool sits = position != device::kNoPosition;
        list.num_keys = sits ? position : 0;
        list.last = sits ? RecentStart(position, p.recent_tokens, list.first, kBlockTokens) : list.first;
      }
    }
  }
}

}  // namespace

device::PredictKernels HostPredictKernels() {
  device::PredictKernels kernels{};
  kernels.rotate_queries = RotateQueries;
  kernels.begin_plan = BeginPlan;
  kernels.store_queries = StoreQueries;
  kernels.predict_queries = PredictQueries;
  return kernels;
}

}  // namespace winnow::test
