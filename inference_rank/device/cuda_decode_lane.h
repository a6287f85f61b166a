#pragma once
#include <memory>
#include <string>
#include <vector>

#include "inference_rank/device/cuda_forward.h"
#include "inference_rank/device/decode_graph.h"
#include "inference_rank/device/decode_slots.h"
#include "inference_rank/model/decode_lane.h"
#include "kernels/cuda/exchange.h"
#include "kernels/cuda/peer_link.h"

namespace winnow {

// A lane to another GPU of this host: the whole step is a graph (DecodeGraph), over the slots of the rank's working
// sets. Shares activations with the forward pass, which does nothing meanwhile.
class CudaDecodeLane final : public DecodeLane {
 public:
  // `shape` without hidden_size and pages_per_list, which follow from the rest. FAILED_PRECONDITION for selections that
  // no lane serves.
  static absl::StatusOr<DecodeLaneShape> Complete(DecodeLaneShape shape, const ModelConfig& config);
  // Device memory of one lane of a GPU among so many, and the longest list of its rows, for a complete shape.
  static size_t DeviceBytes(const DecodeLaneShape& shape, const ModelConfig& config, int num_gpus);
  static uint32_t MaxListRows(const DecodeLaneShape& shape, const ModelConfig& config);

  // Runs work(i) on GPU i's thread, for all GPUs at once.
  using RunOnGpus = std::function<void(const std::function<void(int)>& work)>;
  // `slot_memory` holds the slots of all working sets. All arguments outlive the lane. `run_on_gpus`: of several GPUs.
  static absl::StatusOr<std::unique_ptr<CudaDecodeLane>> Create(cuda::Device& device, CudaForward& forward,
                                                                const cuda::DeviceMemory& slot_memory,
                                                                const DecodeLaneShape& shape,
                                                                RunOnGpus run_on_gpus = nullptr);
  ~CudaDecodeLane() override;

  const DecodeLaneShape& shape() const override { return shape_; }
  const std::string& address() const override { return link_->LocalAddress(); }
  absl::Status Connect(std::string_view peer_address) override;
  absl::Status Join(std::span<DecodeLane* const> lanes) override;
  void RunTogether(const std::function<void(int)>& work) override;
  void* Landing(uint64_t push) const override { return cuda::LandingPlace(exchange_.layout, link_->region(1), push); }
  uint64_t landing_places() const override { return cuda::kLandingPlaces; }
  uint32_t landing_tokens() const override { return cuda::kLandingTokens; }
  void Seat(int seat, std::span<const uint32_t> pages) override;
  absl::Status Prepare(std::span<const Row> rows) override;
  absl::Status Decode(std::span<const Row> rows) override;
  void Abort(const absl::Status& why) override { link_->Abort(why); }
  uint32_t drawn_token(size_t row) const override { return host_.tokens_out[seats_of_rows_[row]]; }
  std::span<float> logits(size_t row) override;
  std::span<const float> captured_mass(size_t row) const override { return masses_of_rows_[row]; }
  std::span<const ListCounts> counts(size_t row) const override {
    return {counts_of_rows_.data() + row * exchange_.layout.num_lists(), exchange_.layout.num_lists()};
  }

 private:
  struct SeatState {
    std::vector<uint32_t> pages;
    bool was_decoded = false;  // by the last step: the device has its lists
  };
  // Pinned, [max_rows].
  struct Host {
    uint32_t* token_ids = nullptr;
    uint32_t* positions = nullptr;
    cuda::SampleRow* draws = nullptr;
    uint32_t* tokens_out = nullptr;
    cuda::MeasuredMass* masses = nullptr;  // of a plan, as InferenceInbox::masses
    cuda::RowDigest* digests = nullptr;    // as InferenceInbox::digests
    uint32_t* counts = nullptr;            // as InferenceInbox::counts
  };

  CudaDecodeLane(cuda::Device& device, CudaForward& forward, const DecodeLaneShape& shape, RunOnGpus run_on_gpus);
  absl::Status Allocate(const cuda::DeviceMemory& slot_memory);
  void FillRows(std::span<const Row> rows);
  // Those of the step before, where a row takes them.
  void EnqueueMasses(std::span<const Row> rows, cuda::Stream stream);
  void TakeMasses(std::span<const Row> rows);
  void TakeCounts();
  // DATA_LOSS where rows that the step before attended to are not what the cache rank has.
  absl::Status CompareDigests();

  cuda::Device& device_;
  CudaForward& forward_;
  const DecodeLaneShape shape_;
  const cuda::ExchangeShape exchange_;
  const RunOnGpus run_on_gpus_;
  std::unique_ptr<DecodeSlots> slots_;
  std::unique_ptr<cuda::DeviceMemory> pinned_;
  std::unique_ptr<cuda::PeerLink> link_;
  std::unique_ptr<TensorParallelMemory> sums_;  // of several GPUs
  std::unique_ptr<DecodeGraph> graph_;          // from Join on
  Host host_;
  std::vector<SeatState> seats_;
  uint32_t steps_ = 0;  // the number of the last one, as the graph counts them
  // Of the last step:
  std::vector<int> seats_of_rows_;
  std::vector<bool> follows_;                 // [row] its sequence was in the step before
  std::vector<cuda::RowDigest> own_digests_;  // [max_rows][num_kv_heads]
  std::vector<std::vector<float>> masses_of_rows_;
  std::vector<ListCounts> counts_of_rows_;  // [rows][num_lists]
};

}  // namespace winnow
