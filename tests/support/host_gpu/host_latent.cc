#include "tests/support/host_gpu/host_latent.h"

#include <cstring>
#include <memory>
#include <vector>

#include "common/base/check.h"
#include "kernels/cpu/scalar.h"
#include "tests/support/host_gpu/host_cpu.h"

namespace winnow::test {
namespace {

using cuda::Stream;

void AppendRows(const cuda::LatentAppendParams& p) {
  const int key_dim = p.shape.key_dim();
  std::vector<float> latents;
  for (int row = 0; row < p.num_rows; ++row) {
    for (int i = 0; i < key_dim; ++i) {
      latents.push_back(p.latents[row * p.latents_stride + i] + (p.latent_bias == nullptr ? 0 : p.latent_bias[i]));
    }
  }
  std::vector<uint16_t> rows(latents.size());
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
                               .kv_dtype = Dtype::kBf16,
                               .kv_rows = rows.data()});
  const size_t bytes = key_dim * sizeof(uint16_t);
  for (int row = 0; row < p.num_rows; ++row) {
    const uint16_t* const from = rows.data() + static_cast<size_t>(row) * key_dim;
    if (p.kv_destinations != nullptr && p.kv_destinations[row] != nullptr) {
      std::memcpy(p.kv_destinations[row], from, bytes);
    }
    const int64_t stride = p.kv_mirror_stride == 0 ? key_dim : p.kv_mirror_stride;
    if (p.kv_mirror != nullptr) std::memcpy(static_cast<uint16_t*>(p.kv_mirror) + row * stride, from, bytes);
  }
}

void Append(Stream, const cuda::LatentAppendParams& p) {
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
}

void HeadProducts(Stream, const cuda::HeadProductsParams& p) {
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

cuda::LatentKernels HostLatentKernels() {
  return {.append = Append, .head_products = HeadProducts};
}

}  // namespace winnow::test
