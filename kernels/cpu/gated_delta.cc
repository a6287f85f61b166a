#include "kernels/cpu/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "kernels/cpu/cpu_executor.h"

namespace winnow {
namespace {

constexpr float kLengthEpsilon = 1e-6f;
constexpr int kRates = 3;  // of a row and value head in scratch

// In sixteen chains, so that they become vectors, which are added up in one order.
float SumOfProducts(const float* a, const float* b, int n) {
  float lanes[16] = {};
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * b[i];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

void ScaleToLength(float* x, int n, float length) {
  const float scale = length / std::sqrt(SumOfProducts(x, x, n) + kLengthEpsilon);
  for (int i = 0; i < n; ++i) x[i] *= scale;
}

float Sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

// Above 20 it is x in f32.
float Softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

// What of a row's scratch belongs to one key head: query, key, values, then the rates of each value head.
struct GroupShape {
  explicit GroupShape(const GatedDeltaParams& p)
      : values_per_key(p.num_value_heads / p.num_key_heads),
        value_floats(values_per_key * p.value_dim),
        floats(2 * p.key_dim + value_floats + kRates * values_per_key),
        row_floats(static_cast<int64_t>(floats) * p.num_key_heads),
        conv_features(2 * p.num_key_heads * p.key_dim + p.num_value_heads * p.value_dim) {}
  int values_per_key;
  int value_floats;
  int floats;
  int64_t row_floats;
  int conv_features;
};

// Some consecutive channels of the convolution: where a row's projections have them, and where they go.
struct Channels {
  int in_row = 0;      // of GatedDeltaParams::projected
  int in_conv = 0;     // of all channels
  int in_scratch = 0;  // of a key head's part
  int count = 0;
};

// The convolution of those channels over a piece, without SiLU; the tail is read and moved on.
void Convolve(const GatedDeltaParams& p, const GroupShape& shape, const DeltaPiece& piece, const Channels& channels,
              float* scratch) {
  const int before = p.conv_width - 1;
  float* const tail = piece.tail + channels.in_conv;
  // The input of token `row` of the piece; negative: of those before it.
  const auto input = [&](int row) -> const float* {
    if (row < 0) return tail + static_cast<int64_t>(before + row) * shape.conv_features;
    return p.projected + (piece.first_row + row) * p.projected_stride + channels.in_row;
  };
  for (int row = 0; row < piece.num_rows; ++row) {
    float* __restrict to = scratch + row * shape.row_floats + channels.in_scratch;
    std::fill_n(to, channels.count, 0.0f);
    for (int tap = 0; tap <= before; ++tap) {
      const float* __restrict weight = p.conv + static_cast<int64_t>(tap) * shape.conv_features + channels.in_conv;
      const float* __restrict from = input(row - before + tap);
      for (int c = 0; c < channels.count; ++c) to[c] += weight[c] * from[c];
    }
  }
  // From the oldest on: what a place gets lies behind it, or among the rows.
  for (int i = 0; i < before; ++i) {
    std::memmove(tail + static_cast<int64_t>(i) * shape.conv_features, input(piece.num_rows - before + i),
                 static_cast<size_t>(channels.count) * sizeof(float));
  }
}

// Queries, keys, values and rates of one key head, over a piece.
void PrepareGroup(const GatedDeltaParams& p, const GroupShape& shape, const DeltaPiece& piece, int group,
                  const DeltaMicro& micro) {
  float* const scratch = p.scratch + piece.first_row * shape.row_floats + static_cast<int64_t>(group) * shape.floats;
  const int key_features = p.num_key_heads * p.key_dim;
  const auto at = [group](const HeadPlaces& places) { return places.first + group * places.group_stride; };
  Convolve(p, shape, piece, {at(p.query), group * p.key_dim, 0, p.key_dim}, scratch);
  Convolve(p, shape, piece, {at(p.key), key_features + group * p.key_dim, p.key_dim, p.key_dim}, scratch);
  Convolve(p, shape, piece,
           {at(p.value), 2 * key_features + group * shape.value_floats, 2 * p.key_dim, shape.value_floats}, scratch);
  const float query_length = 1 / std::sqrt(static_cast<float>(p.key_dim));
  for (int row = 0; row < piece.num_rows; ++row) {
    float* const query = scratch + row * shape.row_floats;
    float* const key = query + p.key_dim;
    micro.silu(query, 2 * p.key_dim + shape.value_floats);
    ScaleToLength(query, p.key_dim, query_length);
    ScaleToLength(key, p.key_dim, 1);
    const float product = SumOfProducts(query, key, p.key_dim);
    const float* const rates = p.rates + (piece.first_row + row) * p.rates_stride;
    float* to = query + 2 * p.key_dim + shape.value_floats;
    for (int i = 0; i < shape.values_per_key; ++i, to += kRates) {
      const int head = group * shape.values_per_key + i;
      to[0] = std::exp(-std::exp(p.log_forgetting[head]) * Softplus(rates[at(p.forgetting) + i] + p.rate_bias[head]));
      to[1] = Sigmoid(rates[at(p.learning) + i]);
      to[2] = product;
    }
  }
}

// What a head answers over a piece, normalised and gated.
void RunHead(const GatedDeltaParams& p, const GroupShape& shape, const DeltaPiece& piece, int head,
             const DeltaMicro& micro, float* gate) {
  const int group = head / shape.values_per_key, in_group = head % shape.values_per_key;
  const float* const scratch =
      p.scratch + piece.first_row * shape.row_floats + static_cast<int64_t>(group) * shape.floats;
  const int64_t out_stride = static_cast<int64_t>(p.num_value_heads) * p.value_dim;
  float* const out = p.out + piece.first_row * out_stride + static_cast<int64_t>(head) * p.value_dim;
  micro.head({.query = scratch,
              .key = scratch + p.key_dim,
              .value = scratch + 2 * p.key_dim + in_group * p.value_dim,
              .rates = scratch + 2 * p.key_dim + shape.value_floats + in_group * kRates,
              .stride = shape.row_floats,
              .num_rows = piece.num_rows,
              .key_dim = p.key_dim,
              .value_dim = p.value_dim,
              .state = piece.state + static_cast<int64_t>(head) * p.key_dim * p.value_dim,
              .out = out,
              .out_stride = out_stride});
  const int place = p.gate.first + group * p.gate.group_stride + in_group * p.value_dim;
  for (int row = 0; row < piece.num_rows; ++row) {
    float* __restrict x = out + row * out_stride;
    std::memcpy(gate, p.projected + (piece.first_row + row) * p.projected_stride + place,
                static_cast<size_t>(p.value_dim) * sizeof(float));
    micro.silu(gate, p.value_dim);
    const float mean = SumOfProducts(x, x, p.value_dim) / static_cast<float>(p.value_dim);
    const float scale = 1 / std::sqrt(mean + p.norm_epsilon);
    for (int i = 0; i < p.value_dim; ++i) x[i] = x[i] * scale * p.norm_weight[i] * gate[i];
  }
}

}  // namespace

void RunGatedDelta(Executor& executor, const GatedDeltaParams& params, const DeltaMicro& micro) {
  WINNOW_CHECK(params.num_value_heads % params.num_key_heads == 0 && params.conv_width >= 2);
  CpuExecutor& cpu = CpuExecutor::From(executor);
  const GroupShape shape(params);
  for (GrowBuffer& buffer : cpu.worker_scratch) buffer.ReserveArray<float>(static_cast<size_t>(params.value_dim));
  cpu.team.ParallelFor(params.num_pieces * params.num_key_heads, [&](int i, int) {
    PrepareGroup(params, shape, params.pieces[i / params.num_key_heads], i % params.num_key_heads, micro);
  });
  cpu.team.ParallelFor(params.num_pieces * params.num_value_heads, [&](int i, int worker) {
    float* const gate = cpu.worker_scratch[worker].ReserveArray<float>(static_cast<size_t>(params.value_dim));
    RunHead(params, shape, params.pieces[i / params.num_value_heads], i % params.num_value_heads, micro, gate);
  });
}

void GateHeads(Executor& executor, const GateHeadsParams& params) {
  CpuExecutor::From(executor).team.ParallelFor(
      params.num_rows,
      [&](int row, int) {
        float* __restrict x = params.x + static_cast<int64_t>(row) * params.width;
        const float* __restrict gate = params.gate + static_cast<int64_t>(row) * params.width;
        for (int i = 0; i < params.width; ++i) x[i] *= Sigmoid(gate[i]);
      },
      /*grain=*/4);
}

}  // namespace winnow
