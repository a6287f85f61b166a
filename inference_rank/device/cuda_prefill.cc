// Prefill chunks of CudaForward.
#include "common/base/check.h"
#include "inference_rank/device/cuda_forward.h"

namespace winnow {

void CudaForward::EnqueueChunkLayer(int layer, int num_tokens, uint32_t first_position, int queries, bool attends,
                                    const PrefillKv::Rows& rows, void* push_to) {
  table_.step->begin_chunk(stream_, {.rows = const_cast<void*>(rows.kv),
                                     .head_stride = rows.head_stride,
                                     .row_bytes = options_.row_bytes,
                                     .first_position = first_position,
                                     .num_rows = num_tokens,
                                     .num_kv_heads = config_.num_kv_heads,
                                     .positions = positions_,
                                     .kv_destinations = kv_destinations_});
  layers_->ProjectQkv(stream_, DevicePhase::kPrefill, layer, num_tokens);
  layers_->Rope(stream_, DevicePhase::kPrefill, layer, num_tokens,
                {.positions = positions_,
                 .kv_destinations = kv_destinations_,
                 .q_pre_rope = queries > 0 ? chunk_queries_ : nullptr});
  const PublishStages::Chunk& stage = stages_->chunk(layer);
  if (queries > 0) {
    const size_t q = config_.q_features(), unwanted = num_tokens - queries;
    device_->CopyRowsAsync(
        stage.q_pre_rope + unwanted * shard_.count * q + static_cast<size_t>(query_heads().first) * config_.head_dim,
        shard_.count * q * sizeof(float), chunk_queries_ + unwanted * q, q * sizeof(float), q * sizeof(float), queries,
        stream_);
  }
  chunk_computed_[layer % 2]->Record(stream_);
  chunk_computed_[layer % 2]->Hold(copy_stream_);
  // Out of the prompt's place, where nothing changes them any more, while the layer goes on.
  const size_t head_bytes = num_tokens * options_.row_bytes;
  std::byte* const all_heads = push_to != nullptr ? static_cast<std::byte*>(push_to) : stage.kv_rows;
  device_->CopyRowsAsync(all_heads + kv_heads().first * head_bytes, head_bytes,
                         static_cast<const std::byte*>(rows.kv) + first_position * options_.row_bytes,
                         rows.head_stride * options_.row_bytes, head_bytes, config_.num_kv_heads, copy_stream_);
  chunk_is_pushed_[layer % 2] = push_to != nullptr;
  chunk_ready_[layer % 2]->Record(copy_stream_);
  if (!attends) return;
  layers_->AttendChunk(stream_, num_tokens,
                       {.rows = rows.kv, .head_stride = rows.head_stride, .first_position = first_position});
  layers_->OutputAndMlp(stream_, DevicePhase::kPrefill, layer, num_tokens, sums_.get());
}

std::span<float> CudaForward::Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                                      PrefillKv& kv) {
  const int num_tokens = static_cast<int>(token_ids.size());
  WINNOW_CHECK(num_tokens >= 1 && num_tokens <= options_.max_prefill_tokens && (!last || num_tokens == 1));
  if (!status_.ok()) return {};
  pass_ = "prefill";
  pass_rows_ = num_tokens;
  At("embedding", 0);
  mover_->Flush();
  UploadTokens(token_ids);
  layers_->Embed(stream_, token_ids_, num_tokens);
  const int queries = kv.QueriesWanted(num_tokens);
  // A layer is published while the next one is computed.
  for (int l = 0; l <= config_.num_layers; ++l) {
    if (l < config_.num_layers) {
      const PrefillKv::Rows rows = kv.Destination(l, kv_heads().first);
      WINNOW_CHECK(rows.kv != nullptr);
      At("layer", l);
      // Nothing reads the last layer's output but the logits of the last token.
      const bool attends = last || l + 1 < config_.num_layers;
      EnqueueChunkLayer(l, num_tokens, first_position, queries, attends, rows, kv.PushTo(l));
    }
    if (l == 0) continue;
    const PublishStages::Chunk& stage = stages_->chunk(l - 1);
    if (!Take(device_->CheckLaunches()) || !Take(chunk_ready_[(l - 1) % 2]->Wait())) return {};
    kv.Publish(l - 1, chunk_is_pushed_[(l - 1) % 2] ? nullptr : stage.kv_rows, stage.q_pre_rope);
  }
  if (last) return TakeLogits(1);
  Wait("the end of the chunk");
  return {};
}

}  // namespace winnow
