#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache_rank/select/device/device_plan.h"
#include "cache_rank/select/device/device_selection.h"
#include "cache_rank/select/device/select_graph.h"
#include "cache_rank/step/device/push_staging.h"
#include "cache_rank/store/device/sequence_copies.h"
#include "cache_rank/stream/device_peer_link.h"
#include "kernels/device/params/exchange.h"
#include "transport/peer/peer_link.h"

namespace winnow {

// A peer link to another GPU of this host, which may have others beside: batch rows are numbered through over all of
// them, and those that are not this one's are empty here. Behind each plan its rows are gathered from where the GPU has
// put them and copied to pinned memory, a word last that says so.
class GpuPeerLink final : public DevicePeerLink {
 public:
  // All arguments outlive the peer link. The offer's specification and shard are those of the store.
  // FAILED_PRECONDITION where the GPUs cannot reach each other.
  static absl::StatusOr<std::unique_ptr<GpuPeerLink>> Create(const device::DeviceTable* table, device::Device* device,
                                                             SequenceCopies* store, const DeviceSelection::Model& model,
                                                             const PeerOffer& offer);
  ~GpuPeerLink() override;
  // Memory of the GPU that Create takes beside the store, whose shape is `kv`.
  static size_t DeviceBytes(const device::DeviceTable* table, const DeviceKvShape& kv, const SelectionSpec& spec,
                            const DeviceSelection::Model& model, const device::ExchangeShape& exchange);
  // What the two ends of this offer have for each other, for a store of that layout.
  static device::ExchangeShape ExchangeOf(const PeerOffer& offer, const KvLayout& layout);

  const std::string& address() const override { return link_->LocalAddress(); }
  const KvShard& shard() const override { return shard_; }
  int num_batch_rows() const override { return exchange_.max_rows; }
  absl::Status AssignRow(int batch_row, const CachedSequence& sequence, std::span<const uint32_t> pages) override;
  bool HasRow(const Row& row) const override;
  void ReleaseRow(uint64_t sequence_id) override;
  absl::Status Launch(uint32_t step, std::span<const Row> rows) override;
  void TakeRows(bool wait, const TakeRow& take) override;
  bool has_plans() const override { return taken_ != launched_; }
  absl::Status Stage(uint64_t push, const CachedSequence* sequence, int layer, uint32_t first, uint32_t count) override;
  absl::StatusOr<const std::byte*> OldestStaged(bool wait) override { return staging_->Oldest(wait); }
  void PopStaged() override { staging_->PopOldest(); }
  void Abort(const absl::Status& why) override { link_->Abort(why); }
  absl::Status status() const override { return link_->status(); }

 private:
  struct RowEntry {
    uint64_t sequence_id = 0;  // 0: nobody's
    uint32_t attach_epoch = 0;
    // The row may be another peer link's by now, and none of those that are told of it need come here.
    std::weak_ptr<SequenceCopy> copy;
    std::vector<uint32_t> pool_slots;  // [num_lists]
    uint32_t next_position = 0, prompt_tokens = 0;
    bool is_planned = false;  // as the device has it
  };
  // Of the device, what a readback gathers with, [max_rows * num_lists].
  struct GatherArrays {
    device::SelectionList* lists = nullptr;
    uint32_t* positions = nullptr;
    uint32_t* ones = nullptr;  // rows of each list
    std::byte* kv = nullptr;
  };
  // A plan whose rows come back.
  struct Readback {
    uint32_t plan = 0;
    std::vector<Row> rows;
    std::vector<std::shared_ptr<SequenceCopy>> copies;  // of them
    std::vector<uint32_t> prompt_tokens;                // likewise
    bool measures = false;                              // captured mass
    // Pinned, [max_rows * num_lists].
    device::SelectionList* lists = nullptr;
    uint32_t* positions = nullptr;
    std::byte* kv = nullptr;
    device::MeasuredMass* masses = nullptr;  // pinned, as DeviceSelection::masses
    uint32_t* counts = nullptr;              // pinned, as DeviceSelection::counts
    uint32_t* ended = nullptr;               // number of the plan
    std::unique_ptr<device::Event> event;
  };

  GpuPeerLink(const device::DeviceTable* table, device::Device* device, SequenceCopies* store, const PeerOffer& offer);
  static size_t CarveGather(const device::ExchangeShape& exchange, void* region, GatherArrays* arrays);
  static size_t PastQueryBytes(const DeviceKvShape& kv);
  absl::Status Allocate();
  absl::Status Connect(const DeviceSelection::Model& model, const PeerOffer& offer);
  absl::Status LoadPastQueries(const CachedSequence& sequence, uint32_t place);
  void ClearRow(int batch_row);
  void PlanRows(uint32_t step, std::span<const Row> rows);
  bool Measures(const Row& row) const;
  void EnqueueReadback(uint32_t plan, std::span<const Row> rows, bool measures);
  // Captured masses of a row of the readback that has just ended: masses_of_row_, or nothing.
  std::span<const float> MassesOf(const Readback& readback, const Row& row);
  RowCounts CountsOf(const Readback& readback, size_t row) const;
  const KvLayout& layout() const { return exchange_.layout; }

  const device::DeviceTable* const table_;
  device::Device* const device_;
  SequenceCopies* const store_;
  const KvShard shard_;
  device::ExchangeShape exchange_;
  const uint32_t pool_base_;
  const device::Stream stream_;
  std::unique_ptr<PushStaging> staging_;
  std::unique_ptr<device::DeviceMemory> inbox_memory_, gather_memory_, pinned_;
  // Past queries of a sequence that gets a batch row, [num_layers][ring_queries][num_query_heads][head_dim]; null where
  // none are looked back on.
  std::unique_ptr<device::DeviceMemory> host_queries_;
  std::unique_ptr<device::Event> queries_copied_;  // host_queries_ may be written again
  device::CacheInbox inbox_;
  GatherArrays gather_;
  std::unique_ptr<device::PeerLink> link_;
  std::unique_ptr<DevicePlan> plan_;
  std::unique_ptr<DeviceSelection> selection_;
  std::unique_ptr<SelectGraph> graph_;
  std::vector<RowEntry> batch_rows_;
  bool plan_changed_ = false;                   // by a row that was given up, since the device was told
  std::array<Readback, kMostPlans> readbacks_;  // of the n-th plan in n % kMostPlans
  uint32_t launched_ = 0, taken_ = 0;           // plans
  std::vector<float> masses_of_row_;
};

}  // namespace winnow
