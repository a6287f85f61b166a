// Prefill of DeviceForward: chunks through all layers, and pieces of prompts that go layer by layer.
#include <utility>

#include "common/base/check.h"
#include "inference_rank/backend/device_forward.h"

namespace winnow {

void DeviceForward::EnqueuePiece(const Piece& piece) {
  const size_t row_bytes = options_.row_bytes;
  const int layer = piece.layer, num_tokens = piece.num_tokens, queries = piece.kv->QueriesWanted(num_tokens);
  At("layer", layer);
  if (sums_ != nullptr) sums_->BeginChunk(piece.first_position, /*all_own_all=*/piece.last);
  const PrefillKv::Rows rows = piece.kv->Destination(layer, kv_heads().first);
  WINNOW_CHECK(rows.kv != nullptr);
  void* const push_to = piece.kv->PushTo(layer);
  table_.step->begin_chunk(prompt_stream_, {.rows = const_cast<void*>(rows.kv),
                                            .head_stride = rows.head_stride,
                                            .row_bytes = row_bytes,
                                            .first_position = piece.first_position,
                                            .num_rows = num_tokens,
                                            .num_kv_heads = config_.num_kv_heads,
                                            .positions = positions_,
                                            .kv_destinations = kv_destinations_});
  const bool is_last_layer = layer + 1 == config_.num_layers, norms_ahead = sums_ != nullptr && piece.all_layers;
  if (norms_ahead && layer > 0) {
    layers_->Qkv(prompt_stream_, DevicePhase::kPrefill, layer, num_tokens);
  } else {
    layers_->ProjectQkv(prompt_stream_, DevicePhase::kPrefill, layer, num_tokens, sums_.get());
  }
  layers_->Rope(prompt_stream_, DevicePhase::kPrefill, layer, num_tokens,
                {.positions = positions_,
                 .kv_dtype = options_.kv_dtype,
                 .kv_destinations = kv_destinations_,
                 .q_pre_rope = queries > 0 ? chunk_queries_ : nullptr});
  const PublishStages::Chunk& stage = stages_->chunk(piece.stage);
  if (queries > 0) {
    const size_t q = config_.q_features(), unwanted = num_tokens - queries;
    device_->CopyRowsAsync(
        stage.q_pre_rope + unwanted * shard_.count * q + static_cast<size_t>(query_heads().first) * config_.head_dim,
        shard_.count * q * sizeof(float), chunk_queries_ + unwanted * q, q * sizeof(float), q * sizeof(float), queries,
        prompt_stream_);
  }
  piece_computed_[piece.stage]->Record(prompt_stream_);
  piece_computed_[piece.stage]->Hold(copy_stream_);
  // Out of the prompt's place, where the layer changes them no more, while it goes on.
  const size_t head_bytes = num_tokens * row_bytes;
  std::byte* const all_heads = push_to != nullptr ? static_cast<std::byte*>(push_to) : stage.kv_rows;
  device_->CopyRowsAsync(all_heads + kv_heads().first * head_bytes, head_bytes,
                         static_cast<const std::byte*>(rows.kv) + piece.first_position * row_bytes,
                         rows.head_stride * row_bytes, head_bytes, config_.num_kv_heads, copy_stream_);
  piece_is_pushed_[piece.stage] = push_to != nullptr;
  piece_ready_[piece.stage]->Record(copy_stream_);
  // Nothing reads the last layer's output but the logits of the last token.
  if (!piece.last && is_last_layer) return;
  layers_->AttendChunk(prompt_stream_, layer, num_tokens,
                       {.rows = rows.kv, .head_stride = rows.head_stride, .first_position = piece.first_position});
  layers_->OutputAndMlp(prompt_stream_, DevicePhase::kPrefill, layer, num_tokens, sums_.get(),
                        norms_ahead && !is_last_layer);
}

bool DeviceForward::PublishPiece(const Piece& piece) {
  if (!Take(device_->CheckLaunches()) || !Await(*piece_ready_[piece.stage])) return false;
  const PublishStages::Chunk& stage = stages_->chunk(piece.stage);
  piece.kv->Publish(piece.layer, piece_is_pushed_[piece.stage] ? nullptr : stage.kv_rows, stage.q_pre_rope);
  return true;
}

std::span<float> DeviceForward::Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                                        PrefillKv& kv) {
  const int num_tokens = static_cast<int>(token_ids.size());
  WINNOW_CHECK(num_tokens >= 1 && num_tokens <= options_.max_prefill_tokens && (!last || num_tokens == 1));
  if (!PublishUnpublished()) return {};
  pass_ = "prefill";
  pass_rows_ = num_tokens;
  At("embedding", 0);
  FlushMovesBeforePiece();
  UploadTokens(prompt_stream_, token_ids);
  layers_->Embed(prompt_stream_, token_ids_, num_tokens);
  // A layer is published while the next one is computed.
  Piece before;
  for (int l = 0; l <= config_.num_layers; ++l) {
    Piece piece;
    if (l < config_.num_layers) {
      piece = {.kv = &kv,
               .layer = l,
               .first_position = first_position,
               .num_tokens = num_tokens,
               .last = last,
               .stage = l % 2,
               .all_layers = true};
      EnqueuePiece(piece);
    }
    if (before.kv != nullptr && !PublishPiece(before)) return {};
    before = piece;
  }
  if (last) return TakeLogits(prompt_stream_, 1);
  Wait("the end of the chunk", prompt_stream_);
  return {};
}

void DeviceForward::EmbedPrompt(std::span<const uint32_t> token_ids, ResidualPlaces hidden) {
  WINNOW_CHECK(token_ids.size() <= static_cast<size_t>(options_.max_prefill_tokens));
  // Pinned tokens of an earlier piece have come once its rows have.
  if (!PublishUnpublished()) return;
  FlushMovesBeforePiece();  // of rows of another prompt, whose place this may be
  UploadTokens(prompt_stream_, token_ids);
  layers_->UseHidden(hidden[0]);
  layers_->Embed(prompt_stream_, token_ids_, static_cast<int>(token_ids.size()));
  layers_->UseHidden(nullptr);
  prompt_is_under_way_ = true;
}

void DeviceForward::PrefillLayer(int layer, uint32_t first_position, int num_tokens, bool last, ResidualPlaces hidden,
                                 PrefillKv& kv) {
  WINNOW_CHECK(num_tokens >= 1 && num_tokens <= options_.max_prefill_tokens && (!last || num_tokens == 1));
  if (!status_.ok()) return;
  pass_ = "prefill by layer";
  pass_rows_ = num_tokens;
  prompt_is_under_way_ = true;
  const Piece before = unpublished_;
  unpublished_ = {.kv = &kv,
                  .layer = layer,
                  .first_position = first_position,
                  .num_tokens = num_tokens,
                  .last = last,
                  .stage = 1 - before.stage};
  FlushMovesBeforePiece();
  if (sums_ != nullptr) sums_->BeginPass(prompt_stream_);
  // Rows of a layer go where those of the layer before may still be copied from.
  if (before.kv != nullptr) piece_ready_[before.stage]->Hold(prompt_stream_);
  layers_->UseHidden(hidden[0]);
  EnqueuePiece(unpublished_);
  layers_->UseHidden(nullptr);
  if (before.kv != nullptr && !PublishPiece(before)) return;
  if (sums_ != nullptr) PublishUnpublished();
}

bool DeviceForward::PublishUnpublished() {
  if (!status_.ok()) return false;
  Piece piece = unpublished_;
  unpublished_.kv = nullptr;
  return piece.kv == nullptr || PublishPiece(piece);
}

std::span<float> DeviceForward::PromptLogits(ResidualPlaces hidden) {
  if (!PublishUnpublished()) return {};
  pass_ = "the end of a prompt";
  pass_rows_ = 1;
  if (sums_ != nullptr) sums_->BeginPass(prompt_stream_);
  layers_->UseHidden(hidden[0]);
  const std::span<float> logits = TakeLogits(prompt_stream_, 1);
  layers_->UseHidden(nullptr);
  return logits;
}

void DeviceForward::SettlePrompt() {
  if (PublishUnpublished() && prompt_is_under_way_) Wait("the end of the prompt's pieces", prompt_stream_);
}

}  // namespace winnow
