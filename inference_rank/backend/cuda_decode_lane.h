#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "inference_rank/backend/cuda_lane_group.h"
#include "kernels/cuda/step/exchange.h"
#include "model/decode_lane.h"
#include "transport/peer/peer_link.h"

namespace winnow {

// A lane to another GPU of this host.
class CudaDecodeLane final : public DecodeLane {
 public:
  // `shape`: that of the group, and what the lane carries. RESOURCE_EXHAUSTED where the group has no place.
  static absl::StatusOr<std::unique_ptr<CudaDecodeLane>> Create(std::shared_ptr<CudaLaneGroup> group,
                                                                const DecodeLaneShape& shape);
  ~CudaDecodeLane() override;

  const DecodeLaneShape& shape() const override { return shape_; }
  const std::shared_ptr<LaneGroup>& group() const override { return group_; }
  const std::string& address() const override { return link_->LocalAddress(); }
  absl::Status Connect(std::string_view peer_address) override;
  void* Landing(uint64_t push) const override { return cuda::LandingPlace(exchange_.layout, link_->region(1), push); }
  uint64_t landing_places() const override { return cuda::kLandingPlaces; }
  uint32_t landing_tokens() const override { return cuda::kLandingTokens; }
  void Abort(const absl::Status& why) override { link_->Abort(why); }
  absl::Status status() const override { return link_->status(); }

  // For the group:
  int place() const { return place_; }
  cuda::ExchangePeer peer() const;  // in a step; after Connect
  // Copies what the cache rank has counted in a step to where counts() has it: as InferenceInbox::counts.
  void EnqueueCounts(cuda::Stream stream);
  const uint32_t* counts() const { return static_cast<const uint32_t*>(pinned_->data()); }

 private:
  CudaDecodeLane(std::shared_ptr<CudaLaneGroup> group, const DecodeLaneShape& shape);
  absl::Status Allocate();
  size_t num_counts() const { return 2 * exchange_.layout.num_layers * exchange_.counts_per_layer(); }

  CudaLaneGroup& cuda_group_;
  const std::shared_ptr<LaneGroup> group_;  // the same
  const DecodeLaneShape shape_;
  const cuda::ExchangeShape exchange_;
  const int place_;
  std::unique_ptr<cuda::DeviceMemory> flags_memory_;
  std::unique_ptr<cuda::DeviceMemory> pinned_;
  cuda::InferenceInbox inbox_;  // its flags and counts alone
  std::unique_ptr<cuda::PeerLink> link_;
};

}  // namespace winnow
