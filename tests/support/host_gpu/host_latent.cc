#include "tests/support/host_gpu/host_latent.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/base/check.h"
#include "kernels/cpu/scalar.h"
#include "tests/support/host_gpu/host_cpu.h"

namespace winnow::test {
namespace {

using device::Stream;

void AppendRows(const device::LatentAppendParams& p) {
  const int key_dim = p.shape.key_dim();
  std::vector<float> latents;
  for (int row = 0; row < p.num_rows; ++row) {
    for (int i = 0; i < key_dim; ++i) {
      latents.push_back(p.latents[row * p.latents_stride + i] + (p.latent_bias == nullptr ? 0 : p.latent_bias[i]));
    }
  }
  const bool indexes = p.index.num_heads > 0;
  std::vector<float> index_keys;
  for (int row = 0; indexes && row < p.num_rows; ++row) {
    const float* const from = p.index.keys + row * p.index.keys_stride;
    index_keys.insert(index_keys.end(), from, from + p.index.dim);
  }
  const RowLayout layout{.value_is_key = true, .index_dim = indexes ? p.index.dim : 0};
  const size_t elements = layout.elements(key_dim);
  std::vector<uint16_t> rows(p.num_rows * elements);
  Cpu().latent_append(Team(), {.projected = latents.data(),
                               .stride = key_dim,
                               .num_rows = p.num_rows,
                               .norm_weight = p.norm_weight,
                               .norm_epsilon = p.norm_epsilon,
                               .shape = p.shape,
                               .interleaved = p.interleaved,
                               .positions = p.positions,
                               .rope_inv_freq = p.rope_inv_freq,
                               .rope_attention_factor = p.rope_attention_factor,
                               .index_keys = indexes ? index_keys.data() : nullptr,
                               .index_norm_weight = p.index.norm_weight,
                               .index_norm_bias = p.index.norm_bias,
                               .index_interleaved = p.index.interleaved,
                               .row = layout,
                               .kv_dtype = Dtype::kBf16,
                               .kv_rows = rows.data()});
  const size_t bytes = elements * sizeof(uint16_t);
  for (int row = 0; row < p.num_rows; ++row) {
    const uint16_t* const from = rows.data() + static_cast<size_t>(row) * elements;
    if (p.kv_destinations != nullptr && p.kv_destinations[row] != nullptr) {
      std::memcpy(p.kv_destinations[row], from, bytes);
    }
    const int64_t stride = p.kv_copy_stride == 0 ? static_cast<int64_t>(elements) : p.kv_copy_stride;
    if (p.kv_copy != nullptr) std::memcpy(static_cast<uint16_t*>(p.kv_copy) + row * stride, from, bytes);
  }
}

// Queries of the indexer, rounded as index keys are, and the weights of its heads.
void TakeIndexQueries(const device::LatentAppendParams& p) {
  const device::IndexAppendParams& index = p.index;
  const int64_t floats = static_cast<int64_t>(index.num_heads) * index.dim, stride = floats + index.num_heads;
  for (int row = 0; row < p.num_rows; ++row) {
    std::copy_n(index.heads + row * index.heads_stride, floats, index.queries + row * stride);
  }
  Cpu().rotate_leading(Team(), {.x = index.queries,
                                .stride = stride,
                                .num_rows = p.num_rows,
                                .num_heads = index.num_heads,
                                .head_dim = index.dim,
                                .rope_dim = p.shape.rope_dim,
                                .interleaved = index.interleaved,
                                .positions = p.positions,
                                .rope_inv_freq = p.rope_inv_freq,
                                .rope_attention_factor = p.rope_attention_factor});
  for (int row = 0; row < p.num_rows; ++row) {
    float* const queries = index.queries + row * stride;
    std::transform(queries, queries + floats, queries, [](float x) { return Bf16ToF32(F32ToBf16(x)); });
    const float* const weights = index.keys + row * index.keys_stride + index.dim;
    for (int head = 0; head < index.num_heads; ++head) queries[floats + head] = weights[head] * index.weight_factor;
  }
}

void Append(Stream, const device::LatentAppendParams& p) {
  const int key_dim = p.shape.key_dim(), stored_dim = p.nope_dim + p.shape.rope_dim;
  const size_t heads = static_cast<size_t>(p.num_rows) * p.num_heads;
  std::vector<float> stored;
  for (int row = 0; row < p.num_rows; ++row) {
    const float* const from = p.heads + row * p.heads_stride;
    stored.insert(stored.end(), from, from + static_cast<int64_t>(p.num_heads) * stored_dim);
  }
  std::vector<float> pre_rope(heads * key_dim), q(heads * key_dim);
  Cpu().latent_queries(Team(), {.heads = stored.data(),
                                .num_rows = p.num_rows,
                                .num_heads = p.num_heads,
                                .nope_dim = p.nope_dim,
                                .shape = p.shape,
                                .interleaved = p.interleaved,
                                .positions = p.positions,
                                .rope_inv_freq = p.rope_inv_freq,
                                .q_pre_rope = pre_rope.data(),
                                .q = q.data()});
  for (size_t head = 0; head < heads; ++head) {
    for (int i = 0; i < p.nope_dim; ++i) {
      static_cast<uint16_t*>(p.nope)[head * p.nope_dim + i] = F32ToBf16(stored[head * stored_dim + i]);
    }
    for (int i = 0; i < p.shape.rope_dim; ++i) {
      const size_t at = head * key_dim + p.shape.rope_place(i);
      if (p.q != nullptr) p.q[at] = q[at];
      if (p.q_bf16 != nullptr) static_cast<uint16_t*>(p.q_bf16)[at] = F32ToBf16(q[at]);
      if (p.q_pre_rope != nullptr) p.q_pre_rope[at] = pre_rope[at];
    }
  }
  AppendRows(p);
  if (p.index.num_heads > 0) TakeIndexQueries(p);
}

void HeadProducts(Stream, const device::HeadProductsParams& p) {
  const int rank = p.shape.rank, key_dim = p.shape.key_dim();
  const int in = p.to_latents ? p.width : rank, out = p.to_latents ? rank : p.width;
  const auto* const weights = static_cast<const uint16_t*>(p.weight);
  for (int64_t head = 0; head < int64_t{p.num_rows} * p.num_heads; ++head) {
    const uint16_t* const x = static_cast<const uint16_t*>(p.x) + head * (p.to_latents ? p.width : key_dim);
    for (int o = 0; o < out; ++o) {
      const uint16_t* const weight = weights + (head % p.num_heads * out + o) * in;
      double sum = 0;
      for (int k = 0; k < in; ++k) {
        sum += double{Bf16ToF32(weight[k])} * Bf16ToF32(x[p.to_latents ? k : p.shape.latent_place(k)]);
      }
      const auto value = static_cast<float>(sum);
      const int64_t at = p.to_latents ? head * key_dim + p.shape.latent_place(o) : head * p.width + o;
      if (p.y != nullptr) p.y[at] = value;
      if (p.y_again != nullptr) p.y_again[at] = value;
      if (p.y_bf16 != nullptr) static_cast<uint16_t*>(p.y_bf16)[at] = F32ToBf16(value);
    }
  }
}

}  // namespace

device::LatentKernels HostLatentKernels() {
  return {.append = Append, .head_products = HeadProducts};
}

}  // namespace winnow::test
