#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_rank/store/device/device_kv_store.h"
#include "common/selection/selection_spec.h"
#include "kernels/plugin/device_table.h"

namespace winnow {

// Which sequences the rows of an attachment's plans are, in device memory: the lists of all layers as kernels take
// them, the plan's number and the rows' positions. Rows keep their sequence from plan to plan, and EnqueueBegin moves
// all of them one position on, so that consecutive plans need nothing of the host. Changes of rows take effect with
// Upload. The host counts along. One thread; everything is enqueued on one stream.
class DevicePlan {
 public:
  // Where the inference rank keeps the rows of a sequence.
  struct PeerPools {
    void* slot_pool = nullptr;             // mapped
    std::span<const uint32_t> pool_bases;  // [num_lists] local index of pool index 0; empty: rows are read in place
    std::span<const uint32_t> pool_slots = {};  // [num_lists] at most the store's; empty: as many as those
  };

  // `store` outlives the plan. max_rows <= 64. `max_budget`: of rows that are set with budgets of their own; 0: the
  // specification's.
  static absl::StatusOr<std::unique_ptr<DevicePlan>> Create(const device::DeviceTable* table, device::Device* device,
                                                            const DeviceKvStore* store, const SelectionSpec& spec,
                                                            int max_rows, uint32_t max_budget = 0);
  // One without memory, and the memory that Create takes.
  static std::unique_ptr<DevicePlan> Unallocated(const DeviceKvStore* store, const SelectionSpec& spec, int max_rows,
                                                 uint32_t max_budget = 0);
  size_t DeviceBytes();

  // The next plan decodes `position` of the sequence in this row. Its rows below that are in the store, its slot pages
  // are set.
  // `prompt_tokens`: where the anchors of kept selections begin.
  void SetRow(int row, uint32_t sequence, uint32_t position, const PeerPools& pools, uint32_t prompt_tokens = 0);
  // Slots on the same GPU that rows in place are copied to once they are selected, and are read from then; pool_slots
  // 0: rows are read where they lie.
  struct Staging {
    void* slot_pool = nullptr;
    const uint32_t* pages = nullptr;  // device: page tables, [num_layers][max_rows][num_kv_heads][pages_per_list]
    uint32_t pages_per_list = 0;
    uint32_t pool_base = 0;  // local index of the first of them
    uint32_t pool_slots = 0;
  };
  // For plans that are a part of decode steps, whose rows' positions the steps say (EnqueueBegin): rows in place, with
  // the budgets of `of`, at most max_budget(), which is otherwise the plan's specification. Row r is sequence r.
  // Enqueued; Upload is not for such plans.
  void SetRowInPlace(int row, const SelectionSpec& of, uint32_t prompt_tokens, const Staging& staging,
                     device::Stream stream);
  void LeaveInPlace(int row, device::Stream stream);
  void Leave(int row);
  // The next plan's number is `plan` (both ranks begin an attachment with the same one).
  void SetNextPlan(uint32_t plan);
  void Upload(device::Stream stream);

  // Opens the next plan on the device for rows [0, num_rows). For a captured graph: whoever launches it calls Advance.
  // `step_positions`: device memory, [max_rows], of the decode step that the plan is a part of, whose rows may sit out;
  // null: the plan counts on.
  void EnqueueBegin(device::Stream stream, int num_rows, const uint32_t* step_positions = nullptr) const;
  void Advance();
  // OUT_OF_RANGE when the next plan would go beyond a sequence's end.
  absl::Status CheckPositions() const;

  int max_rows() const { return max_rows_; }
  int num_rows() const;                // the last row that is taken, plus one
  uint32_t least_position() const;     // that the next plan decodes; ~0 without rows
  uint32_t greatest_position() const;  // 0 without rows
  uint32_t next_plan() const { return next_plan_; }
  uint32_t max_budget() const { return max_budget_; }
  const SelectionSpec& spec() const { return spec_; }
  // True where some lists select nothing at some plans: of streaming heads, and between anchors.
  bool holds_lists() const;

  // Device memory. Lists of a layer: [max_rows][num_kv_heads].
  const uint32_t* plan() const { return arrays_.plan; }
  const uint32_t* positions() const { return arrays_.positions; }            // [max_rows]
  const uint32_t* list_positions() const { return arrays_.list_positions; }  // [max_rows][num_kv_heads]
  const uint32_t* sequences() const { return arrays_.sequences; }            // [max_rows]
  const uint32_t* prompt_tokens() const { return arrays_.prompt_tokens; }    // [max_rows]
  const device::SelectionList* lists(int layer) const { return arrays_.lists + FirstList(layer); }
  const device::ResidencyList* residency(int layer) const { return arrays_.residency + FirstList(layer); }
  const device::PushTarget* targets(int layer) const { return arrays_.targets + FirstList(layer); }

 private:
  struct Arrays {
    uint32_t* plan = nullptr;
    uint32_t* next_positions = nullptr;
    uint32_t* positions = nullptr;
    uint32_t* list_positions = nullptr;
    uint32_t* sequences = nullptr;
    uint32_t* prompt_tokens = nullptr;
    device::SelectionList* lists = nullptr;      // [num_layers][max_rows][num_kv_heads]
    device::ResidencyList* residency = nullptr;  // the same
    device::PushTarget* targets = nullptr;       // the same
  };

  DevicePlan(const device::DeviceTable* table, device::Device* device, const DeviceKvStore* store,
             const SelectionSpec& spec, int max_rows, uint32_t max_budget);
  void UploadRow(int row, device::Stream stream);
  void Carve(device::Arena& arena);
  const KvLayout& layout() const { return store_->shape().layout; }
  size_t FirstList(int layer) const { return static_cast<size_t>(layer) * max_rows_ * layout().num_kv_heads; }
  size_t num_lists() const { return FirstList(layout().num_layers); }

  const device::DeviceTable* const table_;
  device::Device* const device_;
  const DeviceKvStore* const store_;
  const SelectionSpec spec_;
  const int max_rows_;
  const uint32_t max_budget_;
  std::unique_ptr<device::DeviceMemory> memory_;
  Arrays arrays_;

  // What Upload copies.
  uint32_t next_plan_ = 1;
  std::vector<uint32_t> next_positions_, sequences_, prompt_tokens_;
  std::vector<device::SelectionList> lists_;
  std::vector<device::ResidencyList> residency_;
  std::vector<device::PushTarget> targets_;
};

}  // namespace winnow
