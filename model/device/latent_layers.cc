// Latent attention of DeviceLayers: what surrounds an attention over latents, and the indexer that a model may bring.
#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "model/device/device_layers.h"

namespace winnow {

void DeviceLayers::ProjectLatents(device::Stream stream, DevicePhase phase, int layer, int num_rows,
                                  const RopeOutputs& outputs) {
  WINNOW_CHECK(outputs.copy_regions == nullptr);
  const LatentConfig& latent = *config().latent;
  const DeviceLayerWeights& weights = weights_->layer(layer);
  const int64_t projected = qkv_stride();
  const int queries = config().query_projection_features(), heads = config().num_query_heads;
  const bool decode = phase == DevicePhase::kDecode;
  device::LatentAppendParams append{.heads = qkv_, .heads_stride = projected};
  if (latent.query_rank > 0) {
    table_.elementwise->rms_norm(stream, {.x = qkv_,
                                          .x_stride = projected,
                                          .bias = weights.qkv_bias,
                                          .biased = qkv_,
                                          .num_rows = num_rows,
                                          .hidden_size = latent.query_rank,
                                          .weight = weights.latent.query_norm,
                                          .epsilon = kLatentNormEpsilon,
                                          .out = latent_.query_latents});
    append.heads = latent_.heads;
    append.heads_stride = QueryUpFeatures(config());
    Matmul(stream, phase, weights.latent.query_up, latent_.query_latents, num_rows,
           {.y = latent_.heads, .stride = append.heads_stride, .dtype = Dtype::kF32, .accumulate = false});
  }
  append.latents = qkv_ + queries;
  append.latents_stride = projected;
  if (weights.qkv_bias != nullptr) append.latent_bias = weights.qkv_bias + queries;
  append.num_rows = num_rows;
  append.num_heads = heads;
  append.nope_dim = latent.nope_dim;
  append.shape = latent.shape;
  append.interleaved = latent.interleaved;
  append.norm_weight = weights.latent.key_norm;
  append.norm_epsilon = kLatentNormEpsilon;
  append.positions = outputs.positions;
  append.rope_inv_freq = RotationOf(layer).inv_freq;
  append.rope_attention_factor = latent_.key_attention_factor;
  append.nope = latent_.nope;
  append.q = decode ? q_ : nullptr;
  append.q_bf16 = decode ? nullptr : q_bf16_;
  append.q_pre_rope = outputs.q_pre_rope;
  append.kv_destinations = outputs.kv_destinations;
  append.kv_copy = outputs.kv_copy;
  append.kv_copy_stride = outputs.kv_copy_stride / static_cast<int64_t>(DtypeBytes(Dtype::kBf16));
  WINNOW_CHECK(outputs.q_pre_rope == nullptr || outputs.q_pre_rope_stride == 0 ||
               outputs.q_pre_rope_stride == config().q_features());
  if (const IndexerConfig& indexer = latent.indexer; indexer.num_heads > 0) {
    append.index = {.num_heads = indexer.num_heads,
                    .dim = indexer.head_dim,
                    .keys = qkv_ + config().qkv_features(),
                    .keys_stride = projected,
                    .heads = latent_.heads + static_cast<int64_t>(heads) * latent.query_dim(),
                    .heads_stride = append.heads_stride,
                    .norm_weight = weights.latent.index_norm,
                    .norm_bias = weights.latent.index_norm_bias,
                    .interleaved = indexer.interleaved,
                    .weight_factor = 1 / std::sqrt(static_cast<float>(indexer.num_heads * indexer.head_dim)),
                    .queries = index_.queries};
  }
  table_.latent->append(stream, append);
  table_.latent->head_products(stream, {.to_latents = true,
                                        .of_prompt = !decode,
                                        .shape = latent.shape,
                                        .width = latent.nope_dim,
                                        .num_rows = num_rows,
                                        .num_heads = heads,
                                        .weight = weights.latent.key_up,
                                        .x = latent_.nope,
                                        .y = append.q,
                                        .y_again = append.q_pre_rope,
                                        .y_bf16 = append.q_bf16});
}

void DeviceLayers::LatentValues(device::Stream stream, DevicePhase phase, int layer, int num_rows) {
  const LatentConfig& latent = *config().latent;
  table_.latent->head_products(stream, {.of_prompt = phase == DevicePhase::kPrefill,
                                        .shape = latent.shape,
                                        .width = latent.value_dim,
                                        .num_rows = num_rows,
                                        .num_heads = config().num_query_heads,
                                        .weight = weights_->layer(layer).latent.value_up,
                                        .x = attention_,
                                        .y_bf16 = latent_.values});
}

void DeviceLayers::CarveIndex(size_t rows, device::Arena& arena) {
  const auto top_k = static_cast<size_t>(config().latent->indexer.top_k);
  index_.queries = arena.TakeArray<float>(rows * config().kv_layout(Dtype::kBf16).index_query_floats());
  index_.scores = arena.TakeArray<float>(kIndexRows * static_cast<size_t>(index_stride()));
  index_.selections = arena.TakeArray<device::SelectionList>(kIndexRows);
  index_.selected = arena.TakeArray<uint32_t>(kIndexRows * top_k);
  index_.counts = arena.TakeArray<uint32_t>(kIndexRows);
}

int64_t DeviceLayers::index_stride() const {
  constexpr int64_t kAligned = 64;
  const int64_t keys = std::max(options_.max_list_rows, options_.max_prompt_tokens);  // of decode rows, of chunks
  return (keys + kAligned - 1) / kAligned * kAligned;
}

// The positions of the largest scores, of as many queries as `score` says.
void DeviceLayers::SelectByIndexer(device::Stream stream, device::IndexScoreParams score) {
  const IndexerConfig& indexer = config().latent->indexer;
  score.key_dim = config().head_dim;
  score.dim = indexer.head_dim;
  score.num_heads = indexer.num_heads;
  score.max_budget = static_cast<uint32_t>(indexer.top_k);
  score.scores = index_.scores;
  score.stride = index_stride();
  score.selections = index_.selections;
  WINNOW_CHECK(score.num_rows <= kIndexRows && score.max_keys <= index_stride());
  table_.indexer->scores(stream, score);
  table_.selection->top_k(stream, score.scores, score.stride, score.selections, score.num_rows, score.max_keys,
                          score.max_budget, index_.selected, index_.counts, /*scratch=*/nullptr);
}

void DeviceLayers::SelectRows(device::Stream stream, int num_rows, const DecodeKvView& kv) {
  SelectByIndexer(stream, {.rows = kv.slot_pool,
                           .lists = kv.lists,
                           .pages = kv.pages,
                           .positions = kv.positions,
                           .budgets = kv.index_budgets,
                           .num_rows = num_rows,
                           .queries = index_.queries,
                           .max_keys = kv.max_count});
}

int DeviceLayers::AttendToChosen(device::Stream stream, const device::PrefillAttentionParams& all) {
  const auto top_k = static_cast<int64_t>(config().latent->indexer.top_k);
  const int everything = static_cast<int>(std::clamp<int64_t>(top_k - all.first_position, 0, all.num_queries));
  const size_t query_elements = config().q_features();
  const size_t index_floats = config().kv_layout(Dtype::kBf16).index_query_floats();
  device::PrefillAttentionParams chosen = all;
  chosen.selected = index_.selected;
  chosen.selected_count = static_cast<uint32_t>(top_k);
  for (int first = everything; first < all.num_queries; first += kIndexRows) {
    chosen.num_queries = std::min(kIndexRows, all.num_queries - first);
    chosen.first_position = all.first_position + static_cast<uint32_t>(first);
    chosen.q = static_cast<const uint16_t*>(all.q) + first * query_elements;
    chosen.out = static_cast<uint16_t*>(all.out) + first * query_elements;
    SelectByIndexer(stream, {.rows = all.kv,
                             .first_position = chosen.first_position,
                             .num_rows = chosen.num_queries,
                             .queries = index_.queries + first * index_floats,
                             .max_keys = chosen.first_position + static_cast<uint32_t>(chosen.num_queries)});
    table_.prefill->prefill_attention(stream, chosen);
  }
  return everything;
}

}  // namespace winnow
