#include "inference_rank/backend/shard_sums.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/device/arena.h"

namespace winnow {
namespace {

// GPUs of a pass are launched to by threads that start it together: only a GPU that has failed, or a host that has
// stalled, makes another wait for long.
constexpr uint32_t kTimeoutUs = 20'000'000;
// Words of pinned memory.
constexpr int kAbortWord = 0, kErrorWord = 1, kCountWord = 2, kNumWords = 3;
constexpr size_t kBoxes = 2;  // used in turn
// Few enough for small chunks to be shared out, too.
constexpr uint32_t kGroupRows = 32;

constexpr size_t kFlagsOfBox = size_t{2} * device::kChunkSumBlocks;  // from each rank

size_t MostOwnedRows(int max_rows, int num_ranks) {
  return std::min<size_t>(max_rows, max_rows / num_ranks + kGroupRows);
}

size_t TermStride(const ModelConfig& config) {
  return static_cast<size_t>(kMaxGraphRows) * config.hidden_size;
}

}  // namespace

ShardSums::ShardSums(device::Device& device, DeviceLayers& layers, int max_rows, Boxes boxes)
    : device_(device),
      layers_(layers),
      shard_(layers.weights().shard()),
      kind_(boxes),
      mailbox_stride_(MostOwnedRows(max_rows, shard_.count) * layers.config().hidden_size) {}

size_t ShardSums::BoxBytes(const ModelConfig& config, int num_ranks, int max_rows) {
  const size_t rows = MostOwnedRows(max_rows, num_ranks) + kMaxGraphRows;
  return kBoxes * num_ranks * rows * config.hidden_size * sizeof(float) + (size_t{1} << 16);
}

size_t ShardSums::Carve(void* region, int max_rows) {
  const ModelConfig& config = layers_.config();
  device::Arena arena(region);
  box_.flags = arena.TakeArray<uint32_t>(kBoxes * kFlagsOfBox * shard_.count);
  box_.logit_flags = arena.TakeArray<uint32_t>(shard_.count);
  box_.mailboxes = arena.TakeArray<float>(kBoxes * shard_.count * mailbox_stride_);
  box_.terms = arena.TakeArray<float>(kBoxes * shard_.count * TermStride(config));
  box_.normed = kind_ == Boxes::kPeerMemory
                    ? layers_.normed()
                    : arena.Take(static_cast<size_t>(max_rows) * config.hidden_size * DtypeBytes(Dtype::kBf16));
  box_.logits = kind_ == Boxes::kPeerMemory
                    ? layers_.logits()
                    : arena.TakeArray<float>(static_cast<size_t>(kMaxGraphRows) * config.vocab_size);
  return arena.used_bytes();
}

absl::StatusOr<std::unique_ptr<ShardSums>> ShardSums::Create(device::Device& device, DeviceLayers& layers, int max_rows,
                                                             Boxes boxes) {
  WINNOW_CHECK(layers.is_shard());
  std::unique_ptr<ShardSums> sums(new ShardSums(device, layers, max_rows, boxes));
  const size_t bytes = sums->Carve(nullptr, max_rows);
  WINNOW_ASSIGN_OR_RETURN(sums->memory_,
                          boxes == Boxes::kPeerMemory ? device.Allocate(bytes) : device.AllocatePinned(bytes));
  sums->Carve(sums->memory_->data(), max_rows);
  WINNOW_ASSIGN_OR_RETURN(sums->state_, device.Allocate(512));
  sums->counted_ = static_cast<uint32_t*>(sums->state_->data());
  sums->arrivals_ = sums->counted_ + 1;
  WINNOW_ASSIGN_OR_RETURN(sums->words_, device.AllocatePinned(kNumWords * sizeof(uint32_t)));
  std::fill_n(sums->word(0), kNumWords, 0u);
  const device::Stream stream = device.NewStream();
  // Flags begin as zeros; so may mailboxes.
  device.FillAsync(sums->memory_->data(), 0, bytes, stream);
  device.FillAsync(sums->state_->data(), 0, sums->state_->bytes(), stream);
  WINNOW_RETURN_IF_ERROR(device.Synchronize(stream));
  return sums;
}

void ShardSums::Connect(std::span<const Box> boxes) {
  WINNOW_CHECK(boxes.size() == static_cast<size_t>(shard_.count) && boxes.size() <= boxes_.size());
  std::copy(boxes.begin(), boxes.end(), boxes_.begin());
}

void ShardSums::BeginPass(device::Stream stream) {
  pass_begin_ = num_sums_;
  *word(kCountWord) = num_sums_;
  device_.CopyAsync(counted_, word(kCountWord), sizeof(uint32_t), stream);
}

void ShardSums::BeginChunk(uint32_t first_position, bool all_own_all) {
  owners_ = {.first_position = first_position, .group_rows = all_own_all ? 0 : kGroupRows};
}

void ShardSums::AddChunk(device::Stream stream, int num_rows, const float* norm_weight) {
  EnqueueChunk(stream, num_rows, layers_.partial(), norm_weight);
}

void ShardSums::NormChunk(device::Stream stream, int num_rows, const float* weight) {
  EnqueueChunk(stream, num_rows, /*partial=*/nullptr, weight);
}

void ShardSums::EnqueueChunk(device::Stream stream, int num_rows, const float* partial, const float* norm_weight) {
  ++num_sums_;
  owners_.num_rows = num_rows;
  const int hidden_size = layers_.config().hidden_size;
  const size_t box = num_sums_ % kBoxes * shard_.count;
  device::ChunkSumParams params = {.rank = shard_.index,
                                   .num_ranks = shard_.count,
                                   .owners = owners_,
                                   .hidden_size = hidden_size,
                                   .partial = partial,
                                   .x = layers_.hidden(),
                                   .mailbox_stride = static_cast<int64_t>(mailbox_stride_),
                                   .weight = norm_weight,
                                   .epsilon = layers_.config().rms_norm_eps,
                                   .value = counted_,
                                   .value_plus = num_sums_ - pass_begin_,
                                   .abort = word(kAbortWord),
                                   .error = word(kErrorWord),
                                   .timeout_us = kTimeoutUs};
  for (int r = 0; r < shard_.count; ++r) {
    const size_t owned = device::OwnedRows(owners_, r, shard_.count).count();
    WINNOW_CHECK(owned * hidden_size <= mailbox_stride_);
    params.mailboxes[r] = boxes_[r].mailboxes + box * mailbox_stride_;
    params.out[r] = boxes_[r].normed;
    params.flags[r] = boxes_[r].flags + box * kFlagsOfBox;
  }
  layers_.table().chunk_sums->add_chunk(stream, params);
  if (norm_weight == nullptr || kind_ == Boxes::kPeerMemory) return;
  device_.CopyAsync(layers_.normed(), box_.normed,
                    static_cast<size_t>(num_rows) * hidden_size * DtypeBytes(Dtype::kBf16), stream);
}

DecodeSum ShardSums::NextDecodeSum() {
  ++num_sums_;
  const size_t stride = TermStride(layers_.config()), first = num_sums_ % kBoxes * shard_.count * stride;
  DecodeSum sum = {.places = {.num_ranks = shard_.count},
                   .terms = box_.terms + first,
                   .term_stride = static_cast<int64_t>(stride),
                   .abort = word(kAbortWord),
                   .error = word(kErrorWord),
                   .timeout_us = kTimeoutUs};
  for (int r = 0; r < shard_.count; ++r) {
    sum.places.of_rank[r] = boxes_[r].terms + first + shard_.index * stride;
  }
  return sum;
}

void ShardSums::GatherLogits(device::Stream stream, int num_rows) {
  const DeviceWeights& weights = layers_.weights();
  const size_t vocab = layers_.config().vocab_size, part = weights.lm_head().out_features;
  if (part == vocab) return;
  // So that a pass without sums has flags of its own; boxes keep their turn.
  num_sums_ += kBoxes;
  const size_t row_bytes = vocab * sizeof(float), part_bytes = part * sizeof(float);
  if (shard_.index > 0) {
    const size_t first = weights.lm_head_first();
    layers_.table().step->publish(stream, {.from = layers_.logits() + first,
                                           .from_stride = static_cast<int64_t>(row_bytes),
                                           .to = boxes_[0].logits + first,
                                           .to_stride = static_cast<int64_t>(row_bytes),
                                           .num_rows = num_rows,
                                           .row_bytes = part_bytes,
                                           .flag = boxes_[0].logit_flags + shard_.index,
                                           .value = counted_,
                                           .arrivals = arrivals_});
    return;
  }
  for (int r = 1; r < shard_.count; ++r) {
    layers_.table().cache->wait(stream, {.flag = box_.logit_flags + r,
                                         .value = counted_,
                                         .abort = word(kAbortWord),
                                         .error = word(kErrorWord),
                                         .timeout_us = kTimeoutUs});
    if (kind_ == Boxes::kPeerMemory) continue;
    device_.CopyRowsAsync(layers_.logits() + r * part, row_bytes, box_.logits + r * part, row_bytes, part_bytes,
                          num_rows, stream);
  }
}

absl::Status ShardSums::Error() const {
  switch (std::atomic_ref(*word(kErrorWord)).load()) {
    case 0:
      return absl::OkStatus();
    case device::kWaitAborted:
      return absl::AbortedError("another GPU of the rank has failed");
    default:
      return absl::DeadlineExceededError(
          absl::StrCat("another GPU of the rank has sent nothing for ", kTimeoutUs / 1'000'000, " s"));
  }
}

void ShardSums::Abort() {
  std::atomic_ref(*word(kAbortWord)).store(1);
}

}  // namespace winnow
