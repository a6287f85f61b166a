#include "tests/support/host_gpu/host_latent.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/base/check.h"
#include "kernels/cpu/scalar.h"
#include "kernels/cuda/select/predict.h"
#include "kernels/indexer.h"
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
    const int64_t stride = p.kv_mirror_stride == 0 ? static_cast<int64_t>(elements) : p.kv_mirror_stride;
    if (p.kv_mirror != nullptr) std::memcpy(static_cast<uint16_t*>(p.kv_mirror) + row * stride, from, bytes);
  }
}

// Queries of the indexer, rounded as index keys are, and the weights of its heads.
void TakeIndexQueries(const cuda::LatentAppendParams& p) {
  const cuda::IndexAppendParams& index = p.index;
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
  if (p.index.num_heads > 0) TakeIndexQueries(p);
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

// The row that holds position `key` of those that query `row` sees.
const std::byte* RowAt(const cuda::IndexScoreParams& p, int row, uint32_t key) {
  size_t at = key;
  if (p.lists != nullptr) {
    const cuda::AttentionList& list = p.lists[row];
    const uint32_t local = list.ring_base + key;
    at = size_t{p.pages[list.first_page + local / kSlotPageTokens]} * kSlotPageTokens + local % kSlotPageTokens;
  }
  const RowLayout layout{.value_is_key = true, .index_dim = p.dim};
  return static_cast<const std::byte*>(p.rows) + at * layout.bytes(p.key_dim, Dtype::kBf16);
}

// As cache ranks and prompts on CPUs score.
void ScoreRow(const cuda::IndexScoreParams& p, int row, uint32_t num_keys) {
  const RowLayout layout{.value_is_key = true, .index_dim = p.dim};
  const size_t tile_words = IndexTileBytes(p.dim, Dtype::kBf16) / sizeof(uint64_t);
  const uint32_t num_tiles = (num_keys + kBlockTokens - 1) / kBlockTokens;
  std::vector<uint64_t> words(num_tiles * tile_words + 8);
  auto* const first =
      reinterpret_cast<uint64_t*>((reinterpret_cast<uintptr_t>(words.data()) + 63) / 64 * 64);  // of whole cache lines
  WINNOW_CHECK(IndexTileBytes(p.dim, Dtype::kBf16) % 64 == 0);
  std::vector<const void*> tiles;
  for (uint32_t tile = 0; tile < num_tiles; ++tile) {
    tiles.push_back(first + tile * tile_words);
    for (uint32_t key = tile * kBlockTokens; key < std::min<uint32_t>((tile + 1) * kBlockTokens, num_keys); ++key) {
      Cpu().index_keys({.rows = RowAt(p, row, key) + layout.index_offset(p.key_dim) * DtypeBytes(Dtype::kBf16),
                        .num_rows = 1,
                        .first_row = static_cast<int>(key % kBlockTokens),
                        .head_dim = p.dim,
                        .dtype = Dtype::kBf16,
                        .tile = const_cast<void*>(tiles.back())});
    }
  }
  std::vector<float> scratch(IndexerScratchFloats(p.num_heads));
  ScoreByIndexer(Cpu(), {.tiles = tiles.data(),
                         .num_keys = static_cast<int>(num_keys),
                         .head_dim = p.dim,
                         .dtype = Dtype::kBf16,
                         .queries = p.queries + static_cast<int64_t>(row) * p.num_heads * (p.dim + 1),
                         .num_heads = p.num_heads,
                         .scores = p.scores + row * p.stride,
                         .scratch = scratch.data()});
}

void IndexScores(Stream, const cuda::IndexScoreParams& p) {
  for (int row = 0; row < p.num_rows; ++row) {
    const uint32_t position = p.positions == nullptr ? p.first_position + row : p.positions[row];
    const uint32_t num_keys = position == cuda::kNoPosition ? 0 : position + 1;
    const uint32_t budget = p.budgets == nullptr ? p.max_budget : p.budgets[row];
    const bool selects = budget > 0 && num_keys > budget;
    WINNOW_CHECK(num_keys <= p.max_keys && budget <= p.max_budget);
    p.selections[row] = {.first_block = 0,
                         .num_keys = num_keys,
                         .first = 0,
                         .last = selects ? num_keys : 0,
                         .budget = budget,
                         .query = 0};
    if (selects) ScoreRow(p, row, num_keys);
    if (p.lists == nullptr) continue;
    cuda::AttentionList& list = p.lists[row];
    list.selected_first = row * p.max_budget;
    list.selected_count = selects ? budget : 0;
    if (selects) list.recent_count = 0;
  }
}

}  // namespace

cuda::LatentKernels HostLatentKernels() {
  return {.append = Append, .head_products = HeadProducts, .index_scores = IndexScores};
}

}  // namespace winnow::test
