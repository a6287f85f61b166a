// Decode steps of CudaForward.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "inference_rank/device/cuda_forward.h"

namespace winnow {
namespace {

// To nearest, ties to even, as the GPU rounds.
uint16_t RoundToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Attention over two disjoint sets of rows, from that over each of them.
void MergeHead(const float* o, float lse, const float* partial_o, float partial_lse, int head_dim, uint16_t* out) {
  const double most = std::max(lse, partial_lse);
  const double a = std::exp(lse - most), b = std::exp(partial_lse - most);
  for (int i = 0; i < head_dim; ++i) out[i] = RoundToBf16(static_cast<float>((a * o[i] + b * partial_o[i]) / (a + b)));
}

}  // namespace

size_t CudaForward::AttentionScratchBytes() const {
  size_t bytes = 0;
  for (const bool per_query_head : {false, true}) {
    // Scratch may depend on the number of rows in any way.
    for (int rows = 1; rows <= kMaxDecodeRows; ++rows) {
      const cuda::DecodeAttentionParams params =
          AttentionParams({.num_rows = rows, .per_query_head = per_query_head, .max_count = options_.max_list_rows});
      bytes = std::max(bytes, table_.attention->decode_attention_scratch_bytes(params));
    }
  }
  return bytes;
}

cuda::DecodeAttentionParams CudaForward::AttentionParams(const AttentionRun& run) const {
  return {.num_rows = run.num_rows,
          .num_query_heads = config_.num_query_heads,
          .num_kv_heads = run.per_query_head ? config_.num_query_heads : config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .scale = scale_,
          .slot_pool = slots_,
          .kv_dtype = Dtype::kBf16,
          .lists = lists_ + run.first_list,
          .pages = pages_,
          .selected = selected_,
          .max_count = run.max_count,
          .scratch = attention_scratch_};
}

void CudaForward::LaunchRuns(bool to_f32) {
  device_->CopyAsync(lists_, host_lists_, runs_->num_lists() * sizeof(cuda::AttentionList), stream_);
  device_->CopyAsync(selected_, host_selected_, runs_->num_selected() * sizeof(uint32_t), stream_);
  for (const AttentionRun& run : runs_->runs()) {
    const size_t first = static_cast<size_t>(run.first_row) * config_.q_features();
    cuda::DecodeAttentionParams params = AttentionParams(run);
    params.q = layers_->q() + first;
    params.out_dtype = to_f32 ? Dtype::kF32 : Dtype::kBf16;
    params.out = to_f32 ? static_cast<void*>(attention_f32_ + first)
                        : static_cast<void*>(static_cast<uint16_t*>(layers_->attention()) + first);
    params.lse = to_f32 ? lse_ + static_cast<size_t>(run.first_row) * config_.num_query_heads : nullptr;
    table_.attention->decode_attention(stream_, params);
  }
}

bool CudaForward::Attend(const SlotLists& lists, int num_rows) {
  runs_->Begin(lists, num_rows);
  for (bool first = true; runs_->NextPack(); first = false) {
    // The arrays of the pack before must have been read.
    if (!first && !Wait("attention of a part of the rows")) return false;
    LaunchRuns(/*to_f32=*/false);
  }
  return true;
}

// Once more, with what merging needs: only where something is to be merged.
bool CudaForward::AttendF32(const SlotLists& lists, int num_rows) {
  runs_->Begin(lists, num_rows);
  while (Wait("attention of corrected rows") && runs_->NextPack()) LaunchRuns(/*to_f32=*/true);
  const size_t floats = static_cast<size_t>(num_rows) * config_.q_features();
  device_->CopyAsync(host_attention_, attention_f32_, floats * sizeof(float), stream_);
  device_->CopyAsync(host_lse_, lse_, static_cast<size_t>(num_rows) * config_.num_query_heads * sizeof(float), stream_);
  return Wait("attention of corrected rows");
}

bool CudaForward::CorrectByPartials(const SlotLists& lists, int num_rows, std::span<const PartialAttention> partials) {
  if (partials.empty()) return status_.ok();
  if (!AttendF32(lists, num_rows)) return false;
  const int group = config_.group_size(), head_dim = config_.head_dim;
  for (const PartialAttention& partial : partials) {
    const size_t first = static_cast<size_t>(partial.row) * config_.num_query_heads + partial.kv_head * group;
    for (int i = 0; i < group; ++i) {
      const size_t head = first + i;
      MergeHead(host_attention_ + head * head_dim, host_lse_[head], partial.o + static_cast<size_t>(i) * head_dim,
                partial.lse[i], head_dim, host_corrected_ + head * head_dim);
    }
    device_->CopyAsync(static_cast<uint16_t*>(layers_->attention()) + first * head_dim,
                       host_corrected_ + first * head_dim, static_cast<size_t>(group) * head_dim * sizeof(uint16_t),
                       stream_);
  }
  return true;
}

void CudaForward::PublishLayer(int layer, int num_rows, DecodeKv& kv) {
  const int lookahead = kv.Lookahead();
  const bool predicts = lookahead > 0 && layer + lookahead < config_.num_layers;
  if (predicts) {
    // Before the layer's own projection, whose outputs it overwrites. The rotated queries and the rows go nowhere.
    layers_->ProjectQkv(stream_, DevicePhase::kDecode, layer + lookahead, num_rows);
    layers_->Rope(stream_, DevicePhase::kDecode, layer + lookahead, num_rows,
                  {.positions = positions_, .q_pre_rope = prediction_});
  }
  const bool needs_hidden = kv.NeedsHidden(layer);
  if (needs_hidden) {
    device_->CopyAsync(hidden_, layers_->hidden(), static_cast<size_t>(num_rows) * config_.hidden_size * sizeof(float),
                       stream_);
  }
  layers_->ProjectQkv(stream_, DevicePhase::kDecode, layer, num_rows);
  layers_->Rope(stream_, DevicePhase::kDecode, layer, num_rows,
                {.positions = positions_, .kv_mirror = kv_rows_, .q_pre_rope = q_pre_rope_});
  if (!Wait("waiting for the rows")) return;
  kv.Publish({.layer = layer,
              .kv_rows = kv_rows_,
              .q_pre_rope = q_pre_rope_,
              .prediction = predicts ? prediction_ : nullptr,
              .prediction_layer = layer + lookahead,
              .hidden = needs_hidden ? hidden_ : nullptr,
              .hidden_size = config_.hidden_size});
}

std::span<float> CudaForward::Decode(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                     DecodeKv& kv) {
  const int num_rows = static_cast<int>(token_ids.size());
  WINNOW_CHECK(num_rows >= 1 && num_rows <= kMaxDecodeRows && positions.size() == token_ids.size());
  if (!status_.ok()) return {};
  pass_ = "decode";
  pass_rows_ = num_rows;
  At("embedding", 0);
  mover_->Flush();
  UploadTokens(token_ids);
  std::copy(positions.begin(), positions.end(), host_positions_);
  device_->CopyAsync(positions_, host_positions_, positions.size_bytes(), stream_);
  layers_->Embed(stream_, token_ids_, num_rows);
  const bool waits_for_partials = kv.WaitsForPartials();
  for (int l = 0; l < config_.num_layers; ++l) {
    At("projections", l);
    PublishLayer(l, num_rows, kv);
    if (!status_.ok()) return {};
    slot_lists_.Clear();
    kv.AwaitSlots(l, slot_lists_);
    At("attention", l);
    mover_->Flush();
    if (!Attend(slot_lists_, num_rows)) return {};
    if (waits_for_partials && !CorrectByPartials(slot_lists_, num_rows, kv.AwaitPartials(l))) return {};
    layers_->OutputAndMlp(stream_, DevicePhase::kDecode, l, num_rows);
  }
  return TakeLogits(num_rows);
}

}  // namespace winnow
