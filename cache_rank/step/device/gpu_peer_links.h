#pragma once
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cache_rank/select/device/device_selection.h"
#include "cache_rank/store/device/sequence_copies.h"
#include "cache_rank/stream/device_peer_link.h"
#include "kernels/plugin/device_table.h"
#include "model/weights/device_weights.h"

namespace winnow {

// Peer links of a cache rank that selects on a GPU. The first offer decides what all of them select like; its memory is
// taken then.
class GpuPeerLinks final : public DevicePeerLinks {
 public:
  struct Options {
    std::string model;             // folder or synthetic model, for predictor depth; empty: there is none
    Dtype compute = Dtype::kBf16;  // of its query projections
    // Of the GPU, for projections, copies of sequences and peer links; 0: nine tenths of what is free at the first
    // offer.
    size_t memory_bytes = 0;
    // Of the host, pinned: for rows of sequences that have no room there. Their index stays in the GPU's memory.
    size_t host_bytes = 0;
  };

  // Peer links whose memory is set aside when the first is offered.
  static constexpr size_t kRoomForPeerLinks = 4;

  // Loads the query projections. `table` outlives it.
  static absl::StatusOr<std::unique_ptr<GpuPeerLinks>> Create(const device::DeviceTable* table, int ordinal,
                                                              const Options& options);

  absl::StatusOr<std::unique_ptr<DevicePeerLink>> Open(const PeerOffer& offer, const ServedShape& shape) override;
  void UseExecutor(Executor* executor) override { executor_ = executor; }
  CopyBytes copy_bytes() const override;
  void OnRows(const CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
              const std::byte* rows) override;
  bool Advance(const CachedSequence& sequence) override { return store_ == nullptr || store_->Advance(sequence); }
  void Truncate(uint64_t sequence_id, uint32_t position) override;
  void Forget(uint64_t sequence_id) override;
  void Retain(const std::function<bool(uint64_t)>& stays) override;

 private:
  GpuPeerLinks(const device::DeviceTable* table, const Options& options) : table_(table), options_(options) {}
  absl::Status CheckModel(const PeerOffer& offer) const;
  absl::Status LoadProjections(WeightShard part);
  // Of a part of the heads, if that is another one than those that are loaded.
  absl::Status LoadProjectionsOf(const KvShard& shard, const KvLayout& layout);
  // `offer` as it is for its shard, whose layout is `layout`.
  absl::Status MakeStore(const PeerOffer& offer, const ServedShape& shape, const KvLayout& layout);
  DeviceSelection::Model ModelOf(const ServedShape& shape, const KvShard& shard) const;

  const device::DeviceTable* const table_;
  const Options options_;
  Executor* executor_ = nullptr;
  std::unique_ptr<device::Device> device_;
  // By first kv head; of the whole model until a part is asked for first. Empty without a model.
  std::map<int, std::unique_ptr<DeviceWeights>> projections_;
  std::unique_ptr<SequenceCopies> store_;  // from the first offer on
};

}  // namespace winnow
