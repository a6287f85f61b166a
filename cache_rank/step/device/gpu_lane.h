#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache_rank/select/device/device_plan.h"
#include "cache_rank/select/device/device_selection.h"
#include "cache_rank/select/device/select_graph.h"
#include "cache_rank/step/device/landing_zone.h"
#include "cache_rank/store/device/lane_store.h"
#include "cache_rank/stream/device_lane.h"
#include "kernels/cuda/step/exchange.h"
#include "transport/peer/peer_link.h"

namespace winnow {

// A lane to another GPU of this host, which may have others beside: seats are numbered through over all of them, and
// those that are not this one's have no row here. Behind each plan its rows are gathered from where the GPU has put
// them and copied to pinned memory, a word last that says so.
class GpuLane final : public DeviceLane {
 public:
  // All arguments outlive the lane. The offer's specification and shard are those of the store. FAILED_PRECONDITION
  // where the GPUs cannot reach each other.
  static absl::StatusOr<std::unique_ptr<GpuLane>> Create(const cuda::CudaTable* table, cuda::Device* device,
                                                         LaneStore* store, const DeviceSelection::Model& model,
                                                         const LaneOffer& offer);
  ~GpuLane() override;
  // Memory of the GPU that Create takes beside the store, whose shape is `kv`.
  static size_t DeviceBytes(const cuda::CudaTable* table, const DeviceKvShape& kv, const SelectionSpec& spec,
                            const DeviceSelection::Model& model, const cuda::ExchangeShape& exchange);
  // What a lane of this offer has for each other, for a store of that layout.
  static cuda::ExchangeShape ExchangeOf(const LaneOffer& offer, const KvLayout& layout);

  const std::string& address() const override { return link_->LocalAddress(); }
  const KvShard& shard() const override { return shard_; }
  int num_seats() const override { return exchange_.max_rows; }
  absl::Status Seat(int seat, const CachedSequence& sequence, std::span<const uint32_t> pages) override;
  bool Sits(const Row& row) const override;
  void Unseat(uint64_t sequence_id) override;
  absl::Status Launch(uint32_t step, std::span<const Row> rows) override;
  void TakeRows(bool wait, const TakeRow& take) override;
  bool has_plans() const override { return taken_ != launched_; }
  absl::Status Land(uint64_t push, const CachedSequence* sequence, int layer, uint32_t first, uint32_t count) override;
  absl::StatusOr<const std::byte*> OldestLanded(bool wait) override { return landing_->Oldest(wait); }
  void PopLanded() override { landing_->PopOldest(); }
  void Abort(const absl::Status& why) override { link_->Abort(why); }
  absl::Status status() const override { return link_->status(); }

 private:
  struct SeatEntry {
    uint64_t sequence_id = 0;  // 0: nobody's
    uint32_t attach_epoch = 0;
    // The seat may be another lane's by now, and none of those that are told of it need come here.
    std::weak_ptr<LaneMirror> mirror;
    std::vector<uint32_t> pool_slots;  // [num_lists]
    uint32_t next_position = 0, prompt_tokens = 0;
    bool is_planned = false;  // as the device has it
  };
  // Of the device, what a harvest gathers with, [max_rows * num_lists].
  struct GatherArrays {
    cuda::SelectionList* lists = nullptr;
    uint32_t* positions = nullptr;
    uint32_t* ones = nullptr;  // rows of each list
    std::byte* kv = nullptr;
  };
  // A plan whose rows come back.
  struct Harvest {
    uint32_t plan = 0;
    std::vector<Row> rows;
    std::vector<std::shared_ptr<LaneMirror>> mirrors;  // of them
    std::vector<uint32_t> prompt_tokens;               // likewise
    bool measures = false;                             // captured mass
    // Pinned, [max_rows * num_lists].
    cuda::SelectionList* lists = nullptr;
    uint32_t* positions = nullptr;
    std::byte* kv = nullptr;
    cuda::MeasuredMass* masses = nullptr;  // pinned, as DeviceSelection::masses
    uint32_t* counts = nullptr;            // pinned, as DeviceSelection::counts
    uint32_t* ended = nullptr;             // number of the plan
    std::unique_ptr<cuda::Event> event;
  };

  GpuLane(const cuda::CudaTable* table, cuda::Device* device, LaneStore* store, const LaneOffer& offer);
  static size_t CarveGather(const cuda::ExchangeShape& exchange, void* region, GatherArrays* arrays);
  static size_t PastQueryBytes(const DeviceKvShape& kv);
  absl::Status Allocate();
  absl::Status Connect(const DeviceSelection::Model& model, const LaneOffer& offer);
  absl::Status LoadPastQueries(const CachedSequence& sequence, uint32_t place);
  void Vacate(int seat);
  void PlanSeats(uint32_t step, std::span<const Row> rows);
  bool Measures(const Row& row) const;
  void EnqueueHarvest(uint32_t plan, std::span<const Row> rows, bool measures);
  // Captured masses of a row of the harvest that has just ended: masses_of_row_, or nothing.
  std::span<const float> MassesOf(const Harvest& harvest, const Row& row);
  RowCounts CountsOf(const Harvest& harvest, size_t row) const;
  const KvLayout& layout() const { return exchange_.layout; }

  const cuda::CudaTable* const table_;
  cuda::Device* const device_;
  LaneStore* const store_;
  const KvShard shard_;
  cuda::ExchangeShape exchange_;
  const uint32_t pool_base_;
  const cuda::Stream stream_;
  std::unique_ptr<LandingZone> landing_;
  std::unique_ptr<cuda::DeviceMemory> inbox_memory_, gather_memory_, pinned_;
  // Past queries of a sequence that gets a seat, [num_layers][ring_queries][num_query_heads][head_dim]; null where none
  // are looked back on.
  std::unique_ptr<cuda::DeviceMemory> host_queries_, device_queries_;
  std::unique_ptr<cuda::Event> queries_copied_;  // host_queries_ may be written again
  cuda::CacheInbox inbox_;
  GatherArrays gather_;
  std::unique_ptr<cuda::PeerLink> link_;
  std::unique_ptr<DevicePlan> plan_;
  std::unique_ptr<DeviceSelection> selection_;
  std::unique_ptr<SelectGraph> graph_;
  std::vector<SeatEntry> seats_;
  bool plan_changed_ = false;                 // by a seat that was vacated, since the device was told
  std::array<Harvest, kMostPlans> harvests_;  // of the n-th plan in n % kMostPlans
  uint32_t launched_ = 0, taken_ = 0;         // plans
  std::vector<float> masses_of_row_;
};

}  // namespace winnow
