#include "inference_rank/backend/device_forward.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "inference_rank/backend/warm_up.h"
#include "kernels/device/arena.h"
#include "model/device/sample_row.h"

namespace winnow {
namespace {

DeviceLayerOptions LayerOptions(int num_shards, const DeviceForward::Options& options) {
  // Attention over slots is launched here, with scratch of its own.
  return {.max_decode_rows = kMaxDecodeRows,
          .max_prefill_rows = options.max_prefill_tokens,
          .partial_chunks = num_shards > 1,
          .max_list_rows = options.decode_list_rows,
          .kv_dtype = options.kv_dtype,
          .max_prompt_tokens = options.max_list_rows};
}

int SumRows(const DeviceForward::Options& options) {
  return std::max(options.max_prefill_tokens, kMaxDecodeRows);
}

// Of the multiprocessors, those that prompts have first beside steps, which have the others at any time. On an H200
// more of them slow steps down more than they help prompts (winnow-gpu-check --only=prefill_beside).
int PromptMultiprocessors(int all) {
  constexpr int kGroup = 8;  // as drivers group them
  return std::max(all * 3 / 4 / kGroup, 1) * kGroup;
}

// Slots of a layer's lists that are uploaded at once: those of 64 sequences with budgets of 4096, or of one row with
// the longest lists.
size_t MaxSelected(const ModelConfig& config, const DeviceForward::Options& options) {
  const size_t usual = std::min<size_t>(options.max_list_rows, 4096) * config.num_kv_heads * kMaxDecodeRows;
  return std::max(usual, static_cast<size_t>(options.max_list_rows) * config.num_query_heads);
}

}  // namespace

DeviceForward::DeviceForward(const device::DeviceTable& table, device::Device* device, const ModelConfig& config,
                             WeightShard shard, const PublishStages* stages, const Options& options)
    : table_(table),
      device_(device),
      config_(config),
      shard_(shard),
      stages_(stages),
      options_(options),
      rope_(RopeOfHeads(config, config.rope)),
      scale_(AttentionScale(config)) {}

size_t DeviceForward::CarveDevice(void* region) {
  const size_t chunk = options_.max_prefill_tokens, rows = std::max<size_t>(chunk, kMaxDecodeRows);
  const size_t q = config_.q_features(), heads = config_.num_query_heads;
  device::Arena arena(region);
  token_ids_ = arena.TakeArray<uint32_t>(rows);
  positions_ = arena.TakeArray<uint32_t>(rows);
  kv_destinations_ = arena.TakeArray<void*>(chunk * config_.num_kv_heads);
  places_ = arena.TakeArray<void*>(static_cast<size_t>(config_.num_layers) * kMaxDecodeRows * config_.num_kv_heads);
  chunk_queries_ = arena.TakeArray<float>(chunk * q);
  pages_ = arena.TakeArray<uint32_t>(options_.num_slots / kSlotPageTokens);
  lists_ = arena.TakeArray<device::AttentionList>(kMaxDecodeRows * heads);
  selected_ = arena.TakeArray<uint32_t>(MaxSelected(config_, options_));
  attention_f32_ = arena.TakeArray<float>(kMaxDecodeRows * q);
  lse_ = arena.TakeArray<float>(kMaxDecodeRows * heads);
  attention_scratch_ = arena.Take(AttentionScratchBytes());
  draw_rows_ = arena.TakeArray<device::SampleRow>(kMaxDecodeRows);
  drawn_ = arena.TakeArray<uint32_t>(kMaxDecodeRows);
  return arena.used_bytes();
}

size_t DeviceForward::CarvePinned(void* region) {
  const size_t chunk = options_.max_prefill_tokens, rows = std::max<size_t>(chunk, kMaxDecodeRows);
  const size_t q = config_.q_features(), heads = config_.num_query_heads;
  device::Arena arena(region);
  host_token_ids_ = arena.TakeArray<uint32_t>(rows);
  host_positions_ = arena.TakeArray<uint32_t>(rows);
  host_places_ =
      arena.TakeArray<void*>(static_cast<size_t>(config_.num_layers) * kMaxDecodeRows * config_.num_kv_heads);
  logits_ = arena.TakeArray<float>(static_cast<size_t>(kMaxDecodeRows) * config_.vocab_size);
  host_attention_ = arena.TakeArray<float>(kMaxDecodeRows * q);
  host_lse_ = arena.TakeArray<float>(kMaxDecodeRows * heads);
  host_corrected_ = arena.TakeArray<uint16_t>(kMaxDecodeRows * q);
  host_draw_rows_ = arena.TakeArray<device::SampleRow>(kMaxDecodeRows);
  host_drawn_ = arena.TakeArray<uint32_t>(kMaxDecodeRows);
  for (DecodeStage& stage : decode_stages_) {
    stage.lists = arena.TakeArray<device::AttentionList>(kMaxDecodeRows * heads);
    stage.selected = arena.TakeArray<uint32_t>(MaxSelected(config_, options_));
  }
  return arena.used_bytes();
}

size_t DeviceForward::ActivationBytes(const device::DeviceTable& table, const ModelConfig& config, int num_shards,
                                      const Options& options) {
  const bool has_boxes = num_shards > 1 && options.boxes == ShardSums::Boxes::kPeerMemory;
  return DeviceLayers::ActivationBytes(table, config, LayerOptions(num_shards, options)) +
         DeviceForward(table, nullptr, config, {.count = num_shards}, nullptr, options).CarveDevice(nullptr) +
         (has_boxes ? ShardSums::BoxBytes(config, num_shards, SumRows(options)) : 0);
}

absl::StatusOr<std::unique_ptr<DeviceForward>> DeviceForward::Create(const device::DeviceTable& table,
                                                                     device::Device& device,
                                                                     const DeviceWeights& weights, void* slots,
                                                                     const PublishStages& stages,
                                                                     const Options& options) {
  WINNOW_CHECK(options.num_slots % kSlotPageTokens == 0 && options.max_list_rows > 0);
  std::unique_ptr<DeviceForward> forward(
      new DeviceForward(table, &device, weights.config(), weights.shard(), &stages, options));
  forward->stream_ = device.NewStream();
  forward->prompt_stream_ = forward->stream_;
  forward->copy_stream_ = device.NewStream();
  forward->slots_ = slots;
  const int num_shards = weights.shard().count;
  WINNOW_ASSIGN_OR_RETURN(forward->layers_,
                          DeviceLayers::Create(table, device, weights, LayerOptions(num_shards, options)));
  if (num_shards > 1) {
    WINNOW_ASSIGN_OR_RETURN(forward->sums_,
                            ShardSums::Create(device, *forward->layers_, SumRows(options), options.boxes));
  }
  WINNOW_ASSIGN_OR_RETURN(forward->memory_, device.Allocate(forward->CarveDevice(nullptr)));
  forward->CarveDevice(forward->memory_->data());
  WINNOW_ASSIGN_OR_RETURN(forward->pinned_, device.AllocatePinned(forward->CarvePinned(nullptr)));
  forward->CarvePinned(forward->pinned_->data());
  WINNOW_ASSIGN_OR_RETURN(
      forward->mover_,
      DeviceRowMover::Create(table, device, forward->stream_, slots, options.num_slots,
                             {.row_bytes = options.row_bytes, .int8_code_bytes = forward->int8_slots().code_bytes}));
  forward->flushed_ = device.NewEvent();
  forward->settled_ = device.NewEvent();
  forward->held_ = device.NewEvent();
  forward->mover_->BeforeLaunches([forward = forward.get()] { forward->HoldMovesBehindPieces(); });
  const size_t max_lists = static_cast<size_t>(kMaxDecodeRows) * forward->config_.num_query_heads;
  for (DecodeStage& stage : forward->decode_stages_) {
    stage.projected = device.NewEvent();
    stage.packer =
        std::make_unique<SlotListPacker>(forward->config_.num_query_heads, forward->config_.num_kv_heads,
                                         /*first_slot=*/weights.shard().index * options.num_slots,
                                         std::span<device::AttentionList>(stage.lists, max_lists),
                                         std::span<uint32_t>(stage.selected, MaxSelected(forward->config_, options)));
  }
  for (std::unique_ptr<device::Event>& computed : forward->piece_computed_) computed = device.NewEvent();
  for (std::unique_ptr<device::Event>& ready : forward->piece_ready_) ready = device.NewEvent();

  std::vector<uint32_t> pages(options.num_slots / kSlotPageTokens);
  std::iota(pages.begin(), pages.end(), 0u);
  device.FillAsync(forward->memory_->data(), 0, forward->memory_->bytes(), forward->stream_);
  device.CopyAsync(forward->pages_, pages.data(), pages.size() * sizeof(uint32_t), forward->stream_);
  WINNOW_RETURN_IF_ERROR(device.Synchronize(forward->stream_));
  if (num_shards == 1) {
    const auto confined = device.NewConfinedStream(PromptMultiprocessors(device.info().num_multiprocessors));
    if (confined.ok()) forward->confined_stream_.emplace(*confined);
    WINNOW_RETURN_IF_ERROR(forward->WarmUp());
  }
  return forward;
}

// One token through either phase: kernels are loaded and the library's algorithms chosen now, and what cannot run is
// found before anyone asks for it.
absl::Status DeviceForward::WarmUp() {
  const uint32_t token = 0, position = 1;
  const std::optional<TokenDraw> draw = TokenDraw();
  WarmUpPrefill prefill(slots_);
  Prefill({&token, 1}, 0, /*last=*/true, prefill);
  if (RunsBesideSteps()) {
    RunBesideSteps([] {});
    Prefill({&token, 1}, 0, /*last=*/true, prefill);
    RunBesideSteps(nullptr);
  }
  WarmUpDecode decode(config_.num_kv_heads, config_.group_size(), shard_.index * options_.num_slots);
  PlanDraws({&draw, 1});
  DecodeByLayer({&token, 1}, {&position, 1}, decode);
  return status_;
}

void DeviceForward::FlushMoves(device::Stream stream) {
  mover_->Flush();
  flushed_->Record(stream_);
  flushed_->Hold(stream);
}

void DeviceForward::HoldMovesBehind(device::Stream stream) {
  held_->Record(stream);
  held_->Hold(stream_);
}

void DeviceForward::RunBesideSteps(std::function<void()> meanwhile) {
  WINNOW_CHECK(meanwhile == nullptr || RunsBesideSteps());
  meanwhile_ = std::move(meanwhile);
  prompt_stream_ = meanwhile_ != nullptr ? *confined_stream_ : stream_;
}

void DeviceForward::FlushMovesBeforePiece() {
  mover_->Flush();
  if (prompt_stream_ == stream_ || !moves_since_piece_) return;
  moves_since_piece_ = false;
  FlushMoves(prompt_stream_);
  moves_before_piece_ = mover_->num_launched();
}

void DeviceForward::HoldMovesBehindPieces() {
  moves_since_piece_ = true;
  if (prompt_stream_ != stream_ && prompt_is_under_way_) HoldMovesBehind(prompt_stream_);
}

bool DeviceForward::Take(const absl::Status& status) {
  if (status_.ok() && !status.ok()) {
    status_ =
        absl::Status(status.code(), absl::StrCat("GPU ", device_->ordinal(), ", ", LastWork(), ": ", status.message()));
  }
  return status_.ok();
}

bool DeviceForward::Wait(const char* what, device::Stream stream) {
  doing_ = what;
  if (stream == stream_) {
    if (!Take(device_->Synchronize(stream))) return false;
    mover_->Recycle(mover_->num_launched());
  } else {
    settled_->Record(stream);
    if (!Take(device_->CheckLaunches()) || !Await(*settled_)) return false;
    mover_->Recycle(moves_before_piece_);
  }
  prompt_is_under_way_ = false;
  return sums_ == nullptr || Take(sums_->Error());
}

bool DeviceForward::Await(device::Event& event) {
  if (meanwhile_ == nullptr) return Take(event.Wait());
  absl::StatusOr<bool> passed = false;
  while (passed.ok() && !*passed) {
    meanwhile_();
    passed = event.HasPassed();
  }
  return Take(passed.status());
}

RopeOutputs DeviceForward::Published(std::byte* kv_rows, float* q_pre_rope) const {
  const ModelConfig& whole = stages_->config();
  RopeOutputs outputs{.positions = positions_, .kv_dtype = options_.kv_dtype};
  if (kv_rows != nullptr) {
    outputs.kv_copy = kv_rows + kv_heads().first * options_.row_bytes;
    outputs.kv_copy_stride = static_cast<int64_t>(whole.num_kv_heads * options_.row_bytes);
  }
  outputs.q_pre_rope = q_pre_rope + static_cast<size_t>(query_heads().first) * config_.head_dim;
  outputs.q_pre_rope_stride = whole.q_features();
  return outputs;
}

device::Int8Slots DeviceForward::int8_slots() const {
  if (options_.kv_dtype != Dtype::kI8) return {};
  return {.codes = slots_,
          .num_slots = options_.num_slots,
          .code_bytes = RowLayout().scales_offset_bytes(config_.head_dim, Dtype::kI8)};
}

RopeOutputs DeviceForward::ToSlots(RopeOutputs outputs, void* const* places) const {
  outputs.kv_destinations = places;
  if (options_.kv_dtype == Dtype::kI8) {
    outputs.slot_scales = int8_slots().scales();
    outputs.slot_pool = slots_;
  }
  return outputs;
}

void DeviceForward::At(const char* doing, int layer) {
  doing_ = doing;
  layer_ = layer;
}

void DeviceForward::NoteGraph(int num_rows) {
  pass_ = "decode";
  pass_rows_ = num_rows;
  At("as one graph, from the first", 0);
}

std::string DeviceForward::LastWork() const {
  return absl::StrCat(pass_, " of ", pass_rows_, " rows, ", doing_, " of layer ", layer_);
}

void DeviceForward::UploadTokens(device::Stream stream, std::span<const uint32_t> token_ids) {
  if (sums_ != nullptr) sums_->BeginPass(stream);
  std::copy(token_ids.begin(), token_ids.end(), host_token_ids_);
  device_->CopyAsync(token_ids_, host_token_ids_, token_ids.size_bytes(), stream);
}

std::span<float> DeviceForward::TakeLogits(device::Stream stream, int num_rows) {
  const size_t vocab = config_.vocab_size;
  At("logits", config_.num_layers);
  layers_->Logits(stream, num_rows);
  if (sums_ != nullptr) sums_->GatherLogits(stream, num_rows);
  if (shard_.index > 0) {
    Wait("waiting for the others");
    return {};
  }
  draws_.resize(num_rows);
  bool any_drawn = false;
  for (int row = 0; row < num_rows; ++row) {
    any_drawn |= draws_[row].has_value();
    host_draw_rows_[row] = SampleRowOf(draws_[row].value_or(TokenDraw()));
    if (draws_[row].has_value()) continue;
    device_->CopyAsync(logits_ + row * vocab, layers_->logits() + row * vocab, vocab * sizeof(float), stream);
  }
  if (any_drawn) {
    device_->CopyAsync(draw_rows_, host_draw_rows_, num_rows * sizeof(device::SampleRow), stream);
    layers_->Sample(stream, num_rows, draw_rows_, drawn_, nullptr);
    device_->CopyAsync(host_drawn_, drawn_, num_rows * sizeof(uint32_t), stream);
  }
  draws_.clear();
  Wait("waiting for the tokens", stream);
  return {logits_, num_rows * vocab};
}

}  // namespace winnow
