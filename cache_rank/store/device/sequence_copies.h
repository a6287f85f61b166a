#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_rank/store/cached_sequence.h"
#include "cache_rank/store/device/device_kv_store.h"

namespace winnow {

// A sequence in a GPU's memory. Whoever has work under way there holds it: the blocks are given back after that.
class SequenceCopy {
 public:
  SequenceCopy(DeviceKvStore& kv, uint32_t place, int num_layers) : kv_(kv), place_(place), rows_(num_layers, 0) {}
  ~SequenceCopy() { kv_.Release(place_); }
  SequenceCopy(const SequenceCopy&) = delete;
  SequenceCopy& operator=(const SequenceCopy&) = delete;

  uint32_t place() const { return place_; }  // its number in the store
  // Positions below are there.
  uint32_t rows(int layer) const { return rows_[layer]; }
  void SetRows(int layer, uint32_t end) { rows_[layer] = end; }
  // A plan has appended `position` to all layers.
  void TakePosition(uint32_t position) {
    for (uint32_t& rows : rows_) {
      if (rows == position) rows = position + 1;
    }
  }
  // Bounds of a page are built from its first row on, and what a plan that failed has appended is in them.
  void Truncate(uint32_t position) {
    for (uint32_t& rows : rows_) rows = std::min(rows, position) / kBlockTokens * kBlockTokens;
  }

 private:
  DeviceKvStore& kv_;
  const uint32_t place_;
  std::vector<uint32_t> rows_;  // [num_layers]
};

// Copies of sequences in a GPU's memory, rows and index, for peer links to select from and push. A copy follows the
// sequence in host memory: prompts as they arrive, what was missed when it is needed, and a plan's rows, which the GPU
// appends itself. One thread.
class SequenceCopies {
 public:
  // `shape` without num_blocks: as many as fit in memory_bytes of the GPU, and with their rows in host_bytes of pinned
  // DRAM where the GPU's memory is taken (FitBlocks). `executor`: threads that copy rows; may be null. All arguments
  // outlive the store.
  static absl::StatusOr<std::unique_ptr<SequenceCopies>> Create(const device::DeviceTable* table,
                                                                device::Device* device, DeviceKvShape shape,
                                                                const SelectionSpec& spec, size_t memory_bytes,
                                                                size_t host_bytes = 0, Executor* executor = nullptr);

  // Memory of the GPU beside the shape's.
  static size_t StagingBytes(const KvLayout& layout);

  DeviceKvStore& kv() { return *kv_; }
  const SelectionSpec& spec() const { return spec_; }

  void OnRows(const CachedSequence& sequence, int layer, uint32_t first, uint32_t count, const std::byte* rows);
  // The same for rows in device memory, which `stream()` reads.
  void OnDeviceRows(const CachedSequence& sequence, int layer, uint32_t first, uint32_t count, const void* rows);
  device::Stream stream() const { return stream_; }
  // A part of what Complete does; true when nothing is left, or there is no room.
  bool Advance(const CachedSequence& sequence);
  // Brings the copy up to the sequence, behind which `stream` is held. RESOURCE_EXHAUSTED where it has no
  // room.
  absl::StatusOr<std::shared_ptr<SequenceCopy>> Complete(const CachedSequence& sequence, device::Stream stream);

  void Truncate(uint64_t sequence_id, uint32_t position);
  void Forget(uint64_t sequence_id);
  void Retain(const std::function<bool(uint64_t)>& stays);

 private:
  // Rows on their way: pinned memory, and the same on the device.
  struct Staging {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    std::unique_ptr<device::Event> copied;  // to the device: `host` may be written again
  };
  static constexpr uint32_t kChunkTokens = 512;
  static constexpr int kChunksPerTurn = 4;
  static constexpr size_t kStagings = 8;

  SequenceCopies(device::Device* device, const SelectionSpec& spec, Executor* executor)
      : device_(device), spec_(spec), executor_(executor) {}
  absl::Status AllocateStaging();
  std::shared_ptr<SequenceCopy> FindOrOpen(const CachedSequence& sequence);
  // The next staging, once what it held before is on the device.
  absl::StatusOr<Staging*> NextStaging();
  // At most so many chunks; true when the copy has all rows of the sequence.
  absl::StatusOr<bool> CopyMissed(const CachedSequence& sequence, SequenceCopy& copy, int most_chunks);
  absl::Status Append(SequenceCopy& copy, int layer, uint32_t first, uint32_t count, Staging& staging);

  device::Device* const device_;
  const SelectionSpec spec_;
  Executor* const executor_;
  device::Stream stream_ = nullptr;
  std::unique_ptr<DeviceKvStore> kv_;
  std::unique_ptr<device::DeviceMemory> host_memory_, device_memory_;
  std::array<Staging, kStagings> stagings_;
  size_t staging_bytes_ = 0;
  size_t next_staging_ = 0;
  std::unique_ptr<device::Event> appended_;
  std::unordered_map<uint64_t, std::shared_ptr<SequenceCopy>> copies_;
};

}  // namespace winnow
