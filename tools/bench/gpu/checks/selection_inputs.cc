#include "tools/bench/gpu/checks/selection_inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/quantize.h"

namespace winnow {
namespace {

constexpr uint32_t kSinks = 4, kRecent = 64, kBlock = 32;

}  // namespace

uint16_t Bf16Bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
float Bf16Rounded(float value) {
  return std::bit_cast<float>(uint32_t{Bf16Bits(value)} << 16);
}
float F8Value(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9) : std::ldexp(8.0f + mantissa, exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}
uint8_t F8Bits(float value) {
  const float magnitude = std::min(std::abs(value), 448.0f);
  const int exponent = magnitude < 0.015625f ? -6 : std::ilogb(magnitude);
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));  // 0..16 eighths
  const int bits = (exponent + 6) * 8 + steps;  // carries into the exponent by itself; the least one has no leading one
  return static_cast<uint8_t>(bits | (std::signbit(value) ? 0x80 : 0));
}

SelectionInputs::SelectionInputs(GpuContext& gpu, const SelectionShape& s, const std::vector<uint32_t>& num_keys,
                                 uint32_t budget)
    : shape(s), scale(1 / std::sqrt(static_cast<float>(s.head_dim))), max_budget(budget) {
  std::normal_distribution<float> normal;
  const size_t dim = s.head_dim;
  for (size_t i = 0; i < num_keys.size(); ++i) {
    const uint32_t n = num_keys[i];
    const uint32_t recent = n > kRecent ? (n - kRecent) / kBlock * kBlock : 0;
    lists.push_back({.first_block = static_cast<uint32_t>(blocks.size()),
                     .num_keys = n,
                     .first = std::min(kSinks, n),
                     .last = std::max(recent, std::min(kSinks, n)),
                     .budget = i % 4 == 3 ? budget / 3 : budget,
                     .query = static_cast<uint32_t>(num_keys.size() - 1 - i)});
    const size_t whole = s.group_candidates > 0 ? device::GroupBlocks(s.page_tokens) : 1;
    blocks.resize((blocks.size() + (n + kBlock - 1) / kBlock + whole - 1) / whole * whole);
    max_keys = std::max(max_keys, n);
  }
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::shuffle(blocks.begin(), blocks.end(), gpu.random);
  const size_t num_blocks = blocks.size();

  queries.resize(lists.size() * s.group * dim);
  for (float& q : queries) q = normal(gpu.random);
  keys_.resize(num_blocks * kBlock * dim);
  std::vector<float> scales;
  const bool scaled = s.dtype != Dtype::kBf16;
  const size_t element = scaled ? 1 : 2;
  const size_t key_stride = (s.rows ? 2 : 1) * dim * element;
  std::vector<uint8_t> stored(num_blocks * kBlock * key_stride, 0xff);  // NaNs where nothing is to be read
  std::vector<float> common(dim);
  for (float& value : common) value = normal(gpu.random);
  for (size_t k = 0; k < num_blocks * kBlock; ++k) {
    float key_scale = !scaled ? 1 : s.one_key ? 1 / 64.0f : std::exp2(normal(gpu.random) * 0.5f) / 64;
    // Some keys of int8 have no scale, and count as zeros.
    const bool is_spoilt = s.dtype == Dtype::kI8 && !s.one_key && gpu.random() % 64 == 0;
    if (is_spoilt) key_scale = std::numeric_limits<float>::quiet_NaN();
    // Those of int8 come with that of a value.
    if (scaled) scales.push_back(key_scale);
    if (s.dtype == Dtype::kI8) scales.push_back(std::numeric_limits<float>::quiet_NaN());
    for (size_t d = 0; d < dim; ++d) {
      const float value = s.one_key ? common[d] : normal(gpu.random);
      if (s.dtype == Dtype::kI8) {
        const auto code = static_cast<int8_t>(std::clamp(std::nearbyint(value * 48), -127.0f, 127.0f));
        stored[k * key_stride + d] = static_cast<uint8_t>(code);
        keys_[k * dim + d] = is_spoilt ? 0 : static_cast<float>(code) * key_scale;
        continue;
      }
      if (s.dtype == Dtype::kF8) {
        const uint8_t bits = F8Bits(value * 64);
        stored[k * key_stride + d] = bits;
        keys_[k * dim + d] = F8Value(bits) * key_scale;
      } else {
        const uint16_t bits = Bf16Bits(value);
        std::memcpy(&stored[k * key_stride + 2 * d], &bits, 2);
        keys_[k * dim + d] = Bf16Rounded(value);
      }
    }
  }
  const size_t pages = kBlock / s.page_tokens;
  bounds_.resize(num_blocks * pages * 2 * dim);
  std::vector<uint16_t> bounds(bounds_.size());
  for (size_t p = 0; p < num_blocks * pages; ++p) {
    for (size_t d = 0; d < dim; ++d) {
      float most = -INFINITY, least = INFINITY;
      for (int k = 0; k < s.page_tokens; ++k) {
        const float value = keys_[(p * s.page_tokens + k) * dim + d];
        most = std::max(most, value);
        least = std::min(least, value);
      }
      bounds[p * 2 * dim + d] = Bf16Bits(most);
      bounds[p * 2 * dim + dim + d] = Bf16Bits(least);
      bounds_[p * 2 * dim + d] = Bf16Rounded(most);
      bounds_[p * 2 * dim + dim + d] = Bf16Rounded(least);
    }
  }
  const size_t block_bounds = pages * 2 * dim, block_stride = s.rows ? kBlock * dim / 2 : block_bounds;
  std::vector<uint16_t> placed(num_blocks * block_stride, 0x7fc0);  // NaNs between them
  for (size_t block = 0; block < num_blocks; ++block) {
    std::copy_n(&bounds[block * block_bounds], block_bounds, &placed[block * block_stride]);
  }
  if (s.dtype == Dtype::kI8) scales_ = scales;
  std::vector<uint16_t> of_groups;
  if (s.group_candidates > 0) {
    const size_t group_blocks = device::GroupBlocks(s.page_tokens), groups = num_blocks / group_blocks;
    group_bounds_.resize(groups * 2 * dim);
    for (size_t g = 0; g < groups; ++g) {
      for (size_t d = 0; d < 2 * dim; ++d) {
        float& bound = group_bounds_[g * 2 * dim + d];
        for (size_t p = 0; p < kGroupPages; ++p) {
          const float own = bounds_[(size_t{blocks[g * group_blocks + p / pages]} * pages + p % pages) * 2 * dim + d];
          bound = p == 0 ? own : d < dim ? std::max(bound, own) : std::min(bound, own);
        }
      }
    }
    of_groups.resize(group_bounds_.size() + (kGroupPages - 1) * 2 * dim, 0x7fc0);  // NaNs behind the last
    std::transform(group_bounds_.begin(), group_bounds_.end(), of_groups.begin(), Bf16Bits);
  }
  params_ = {.lists = gpu.Upload(lists),
             .num_lists = static_cast<int>(lists.size()),
             .blocks = gpu.Upload(blocks),
             .keys = {.keys = gpu.Upload(stored),
                      .block_stride = static_cast<int64_t>(kBlock * key_stride),
                      .key_stride = static_cast<int64_t>(key_stride),
                      .scales = scaled ? gpu.Upload(scales) : nullptr,
                      .scale_stride = s.dtype == Dtype::kI8 ? 2u : 1u,
                      .dtype = s.dtype},
             .pages = {.bounds = gpu.Upload(placed),
                       .page_tokens = s.page_tokens,
                       .block_stride = static_cast<int64_t>(s.rows ? block_stride * sizeof(uint16_t) : 0),
                       .group_bounds = of_groups.empty() ? nullptr : gpu.Upload(of_groups)},
             .head_dim = s.head_dim,
             .group = s.group,
             .queries = gpu.Upload(queries),
             .scale = scale,
             .max_keys = max_keys,
             .max_budget = max_budget,
             .max_kept = kSinks + kRecent + kBlock,
             .group_candidates = s.group_candidates};
}

device::SelectParams SelectionInputs::Params() const {
  return params_;
}

double SelectionInputs::Key(const device::SelectionList& list, uint32_t row, int d) const {
  return keys_[(size_t{blocks[list.first_block + row / kBlock]} * kBlock + row % kBlock) * shape.head_dim + d];
}

float SelectionInputs::KeyScale(const device::SelectionList& list, uint32_t row) const {
  const float scale = scales_[2 * (size_t{blocks[list.first_block + row / kBlock]} * kBlock + row % kBlock)];
  return std::isfinite(scale) ? scale : 0;
}

double SelectionInputs::Bound(const device::SelectionList& list, uint32_t page, int d) const {
  const uint32_t pages = kBlock / shape.page_tokens;
  return bounds_[(size_t{blocks[list.first_block + page / pages]} * pages + page % pages) * 2 * shape.head_dim + d];
}

double SelectionInputs::GroupBound(const device::SelectionList& list, uint32_t group, int d) const {
  const size_t number = list.first_block / device::GroupBlocks(shape.page_tokens) + group;
  return group_bounds_[number * 2 * shape.head_dim + d];
}

std::vector<float> Int8Rounded(const float* query, int head_dim) {
  std::vector<int8_t> codes((head_dim + 7) / 8 * 8);
  const float scale = QuantizeInt8(query, head_dim, codes.data());
  std::vector<float> rounded(head_dim);
  for (int d = 0; d < head_dim; ++d) rounded[d] = static_cast<float>(codes[d]) * scale;
  return rounded;
}

std::vector<float> ScoresOfInt8(const SelectionInputs& inputs, const device::SelectionList& list, int query) {
  const int dim = inputs.shape.head_dim;
  std::vector<int8_t> codes((dim + 7) / 8 * 8);
  const float factor =
      QuantizeInt8(&inputs.queries[(size_t{list.query} * inputs.shape.group + query) * dim], dim, codes.data()) *
      inputs.scale;
  std::vector<float> scores(list.num_keys);
  for (uint32_t row = 0; row < list.num_keys; ++row) {
    const float scale = inputs.KeyScale(list, row);
    int32_t sum = 0;
    for (int d = 0; d < dim; ++d) {
      sum += scale == 0 ? 0 : codes[d] * static_cast<int>(std::nearbyint(inputs.Key(list, row, d) / scale));
    }
    scores[row] = static_cast<float>(sum) * (factor * scale);
  }
  return scores;
}

namespace {

// f32 sums of products lose at most 2^-23 of the sum of magnitudes with each addition (tensor cores truncate), and a
// few roundings follow; queries that are rounded to f16 (with fp8 keys) lose 2^-11 of each element.
template <typename Unit>
ReferenceScores ScoreInF64(const SelectionInputs& inputs, const device::SelectionList& list, uint32_t columns, int dim,
                           bool pages, Unit unit) {
  const SelectionShape& shape = inputs.shape;
  const bool f16 = shape.dtype == Dtype::kF8 && !pages, int8 = shape.dtype == Dtype::kI8 && !pages;
  ReferenceScores out;
  out.scores.assign(shape.group, std::vector<double>(columns));
  for (int q = 0; q < shape.group; ++q) {
    std::vector<double> query(dim);
    for (int d = 0; d < dim; ++d) {
      float value = inputs.queries[(size_t{list.query} * shape.group + q) * shape.head_dim + d % shape.head_dim];
      if (pages && (d < shape.head_dim ? value < 0 : value > 0)) value = 0;
      query[d] = f16 ? value : Bf16Rounded(value);
    }
    if (int8) {  // keys are scored with queries that are rounded as they are
      const std::vector<float> rounded =
          Int8Rounded(&inputs.queries[(size_t{list.query} * shape.group + q) * shape.head_dim], shape.head_dim);
      std::copy(rounded.begin(), rounded.end(), query.begin());
    }
    for (uint32_t c = 0; c < columns; ++c) {
      double sum = 0, magnitudes = 0;
      for (int d = 0; d < dim; ++d) {
        const double product = query[d] * unit(c, d);
        sum += product;
        magnitudes += std::abs(product);
      }
      out.scores[q][c] = sum * inputs.scale;
      const double relative = (dim + 8) * 0x1p-23 + (f16 ? 0x1p-11 : 0);
      out.delta = std::max(out.delta, magnitudes * relative * inputs.scale);
    }
  }
  return out;
}

}  // namespace

ReferenceScores ScoreKeysInF64(const SelectionInputs& inputs, const device::SelectionList& list) {
  return ScoreInF64(inputs, list, list.num_keys, inputs.shape.head_dim, false,
                    [&](uint32_t c, int d) { return inputs.Key(list, c, d); });
}

ReferenceScores ScorePagesInF64(const SelectionInputs& inputs, const device::SelectionList& list) {
  return ScoreInF64(inputs, list, list.num_keys / inputs.shape.page_tokens, 2 * inputs.shape.head_dim, true,
                    [&](uint32_t c, int d) { return inputs.Bound(list, c, d); });
}

ReferenceScores ScoreGroupsInF64(const SelectionInputs& inputs, const device::SelectionList& list,
                                 uint32_t num_groups) {
  return ScoreInF64(inputs, list, num_groups, 2 * inputs.shape.head_dim, true,
                    [&](uint32_t c, int d) { return inputs.GroupBound(list, c, d); });
}

}  // namespace winnow
