#pragma once
#include <memory>
#include <span>
#include <vector>

#include "cache_rank/select/device/device_plan.h"
#include "cache_rank/select/device/device_selection.h"
#include "cache_rank/select/device/select_order.h"
#include "kernels/device/params/exchange.h"
#include "model/device/decode_graph.h"

namespace winnow {

// Plans as a part of the decode steps of the same GPU, in the step's own stream, whose order takes the place of the
// flags of two GPUs: a stream of its own gains little, as most selections wait for the step and the step for them. The
// host counts plans along (CountPlan with every launch), or the steps say their rows' positions (SetStepPositions).
// Everything is borrowed and outlives it.
class ColocatedSelection final : public ColocatedCache {
 public:
  // `windows`: as in SelectOrder.
  ColocatedSelection(device::Device& device, DevicePlan& plan, DeviceSelection& selection, const PlanBucket& bucket,
                     const device::CacheInbox& inbox, const device::InferenceInbox& peer, int num_layers,
                     std::span<const uint32_t> windows = {});

  void BeginPlan(device::Stream stream) override;
  void OnHidden(device::Stream stream, int layer) override;
  void OnRows(int layer) override;
  void EndPlan() override;

  // Before each launch, where positions are counted. OUT_OF_RANGE when a sequence is full.
  absl::Status CountPlan();
  // Device memory, [max_rows], of the positions that a step computes. Before anything is captured.
  void SetStepPositions(const uint32_t* positions) { step_positions_ = positions; }
  // What is captured from now on. `measures`: captured mass, where positions call for it; of rows in place.
  void SetBucket(const PlanBucket& bucket, bool measures) {
    bucket_ = bucket;
    measures_ = measures;
  }
  // Layers whose residual it needs, from the first.
  int hidden_layers() const;
  const std::vector<SelectAction>& order() const { return order_; }
  // Enqueues one action without waiting for what it reads.
  void Enqueue(device::Stream stream, const SelectAction& action);

 private:
  // Enqueues what comes next in the order, up to the first wait for something that has not been seen.
  void EnqueueReady();
  // Once the layer of `action` has been selected for and appended to.
  void MeasureBehind(const SelectAction& action);

  DevicePlan& plan_;
  DeviceSelection& selection_;
  PlanBucket bucket_;
  bool measures_ = false;
  const uint32_t* step_positions_ = nullptr;
  const device::CacheInbox inbox_;
  const device::InferenceInbox peer_;
  const std::vector<SelectAction> order_;
  const std::unique_ptr<device::Event> hidden_;

  // While a step is captured.
  device::Stream stream_ = nullptr;  // the step's
  size_t next_action_ = 0;
  int hidden_seen_ = -1, rows_seen_ = -1;  // last layer of each
  std::vector<bool> pushed_, appended_;    // by layer
};

}  // namespace winnow
