// Decode steps of DeviceForward.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "inference_rank/backend/device_forward.h"

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

size_t DeviceForward::AttentionScratchBytes() const {
  // Scratch may depend on the number of rows in any way, and on the length of lists as far as they are short.
  std::vector<uint32_t> counts = {options_.max_list_rows};
  for (uint32_t count = 128; count <= std::min(2048u, options_.max_list_rows); count += 128) counts.push_back(count);
  size_t bytes = 0;
  for (const bool per_query_head : {false, true}) {
    for (int rows = 1; rows <= kMaxDecodeRows; ++rows) {
      for (const uint32_t count : counts) {
        const device::DecodeAttentionParams params =
            AttentionParams({.num_rows = rows, .per_query_head = per_query_head, .max_count = count});
        bytes = std::max(bytes, table_.attention->decode_attention_scratch_bytes(params));
      }
    }
  }
  return bytes;
}

device::DecodeAttentionParams DeviceForward::AttentionParams(const AttentionLaunch& launch) const {
  return {.num_rows = launch.num_rows,
          .num_query_heads = config_.num_query_heads,
          .num_kv_heads = launch.per_query_head ? config_.num_query_heads : config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .scale = scale_,
          .slot_pool = slots_,
          .kv_dtype = options_.kv_dtype,
          .row = config_.kv_layout(options_.kv_dtype).row,
          .kv_scales = options_.kv_dtype == Dtype::kI8 ? int8_slots().scales() : nullptr,
          .lists = lists_ + launch.first_list,
          .pages = pages_,
          .selected = selected_,
          .max_count = launch.max_count,
          .scratch = attention_scratch_};
}

void DeviceForward::LaunchAttention(const DecodeStage& stage, int layer, bool to_f32) {
  device_->CopyAsync(lists_, stage.lists, stage.packer->num_lists() * sizeof(device::AttentionList), stream_);
  device_->CopyAsync(selected_, stage.selected, stage.packer->num_selected() * sizeof(uint32_t), stream_);
  for (const AttentionLaunch& launch : stage.packer->launches()) {
    const size_t first = static_cast<size_t>(launch.first_row) * config_.q_features();
    device::DecodeAttentionParams params = AttentionParams(launch);
    params.q = layers_->q() + first;
    params.sinks = layers_->weights().layer(layer).sinks;
    params.out_dtype = to_f32 ? Dtype::kF32 : Dtype::kBf16;
    params.out = to_f32 ? static_cast<void*>(attention_f32_ + first)
                        : static_cast<void*>(static_cast<uint16_t*>(layers_->attention()) + first);
    params.lse = to_f32 ? lse_ + static_cast<size_t>(launch.first_row) * config_.num_query_heads : nullptr;
    table_.attention->decode_attention(stream_, params);
  }
}

bool DeviceForward::Attend(DecodeStage& stage, int layer, int num_rows) {
  stage.packer->Begin(slot_lists_, num_rows);
  while (stage.packer->NextPack()) {
    LaunchAttention(stage, layer, /*to_f32=*/false);
    // The next pack is written where this one lies.
    if (!stage.packer->done() && !Wait("attention of a part of the rows")) return false;
  }
  return true;
}

// Once more, with what merging needs: only where something is to be merged.
bool DeviceForward::AttendF32(DecodeStage& stage, int layer, int num_rows) {
  stage.packer->Begin(slot_lists_, num_rows);
  while (Wait("attention of corrected rows") && stage.packer->NextPack()) {
    LaunchAttention(stage, layer, /*to_f32=*/true);
  }
  const size_t floats = static_cast<size_t>(num_rows) * config_.q_features();
  device_->CopyAsync(host_attention_, attention_f32_, floats * sizeof(float), stream_);
  device_->CopyAsync(host_lse_, lse_, static_cast<size_t>(num_rows) * config_.num_query_heads * sizeof(float), stream_);
  return Wait("attention of corrected rows");
}

bool DeviceForward::CorrectByPartials(DecodeStage& stage, int layer, int num_rows,
                                      std::span<const PartialAttention> partials) {
  if (partials.empty()) return status_.ok();
  if (!AttendF32(stage, layer, num_rows)) return false;
  const int group = config_.group_size(), head_dim = config_.head_dim;
  for (const PartialAttention& partial : partials) {
    const int head = partial.kv_head - kv_heads().first;
    const size_t first = static_cast<size_t>(partial.row) * config_.num_query_heads + head * group;
    for (int i = 0; i < group; ++i) {
      const size_t at = first + i;
      MergeHead(host_attention_ + at * head_dim, host_lse_[at], partial.o + static_cast<size_t>(i) * head_dim,
                partial.lse[i], head_dim, host_corrected_ + at * head_dim);
    }
    device_->CopyAsync(static_cast<uint16_t*>(layers_->attention()) + first * head_dim,
                       host_corrected_ + first * head_dim, static_cast<size_t>(group) * head_dim * sizeof(uint16_t),
                       stream_);
  }
  return true;
}

void DeviceForward::UploadPlaces(int num_rows, const DecodeKv& kv) {
  const size_t places = static_cast<size_t>(config_.num_layers) * num_rows * config_.num_kv_heads;
  kv.PlacesOfRows(kv_heads(), {host_places_, places});
  if (const device::Int8Slots slots = int8_slots(); slots.codes != nullptr) {
    for (void*& place : std::span(host_places_, places)) place = slots.codes_at(place);
  }
  device_->CopyAsync(places_, host_places_, places * sizeof(void*), stream_);
}

void DeviceForward::EnqueueProjections(int layer, int num_rows, const DecodeKv& kv) {
  DecodeStage& stage = decode_stages_[layer % 2];
  const PublishStages::Decode& published = stages_->decode(layer);
  if (lookahead_ > 0 && layer + lookahead_ < config_.num_layers) {
    // Before the layer's own projection, whose outputs it overwrites. The rotated queries and the rows go nowhere.
    layers_->ProjectQkv(stream_, DevicePhase::kDecode, layer + lookahead_, num_rows);
    layers_->Rope(stream_, DevicePhase::kDecode, layer + lookahead_, num_rows,
                  Published(nullptr, published.prediction));
  }
  if (kv.NeedsHidden(layer) && shard_.index == 0) {
    device_->CopyAsync(published.hidden, layers_->hidden(),
                       static_cast<size_t>(num_rows) * config_.hidden_size * sizeof(float), stream_);
  }
  const bool ahead = may_run_ahead_ && kv.SlotsComeFirst(layer);
  layers_->ProjectQkv(stream_, DevicePhase::kDecode, layer, num_rows);
  RopeOutputs outputs = Published(published.kv_rows, published.q_pre_rope);
  if (ahead) outputs = ToSlots(outputs, places_ + static_cast<size_t>(layer) * num_rows * config_.num_kv_heads);
  layers_->Rope(stream_, DevicePhase::kDecode, layer, num_rows, outputs);
  if (const size_t floats = stages_->index_query_floats(); floats > 0) {
    device_->CopyAsync(published.index_queries, layers_->index_queries(), num_rows * floats * sizeof(float), stream_);
  }
  stage.projected->Record(stream_);
  stage.moves_before = mover_->num_launched();
}

bool DeviceForward::PublishLayer(int layer, DecodeKv& kv) {
  const DecodeStage& stage = decode_stages_[layer % 2];
  const PublishStages::Decode& published = stages_->decode(layer);
  At("waiting for the rows", layer);
  if (!Take(device_->CheckLaunches())) return false;
  while (!stage.projected->HasPassed().value_or(true) && kv.WorkMeanwhile()) {
  }
  if (!Take(stage.projected->Wait())) return false;
  mover_->Recycle(stage.moves_before);
  const bool predicts = lookahead_ > 0 && layer + lookahead_ < config_.num_layers;
  kv.Publish({.layer = layer,
              .kv_rows = published.kv_rows,
              .q_pre_rope = published.q_pre_rope,
              .prediction = predicts ? published.prediction : nullptr,
              .prediction_layer = layer + lookahead_,
              .hidden = kv.NeedsHidden(layer) ? published.hidden : nullptr,
              .hidden_size = config_.hidden_size,
              .index_queries = stages_->index_query_floats() > 0 ? published.index_queries : nullptr,
              .rows_are_resident = may_run_ahead_ && kv.SlotsComeFirst(layer)});
  return true;
}

// True when the layer's slots, which need nothing of what it publishes, were there before its projections: then the GPU
// goes on at once. Otherwise what it publishes goes out first, so that the cache rank selects for a later layer while
// it sends the rows of this one.
bool DeviceForward::SlotsWereFirst(int layer, DecodeKv& kv) {
  if (!may_run_ahead_ || !kv.SlotsComeFirst(layer)) return false;
  At("waiting for the rows", layer);
  // An error shows where the event is waited for.
  while (!kv.PollSlots(layer)) {
    if (decode_stages_[layer % 2].projected->HasPassed().value_or(true)) return false;
  }
  return true;
}

// The layer's attention and all that follows on the GPU until the next layer's slots are needed.
bool DeviceForward::AttendLayer(int layer, int num_rows, DecodeKv& kv) {
  DecodeStage& stage = decode_stages_[layer % 2];
  slot_lists_.Clear();
  kv.AwaitSlots(layer, slot_lists_);
  // A list is in the order of positions, and has those of the window (common/selection/window_layers.h).
  if (config_.window(layer) > 0) slot_lists_.KeepNewest(config_.window(layer));
  At("attention", layer);
  mover_->Flush();
  if (!Attend(stage, layer, num_rows)) return false;
  if (!may_run_ahead_ && !CorrectByPartials(stage, layer, num_rows, kv.AwaitPartials(layer))) return false;
  layers_->OutputAndMlp(stream_, DevicePhase::kDecode, layer, num_rows, sums_.get());
  if (layer + 1 < config_.num_layers) EnqueueProjections(layer + 1, num_rows, kv);
  return true;
}

std::span<float> DeviceForward::DecodeByLayer(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                              DecodeKv& kv) {
  const int num_rows = static_cast<int>(token_ids.size());
  WINNOW_CHECK(num_rows >= 1 && num_rows <= kMaxDecodeRows && positions.size() == token_ids.size());
  if (!status_.ok()) return {};
  pass_ = "decode";
  pass_rows_ = num_rows;
  lookahead_ = kv.Lookahead();
  may_run_ahead_ = !kv.WaitsForPartials();
  At("embedding", 0);
  mover_->Flush();
  UploadTokens(stream_, token_ids);
  std::copy(positions.begin(), positions.end(), host_positions_);
  device_->CopyAsync(positions_, host_positions_, positions.size_bytes(), stream_);
  if (may_run_ahead_) UploadPlaces(num_rows, kv);
  layers_->Embed(stream_, token_ids_, num_rows);
  EnqueueProjections(0, num_rows, kv);
  for (int l = 0; l < config_.num_layers; ++l) {
    if (SlotsWereFirst(l, kv)) {
      if (!AttendLayer(l, num_rows, kv) || !PublishLayer(l, kv)) return {};
    } else {
      if (!PublishLayer(l, kv) || !AttendLayer(l, num_rows, kv)) return {};
    }
  }
  return TakeLogits(stream_, num_rows);
}

}  // namespace winnow
