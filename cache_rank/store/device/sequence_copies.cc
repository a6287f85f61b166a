#include "cache_rank/store/device/sequence_copies.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/base/status.h"

namespace winnow {

absl::StatusOr<std::unique_ptr<SequenceCopies>> SequenceCopies::Create(const device::DeviceTable* table,
                                                                       device::Device* device, DeviceKvShape shape,
                                                                       const SelectionSpec& spec, size_t memory_bytes,
                                                                       size_t host_bytes, Executor* executor) {
  std::unique_ptr<SequenceCopies> store(new SequenceCopies(device, spec, executor));
  FitBlocks(memory_bytes, host_bytes, &shape);
  if (shape.num_blocks < shape.BlocksOf(kBlockTokens)) {
    shape.num_blocks = shape.dram_blocks = 0;
    return absl::ResourceExhaustedError(absl::StrCat("tables for ", shape.max_sequences, " sequences of ",
                                                     shape.max_positions, " positions take ", BytesOf(shape).index(),
                                                     " bytes of the GPU's memory, of which there are ", memory_bytes));
  }
  store->stream_ = device->NewStream();
  store->staging_bytes_ = StagingBytes(shape.layout) / kStagings;
  WINNOW_ASSIGN_OR_RETURN(store->kv_, DeviceKvStore::Create(table, device, shape));
  WINNOW_RETURN_IF_ERROR(store->AllocateStaging());
  return store;
}

size_t SequenceCopies::StagingBytes(const KvLayout& layout) {
  return kStagings * kChunkTokens * layout.num_kv_heads * layout.row_bytes();
}

absl::Status SequenceCopies::AllocateStaging() {
  WINNOW_ASSIGN_OR_RETURN(host_memory_, device_->AllocatePinned(stagings_.size() * staging_bytes_));
  WINNOW_ASSIGN_OR_RETURN(device_memory_, device_->Allocate(stagings_.size() * staging_bytes_));
  for (size_t i = 0; i < stagings_.size(); ++i) {
    stagings_[i].host = static_cast<std::byte*>(host_memory_->data()) + i * staging_bytes_;
    stagings_[i].device = static_cast<std::byte*>(device_memory_->data()) + i * staging_bytes_;
    stagings_[i].copied = device_->NewEvent();
  }
  appended_ = device_->NewEvent();
  return absl::OkStatus();
}

std::shared_ptr<SequenceCopy> SequenceCopies::FindOrOpen(const CachedSequence& sequence) {
  const auto found = copies_.find(sequence.id);
  if (found != copies_.end()) return found->second;
  if (sequence.layout != kv_->shape().layout) return nullptr;  // a shard: peer links serve whole sequences
  if (!(sequence.spec == spec_) || sequence.kv.max_positions() > kv_->shape().max_positions) return nullptr;
  const absl::StatusOr<uint32_t> place = kv_->Open(sequence.kv.max_positions(), stream_);
  if (!place.ok()) return nullptr;
  auto copy = std::make_shared<SequenceCopy>(*kv_, *place, kv_->shape().layout.num_layers);
  copies_[sequence.id] = copy;
  return copy;
}

absl::StatusOr<SequenceCopies::Staging*> SequenceCopies::NextStaging() {
  Staging& staging = stagings_[next_staging_++ % stagings_.size()];
  WINNOW_RETURN_IF_ERROR(staging.copied->Wait());
  return &staging;
}

absl::Status SequenceCopies::Append(SequenceCopy& copy, int layer, uint32_t first, uint32_t count, Staging& staging) {
  const KvLayout& layout = kv_->shape().layout;
  device_->CopyAsync(staging.device, staging.host, layout.num_kv_heads * count * layout.row_bytes(), stream_);
  staging.copied->Record(stream_);  // whether the rows are taken or not
  WINNOW_RETURN_IF_ERROR(kv_->AppendRange(copy.place(), layer, first, count, staging.device, stream_));
  copy.SetRows(layer, first + count);
  return absl::OkStatus();
}

void SequenceCopies::OnRows(const CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                            const std::byte* rows) {
  const std::shared_ptr<SequenceCopy> copy = FindOrOpen(sequence);
  // What is left out here is made up for by Complete.
  if (copy == nullptr || copy->rows(layer) != first) return;
  const KvLayout& layout = kv_->shape().layout;
  const size_t row_bytes = layout.row_bytes();
  for (uint32_t done = 0; done < count;) {
    const uint32_t part = std::min(kChunkTokens, count - done);
    const absl::StatusOr<Staging*> staging = NextStaging();
    if (!staging.ok()) return;
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      std::memcpy((*staging)->host + head * part * row_bytes,
                  rows + (static_cast<size_t>(head) * count + done) * row_bytes, part * row_bytes);
    }
    if (!Append(*copy, layer, first + done, part, **staging).ok()) return;
    done += part;
  }
}

void SequenceCopies::OnDeviceRows(const CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                                  const void* rows) {
  const std::shared_ptr<SequenceCopy> copy = FindOrOpen(sequence);
  if (copy == nullptr || copy->rows(layer) != first) return;
  if (kv_->AppendRange(copy->place(), layer, first, count, rows, stream_).ok()) copy->SetRows(layer, first + count);
}

absl::StatusOr<bool> SequenceCopies::CopyMissed(const CachedSequence& sequence, SequenceCopy& copy, int most_chunks) {
  const KvLayout& layout = kv_->shape().layout;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    const uint32_t end = sequence.kv.rows(layer);
    while (copy.rows(layer) < end) {
      if (most_chunks-- == 0) return false;
      const uint32_t first = copy.rows(layer), part = std::min(kChunkTokens, end - first);
      WINNOW_ASSIGN_OR_RETURN(Staging * staging, NextStaging());
      sequence.kv.CopyLayerRows(layer, first, part, staging->host, executor_);
      WINNOW_RETURN_IF_ERROR(Append(copy, layer, first, part, *staging));
    }
  }
  return true;
}

bool SequenceCopies::Advance(const CachedSequence& sequence) {
  const std::shared_ptr<SequenceCopy> copy = FindOrOpen(sequence);
  if (copy == nullptr) return true;
  const absl::StatusOr<bool> complete = CopyMissed(sequence, *copy, kChunksPerTurn);
  return complete.value_or(true);
}

absl::StatusOr<std::shared_ptr<SequenceCopy>> SequenceCopies::Complete(const CachedSequence& sequence,
                                                                       device::Stream stream) {
  const std::shared_ptr<SequenceCopy> copy = FindOrOpen(sequence);
  if (copy == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the GPU has no room for a copy of ", sequence.kv.max_positions(),
                                                     " positions, or the sequence "
                                                     "selects in another way"));
  }
  WINNOW_RETURN_IF_ERROR(CopyMissed(sequence, *copy, std::numeric_limits<int>::max()).status());
  appended_->Record(stream_);
  appended_->Hold(stream);
  return copy;
}

void SequenceCopies::Truncate(uint64_t sequence_id, uint32_t position) {
  const auto found = copies_.find(sequence_id);
  if (found != copies_.end()) found->second->Truncate(position);
}

void SequenceCopies::Forget(uint64_t sequence_id) {
  copies_.erase(sequence_id);
}

void SequenceCopies::Retain(const std::function<bool(uint64_t)>& stays) {
  std::erase_if(copies_, [&](const auto& entry) { return !stays(entry.first); });
}

}  // namespace winnow
