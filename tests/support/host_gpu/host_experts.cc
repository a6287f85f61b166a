#include "tests/support/host_gpu/host_experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/scalar.h"
#include "kernels/device/params/expert_codes.h"
#include "kernels/device/params/predict.h"
#include "tests/support/host_gpu/host_cpu.h"

namespace winnow::test {
namespace {

using device::ExpertMatrices;
using device::Stream;

// One row of an expert's matrix, as numbers.
std::vector<float> RowOf(const ExpertMatrices& of, const void* matrices, const uint8_t* scales, int64_t row, int in) {
  std::vector<float> values(in);
  if (!of.mxfp4) {
    const uint16_t* const from = static_cast<const uint16_t*>(matrices) + row * in;
    std::transform(from, from + in, values.begin(), Bf16ToF32);
    return values;
  }
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const auto* const words = static_cast<const uint32_t*>(matrices) + row * in / 8;
  for (int i = 0; i < in; ++i) {
    const uint32_t code = device::ExpertCodeAt(words[i / 8], i % 8);
    const float value = std::ldexp(kMagnitudes[code & 7], scales[(row * in + i) / device::kExpertBlock] - 127);
    values[i] = (code & 8) != 0 ? -value : value;
  }
  return values;
}

float Dot(const std::vector<float>& weight, const uint16_t* x) {
  double sum = 0;
  for (size_t k = 0; k < weight.size(); ++k) sum += double{weight[k]} * Bf16ToF32(x[k]);
  return static_cast<float>(sum);
}

void Choose(const device::RouteRowsParams& p) {
  const ExpertMatrices& of = p.experts;
  const auto chosen = static_cast<size_t>(of.experts_per_token), rows = static_cast<size_t>(p.num_rows);
  std::vector<float> logits, weights(rows * chosen);
  std::vector<uint32_t> experts(rows * chosen);
  for (size_t row = 0; row < rows; ++row) {
    const float* const all = p.routed.logits + row * of.num_logits();
    logits.insert(logits.end(), all, all + of.num_experts);
  }
  Cpu().route_experts(Team(), {.logits = logits.data(),
                               .num_rows = p.num_rows,
                               .num_experts = of.num_experts,
                               .experts_per_token = of.experts_per_token,
                               .sigmoid = of.sigmoid,
                               .correction = of.correction,
                               .groups = of.groups,
                               .groups_per_token = of.groups_per_token,
                               .group_scores = of.group_scores,
                               .normalizes = of.normalizes,
                               .scale = of.scale,
                               .experts = experts.data(),
                               .weights = weights.data()});
  for (size_t row = 0; row < rows; ++row) {
    uint32_t* const to = p.routed.experts + row * of.pairs_per_row();
    float* const shares = p.routed.shares + row * of.pairs_per_row();
    std::copy_n(&experts[row * chosen], chosen, to);
    std::copy_n(&weights[row * chosen], chosen, shares);
    for (int i = 0; i < of.num_shared; ++i) {
      const float gate = of.shared_gate ? p.routed.logits[row * of.num_logits() + of.num_experts] : 0;
      to[chosen + i] = static_cast<uint32_t>(of.num_experts + i);
      shares[chosen + i] = of.shared_gate ? 1 / (1 + std::exp(-gate)) : 1;
    }
  }
}

void Route(Stream, device::ExpertRows, const device::RouteRowsParams& p) {
  const ExpertMatrices& of = p.experts;
  const device::RoutedRows& to = p.routed;
  for (int row = 0; row < p.num_rows; ++row) {
    const uint16_t* const x = static_cast<const uint16_t*>(p.x) + static_cast<int64_t>(row) * of.hidden_size;
    for (int i = 0; i < of.num_logits(); ++i) {
      double sum = 0;
      for (int k = 0; k < of.hidden_size; ++k) {
        sum += double{of.router[static_cast<int64_t>(i) * of.hidden_size + k]} * Bf16ToF32(x[k]);
      }
      const float bias = of.router_bias == nullptr ? 0 : of.router_bias[i];
      to.logits[static_cast<int64_t>(row) * of.num_logits() + i] = static_cast<float>(sum) + bias;
    }
  }
  Choose(p);
  for (int row = 0; p.positions != nullptr && row < p.num_rows; ++row) {
    if (p.positions[row] != device::kNoPosition) continue;
    std::fill_n(to.experts + row * of.pairs_per_row(), of.pairs_per_row(), device::kNoPair);
  }
  std::fill_n(to.places, p.num_rows * of.pairs_per_row(), device::kNoPair);
  const uint32_t per_row = of.pairs_per_row(), num_pairs = static_cast<uint32_t>(p.num_rows) * per_row;
  uint32_t pair = 0;
  *to.num_active = *to.num_tiles = 0;
  for (int expert = 0; expert < of.num_all(); ++expert) {
    to.first[expert] = pair;
    // From the last row on, as nobody may count on an order.
    for (uint32_t i = num_pairs; i-- > 0;) {
      if (to.experts[i] != static_cast<uint32_t>(expert)) continue;
      to.rows[pair] = i / per_row;
      to.weights[pair] = to.shares[i];
      to.places[i] = pair++;
    }
    if (pair > to.first[expert]) {
      to.active[(*to.num_active)++] = {static_cast<uint32_t>(expert), to.first[expert], pair - to.first[expert]};
    }
    for (uint32_t first = to.first[expert]; first < pair; first += device::kExpertTileRows) {
      to.tiles[(*to.num_tiles)++] = {static_cast<uint32_t>(expert), first};
    }
  }
  to.first[of.num_all()] = pair;
  *to.touched += *to.num_active;
}

// Calls body(expert, pair) for all pairs.
template <typename Body>
void ForPairs(const ExpertMatrices& of, const device::RoutedRows& routed, const Body& body) {
  for (int expert = 0; expert < of.num_all(); ++expert) {
    for (uint32_t pair = routed.first[expert]; pair < routed.first[expert + 1]; ++pair) body(expert, pair);
  }
}

void GateUp(Stream, device::ExpertRows, const device::ExpertGateUpParams& p) {
  const ExpertMatrices& of = p.experts;
  if (p.num_rows == 0) return;
  ForPairs(of, p.routed, [&](int expert, uint32_t pair) {
    const int64_t hidden = of.hidden_size, width = of.intermediate_size;
    const auto row = [&](int64_t i) {
      return RowOf(of, of.gate_up, of.gate_up_scales, expert * 2 * width + i, of.hidden_size);
    };
    const uint16_t* const x = static_cast<const uint16_t*>(p.x) + p.routed.rows[pair] * hidden;
    for (int64_t i = 0; i < width; ++i) {
      const float g = Dot(row(i), x), u = Dot(row(width + i), x);
      const float* const bias = of.gate_up_bias == nullptr ? nullptr : of.gate_up_bias + expert * 2 * width + i;
      const float gate_bias = bias == nullptr ? 0 : bias[0], up_bias = bias == nullptr ? 0 : bias[width];
      static_cast<uint16_t*>(p.out)[pair * width + i] = F32ToBf16(Activate(of.activation, g + gate_bias, u + up_bias));
    }
  });
}

void Down(Stream, device::ExpertRows, const device::ExpertDownParams& p) {
  const ExpertMatrices& of = p.experts;
  if (p.num_rows == 0) return;
  ForPairs(of, p.routed, [&](int expert, uint32_t pair) {
    const int64_t hidden = of.hidden_size, width = of.intermediate_size;
    const uint16_t* const x = static_cast<const uint16_t*>(p.x) + pair * width;
    for (int64_t i = 0; i < hidden; ++i) {
      const float bias = of.down_bias == nullptr ? 0 : of.down_bias[expert * hidden + i];
      p.out[pair * hidden + i] =
          p.routed.weights[pair] *
          (Dot(RowOf(of, of.down, of.down_scales, expert * hidden + i, of.intermediate_size), x) + bias);
    }
  });
}

void Add(Stream, const device::AddExpertsParams& p) {
  const int64_t hidden = p.experts.hidden_size, per_row = p.experts.pairs_per_row();
  for (int64_t row = 0; row < p.num_rows; ++row) {
    for (int64_t i = 0; i < hidden; ++i) {
      float sum = 0;
      for (int64_t at = 0; at < per_row; ++at) {
        const uint32_t pair = p.routed.places[row * per_row + at];
        if (pair != device::kNoPair) sum += p.pairs[pair * hidden + i];
      }
      p.residual[row * hidden + i] += sum;
    }
  }
}

}  // namespace

float Activate(device::GatedActivation activation, float gate, float up) {
  switch (activation) {
    case device::GatedActivation::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case device::GatedActivation::kGeluTanh:
      return gate * 0.5f * (1 + std::tanh(0.7978845608f * (gate + 0.044715f * gate * gate * gate))) * up;
    case device::GatedActivation::kClampedSilu: {
      const float g = std::min(gate, 7.0f), u = std::clamp(up, -7.0f, 7.0f);
      return g / (1 + std::exp(-1.702f * g)) * (u + 1);
    }
  }
  return 0;
}

device::ExpertKernels HostExpertKernels() {
  return {.route = Route, .gate_up = GateUp, .down = Down, .add = Add};
}

}  // namespace winnow::test
