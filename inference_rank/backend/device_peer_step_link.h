#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "inference_rank/backend/device_peer_step_batch.h"
#include "kernels/device/params/exchange.h"
#include "model/peer_step_link.h"
#include "transport/peer/peer_link.h"

namespace winnow {

// A peer link to another GPU of this host.
class DevicePeerStepLink final : public PeerStepLink {
 public:
  // `shape`: that of the batch, and what the peer link carries. RESOURCE_EXHAUSTED where the batch has no place.
  static absl::StatusOr<std::unique_ptr<DevicePeerStepLink>> Create(std::shared_ptr<DevicePeerStepBatch> batch,
                                                                    const PeerStepShape& shape);
  ~DevicePeerStepLink() override;

  const PeerStepShape& shape() const override { return shape_; }
  const std::shared_ptr<PeerStepBatch>& batch() const override { return batch_; }
  const std::string& address() const override { return link_->LocalAddress(); }
  absl::Status Connect(std::string_view peer_address) override;
  void* StagingPlace(uint64_t push) const override {
    return device::PushStagingPlace(exchange_.layout, link_->region(1), push);
  }
  uint64_t staging_places() const override { return device::kPushStagingPlaces; }
  uint32_t staging_tokens() const override { return device::kPushStagingTokens; }
  void Abort(const absl::Status& why) override { link_->Abort(why); }
  absl::Status status() const override { return link_->status(); }

  // For the batch:
  int place() const { return place_; }
  device::ExchangePeer peer() const;  // in a step; after Connect
  // Copies what the cache rank has counted in a step to where counts() has it until the second step behind it is
  // launched: as InferenceInbox::counts.
  void EnqueueCounts(uint32_t step, device::Stream stream);
  const uint32_t* counts(uint32_t step) const { return CountsOf(step); }

 private:
  DevicePeerStepLink(std::shared_ptr<DevicePeerStepBatch> batch, const PeerStepShape& shape);
  absl::Status Allocate();
  uint32_t* CountsOf(uint32_t step) const {
    return static_cast<uint32_t*>(pinned_->data()) + step % PeerStepBatch::kMaxStepsUnderWay * num_counts();
  }
  size_t num_counts() const { return 2 * exchange_.layout.num_layers * exchange_.counts_per_layer(); }

  DevicePeerStepBatch& device_batch_;
  const std::shared_ptr<PeerStepBatch> batch_;  // the same
  const PeerStepShape shape_;
  const device::ExchangeShape exchange_;
  const int place_;
  std::unique_ptr<device::DeviceMemory> flags_memory_;
  std::unique_ptr<device::DeviceMemory> pinned_;
  device::InferenceInbox inbox_;  // its flags and counts alone
  std::unique_ptr<device::PeerLink> link_;
};

}  // namespace winnow
