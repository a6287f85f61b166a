#pragma once
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "inference_rank/backend/device_forward.h"
#include "kernels/device/params/exchange.h"
#include "model/device/decode_graph.h"
#include "model/device/decode_slots.h"
#include "model/peer_step_link.h"

namespace winnow {

class DevicePeerStepLink;

// The steps of a GPU's batch: a step is one graph (DecodeGraph), over the slots of the rank's working sets, whichever
// cache ranks its rows belong to. Shares activations with the forward pass, which does nothing while steps are under
// way.
class DevicePeerStepBatch final : public PeerStepBatch {
 public:
  // `shape` without hidden_size and pages_per_list, which follow from the rest. FAILED_PRECONDITION for selections that
  // no peer link serves.
  static absl::StatusOr<PeerStepShape> Complete(PeerStepShape shape, const ModelConfig& config);
  // Device memory of a batch on a GPU among so many, and the longest list of its rows, for a complete shape.
  static size_t DeviceBytes(const PeerStepShape& shape, const ModelConfig& config, int num_gpus);
  static uint32_t MaxListRows(const PeerStepShape& shape, const ModelConfig& config);

  // Runs work(i) on GPU i's thread, for all GPUs at once.
  using RunOnGpus = std::function<void(const std::function<void(int)>& work)>;
  // `slot_memory` holds the slots of all working sets. All arguments outlive the batch. `run_on_gpus`: of several GPUs.
  static absl::StatusOr<std::shared_ptr<DevicePeerStepBatch>> Create(device::Device& device, DeviceForward& forward,
                                                                     const device::DeviceMemory& slot_memory,
                                                                     const PeerStepShape& shape,
                                                                     RunOnGpus run_on_gpus = nullptr);
  ~DevicePeerStepBatch() override;

  // What cache ranks map: the slots, and what belongs to rows.
  const device::DeviceMemory& slot_memory() const { return slot_memory_; }
  const device::DeviceMemory& inbox_memory() const { return slots_->inbox_memory(); }
  const device::ExchangeShape& exchange() const { return exchange_; }
  device::Device& device() const { return device_; }
  device::Stream stream() const { return stream_; }  // for peer links to begin with
  // A peer link's place among the peers of a step, for its life; -1: all are taken. `place` of a peer link that ends is
  // free.
  int TakePlace(DevicePeerStepLink* peer_link);
  // Waits until no step runs.
  void LeavePlace(int place);

  const PeerStepShape& shape() const override { return shape_; }
  absl::Status Join(std::span<PeerStepBatch* const> batches) override;
  void RunTogether(const std::function<void(int)>& work) override;
  void AssignRow(int batch_row, PeerStepLink& peer_link, std::span<const uint32_t> pages) override;
  uint32_t next_step() const override { return launched_ + 1; }
  absl::Status Prepare(std::span<const Row> rows) override;
  absl::Status Launch(std::span<const Row> rows) override;
  absl::Status Complete() override;
  void Abort(const absl::Status& why) override;
  uint32_t drawn_token(size_t row) const override { return completed_->tokens[completed_->rows[row].batch_row]; }
  std::span<float> logits(size_t row) override;
  std::span<const float> captured_mass(size_t row) const override { return masses_of_rows_[row]; }
  std::span<const ListCounts> counts(size_t row) const override {
    return {counts_of_rows_.data() + row * exchange_.layout.num_lists(), exchange_.layout.num_lists()};
  }

 private:
  struct RowState {
    int place = -1;  // of the peer link
    std::vector<uint32_t> pages;
    bool was_decoded = false;  // by the last step: the device has its lists
  };
  struct StageRow {
    int batch_row = 0;
    int place = -1;        // of the peer link; -1: that has ended
    bool follows = false;  // its sequence was in the step before
    bool takes_mass = false;
  };
  // What one of the steps under way has in pinned memory, and the end of its work on the GPU.
  struct Stage {
    uint32_t step = 0;
    std::vector<StageRow> rows;
    DecodeGraph::Inputs inputs;
    uint32_t* tokens = nullptr;              // [max_rows] drawn
    device::MeasuredMass* masses = nullptr;  // of a plan, as InferenceInbox::masses
    device::RowDigest* digests = nullptr;    // as InferenceInbox::digests
    std::unique_ptr<device::Event> done;
  };

  DevicePeerStepBatch(device::Device& device, DeviceForward& forward, const device::DeviceMemory& slot_memory,
                      const PeerStepShape& shape, RunOnGpus run_on_gpus);
  absl::Status Allocate();
  Stage& StageOf(uint32_t step) { return stages_[step % stages_.size()]; }
  void FillInputs(std::span<const Row> rows, Stage& stage);
  void EnqueueInputs(std::span<const Row> rows, const Stage& stage);
  void EnqueueOutputs(std::span<const Row> rows, int num_rows, const Stage& stage);
  // Of the step completed last. Masses are those of the step before, where a row takes them.
  void TakeMasses();
  void TakeCounts();
  // Ends peer links whose rows of the step before were not what their cache rank has.
  void CompareDigests();

  device::Device& device_;
  DeviceForward& forward_;
  const device::DeviceMemory& slot_memory_;
  const PeerStepShape shape_;
  const device::ExchangeShape exchange_;
  const RunOnGpus run_on_gpus_;
  const device::Stream stream_;
  std::unique_ptr<DecodeSlots> slots_;
  std::unique_ptr<device::DeviceMemory> pinned_;
  std::unique_ptr<TensorParallelMemory> sums_;                                  // of several GPUs
  std::unique_ptr<DecodeGraph> graph_;                                          // from Join on
  std::array<Stage, kMaxStepsUnderWay> stages_;                                 // of step n in n % kMaxStepsUnderWay
  std::array<DevicePeerStepLink*, device::kMaxExchangePeers> peer_links_ = {};  // by place
  std::vector<RowState> batch_rows_;
  // Numbers of the last ones, as the graph counts them.
  uint32_t launched_ = 0, num_completed_ = 0;
  // Of the step completed last:
  const Stage* completed_ = nullptr;
  std::vector<device::RowDigest> own_digests_;  // [max_rows][num_kv_heads]
  std::vector<std::vector<float>> masses_of_rows_;
  std::vector<ListCounts> counts_of_rows_;  // [rows][num_lists]
};

}  // namespace winnow
