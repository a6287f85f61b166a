#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_rank/select/device/device_plan.h"
#include "cache_rank/select/device/device_selection.h"
#include "cache_rank/select/device/select_order.h"
#include "kernels/device/params/exchange.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// A cache rank's part of a decode step as one graph per bucket: it waits for what the inference rank's GPU sends,
// layer by layer, selects, pushes and appends (SelectOrder). Numbers and positions of plans are counted on the device:
// as long as the same sequences decode, a step is one launch. Graphs are captured when their bucket is first met.
//
// Rows travel on a second stream while the next layer is selected for, and queries that follow from earlier plans alone
// are made on a third. Captured mass, in plans that measure it, is measured on a fourth, layer by layer, and ends with
// the plan.
//
// Every wait is bounded. When one times out or is aborted, all that follow end at once, what the step has selected and
// stored is worthless, and error() says so until the attachment ends.
class SelectGraph {
 public:
  struct Options {
    uint32_t timeout_us = 1000000;  // of one wait, the first of a plan included
    // Words of pinned host memory that waits look at and write to, of a device::PeerLink; null: words of its own.
    const uint32_t* abort_word = nullptr;
    uint32_t* error_word = nullptr;
    bool digests_rows = false;  // for the peer, behind each plan (kernels/device/params/row_digest.h)
  };

  // All arguments outlive the graph; `inbox` lies in this GPU's memory, `peer` is mapped.
  static absl::StatusOr<std::unique_ptr<SelectGraph>> Create(const device::DeviceTable* table, device::Device* device,
                                                             const DeviceKvStore* store, DevicePlan* plan,
                                                             DeviceSelection* selection,
                                                             const device::CacheInbox& inbox,
                                                             const device::InferenceInbox& peer,
                                                             const Options& options);

  // Enqueues the next plan of the rows that are set. `measures`: captured mass, where positions call for it.
  // OUT_OF_RANGE when a sequence is full; nothing is enqueued then.
  absl::Status Launch(device::Stream stream, bool measures = false);

  // The same on one stream, for a bucket that covers the plan: to be captured with other work. The caller advances the
  // plan.
  void Enqueue(device::Stream stream, const PlanBucket& bucket) const;
  PlanBucket NextBucket() const;
  // The same one by one, after DevicePlan::EnqueueBegin: to look at what is between.
  const std::vector<SelectAction>& order() const { return order_; }
  void EnqueueAction(device::Stream stream, const PlanBucket& bucket, const SelectAction& action) const;

  // Ends all waits, from any thread. With words of its own; otherwise their owner does it.
  void Abort();
  uint32_t error() const;  // 0, device::kWaitAborted or device::kWaitTimedOut

 private:
  SelectGraph(const device::DeviceTable* table, device::Device* device, const DeviceKvStore* store, DevicePlan* plan,
              DeviceSelection* selection, const device::CacheInbox& inbox, const device::InferenceInbox& peer,
              const Options& options);
  void Wait(device::Stream stream, const uint32_t* flag) const;
  // Of a layer that has been selected for and appended to.
  void EnqueueMass(device::Stream stream, const PlanBucket& bucket, int layer) const;
  void EnqueueOverlapped(device::Stream stream, const PlanBucket& bucket, bool measures) const;

  const device::DeviceTable* const table_;
  device::Device* const device_;
  const DeviceKvStore* const store_;
  DevicePlan* const plan_;
  DeviceSelection* const selection_;
  const device::CacheInbox inbox_;
  const device::InferenceInbox peer_;
  Options options_;
  const std::vector<SelectAction> order_;
  struct Captured {
    PlanBucket bucket;
    bool measures = false;
    std::unique_ptr<device::Graph> graph;
  };
  const device::Stream push_stream_, query_stream_, mass_stream_;
  const std::unique_ptr<device::Event> begun_, settled_, first_read_, measured_;
  const std::unique_ptr<device::Event> predicted_[2], selected_[2], pushed_[2];  // of even and odd layers
  std::unique_ptr<device::DeviceMemory> words_;  // of the host: abort, error; null with those of a link
  std::vector<Captured> graphs_;
};

}  // namespace winnow
