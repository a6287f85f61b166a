#pragma once
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cache_rank/select/device/device_plan.h"
#include "cache_rank/select/predictor/from_past.h"
#include "cache_rank/store/device/device_kv_store.h"
#include "common/selection/selection_spec.h"
#include "kernels/device/params/exchange.h"
#include "kernels/plugin/device_table.h"
#include "model/weights/device_weights.h"

namespace winnow {

// What the grids of a plan's launches cover: its first num_rows rows, of at most max_keys keys each. Changes what is
// launched, never the result.
struct PlanBucket {
  int num_rows = 0;
  uint32_t max_keys = 0;
  bool none_below = false;  // two-stage: no row has so few keys that all of them are scored (NoneBelow)
  friend bool operator==(const PlanBucket&, const PlanBucket&) = default;
};

// Selection for one layer and all sequences of a plan, enqueued on a stream: queries, the rows that they select, what
// of those the inference rank lacks, and the rows' way there. Sel(p) is that of the CPU backend (select_head.h) for the
// same rows and queries, up to ties within what the kernels' roundings can tell apart; scored are the keys in bf16, or
// their copy in fp8. Scratch is shared: one stream.
class DeviceSelection {
 public:
  struct Model {
    RopeShape rope;
    float attention_scale = 0;
    const DeviceWeights* queries = nullptr;  // for predictor depth: q projections and norms; outlives the selection
  };

  // All arguments outlive the selection. `exchange` is what the attachment's inboxes were made with. With rows in place
  // selections are written to `in_place`, the inbox on the same GPU, as positions.
  static absl::StatusOr<std::unique_ptr<DeviceSelection>> Create(const device::DeviceTable* table,
                                                                 device::Device* device, const DeviceKvStore* store,
                                                                 const DevicePlan* plan, const Model& model,
                                                                 const device::ExchangeShape& exchange,
                                                                 const device::InferenceInbox* in_place = nullptr);

  // Device memory that Create takes; store and plan may be unallocated. Of `in_place` it matters that there is one.
  static size_t DeviceBytes(const device::DeviceTable* table, const DeviceKvStore* store, const DevicePlan* plan,
                            const Model& model, const device::ExchangeShape& exchange,
                            const device::InferenceInbox* in_place = nullptr);

  // The queries to select with in `layer`, by the specification's predictor. One of:
  void EnqueueOwnQueries(device::Stream stream, const PlanBucket& bucket, int layer, const device::CacheInbox& inbox);
  // ... from the residual that enters `hidden_layer`;
  void EnqueueDepthQueries(device::Stream stream, const PlanBucket& bucket, int layer, int hidden_layer,
                           const device::CacheInbox& inbox);
  // ... from the queries before the plan's positions.
  void EnqueuePastQueries(device::Stream stream, const PlanBucket& bucket, int layer);

  // Sel of the plan's positions, for which predictor fixed has no queries, and what of it is not resident. Changes the
  // image of what is.
  void EnqueueSelect(device::Stream stream, const PlanBucket& bucket, int layer);
  // Rows and lists to the peer, and delta_flags[layer] behind them; with the last layer's the counts of all layers. May
  // run on another stream beside the selection of the next layer; that of the layer after it must wait. max_ctas:
  // PushParams.
  void EnqueuePush(device::Stream stream, const PlanBucket& bucket, int layer, const device::InferenceInbox& peer,
                   int max_ctas = 0);

  // Appends the plan's rows of the layer, and keeps queries where the predictor looks back: those of the plan's
  // positions or, with `step_positions` [max_rows] in device memory, of all rows of the decode step that the plan is a
  // part of, where row r is sequence r.
  void EnqueueAppend(device::Stream stream, const PlanBucket& bucket, int layer, const device::CacheInbox& inbox,
                     const uint32_t* step_positions = nullptr);

  // Captured mass of the plan's rows in a layer, once it has been selected for and appended to, with the real queries
  // of the inbox: to masses() and, but for rows in place, to the peer. May run on another stream than the above, one
  // layer after the other: what EnqueueRealQueries rotates is what the next EnqueueMass measures with.
  void EnqueueRealQueries(device::Stream stream, const PlanBucket& bucket, int layer, const device::CacheInbox& inbox);
  void EnqueueMass(device::Stream stream, const PlanBucket& bucket, int layer, const device::InferenceInbox& peer);

  // Digests of what the plan's rows attend to in one of the layers, once the plan has done everything else.
  void EnqueueDigest(device::Stream stream, const PlanBucket& bucket, const device::InferenceInbox& peer);

  // Device memory. Of a layer, until queries of another one of the same parity are made: [max_rows, num_query_heads,
  // head_dim] rotated.
  float* queries(int layer) const { return arrays_.queries[layer % 2]; }
  // Of the layer that was selected for last: [max_rows, num_kv_heads, max_budget] ascending; null with rows in place.
  const uint32_t* selected() const { return in_place() ? nullptr : arrays_.selected; }
  // Of a layer, until it is selected for again: [max_rows, num_kv_heads].
  uint32_t* counts(int layer) const { return arrays_.counts + layer * exchange_.counts_per_layer(); }
  uint32_t* missing_counts(int layer) const { return counts(layout().num_layers + layer); }
  size_t num_counts() const { return 2 * layout().num_layers * exchange_.counts_per_layer(); }  // of both, all layers
  const uint64_t* pushed_rows() const { return arrays_.pushed_rows; }  // since the start, all layers
  // Of the newest plan that measured, [num_layers][max_rows][num_kv_heads].
  const device::MeasuredMass* masses() const { return arrays_.masses; }
  size_t num_masses() const { return exchange_.masses_per_plan(); }
  const DeviceIndex& index() const { return index_; }  // that sequences of the plan have in the store

 private:
  // What a push takes, so that it may lag behind.
  struct Delta {
    uint32_t* pool_indices = nullptr;
    uint32_t* missing = nullptr;
    uint32_t* missing_indices = nullptr;
  };
  struct Arrays {
    float* queries[2] = {};
    float* projected = nullptr;  // [max_rows, num_query_heads * head_dim]
    void* normed = nullptr;      // [max_rows, hidden_size] bf16
    void* matmul_scratch = nullptr;
    void* select_scratch = nullptr;
    float* descending = nullptr;   // [num_descending()] the values of rows by which predictor fixed takes the first
    float* page_scores = nullptr;  // [max_rows * num_kv_heads, group, page_stride()]
    void* unit_scratch = nullptr;
    uint32_t* selected = nullptr;  // num_selections() of them
    Delta deltas[2];               // of even and odd layers
    uint32_t* counts = nullptr;    // as InferenceInbox::counts
    uint32_t* count_arrivals = nullptr;
    uint64_t* pushed_rows = nullptr;
    uint32_t* done_ctas = nullptr;
    float* inv_freq = nullptr;
    float* real_queries = nullptr;  // [max_rows, num_query_heads, head_dim] rotated
    void* mass_scratch = nullptr;
    uint32_t* mass_arrivals = nullptr;
    device::MeasuredMass* masses = nullptr;
    uint64_t* digest_sums = nullptr;
    uint32_t* digest_arrivals = nullptr;
  };

  DeviceSelection(const device::DeviceTable* table, const DeviceKvStore* store, const DevicePlan* plan,
                  const Model& model, const device::ExchangeShape& exchange, const device::InferenceInbox* in_place);
  void Carve(device::Arena& arena);
  const Delta& delta(int layer) const { return arrays_.deltas[layer % 2]; }
  device::SelectParams SelectParams(const PlanBucket& bucket, int layer) const;
  device::AttendedMassParams MassParams(const PlanBucket& bucket, int layer) const;
  device::UnitSelectParams UnitParams(const PlanBucket& bucket, int layer) const;
  // Pages are chosen by PageUnitKernels, which know more ways than SelectionKernels::select_pages.
  bool selects_units() const;
  int64_t page_stride() const { return (store_->shape().max_positions / spec().page_tokens + 31) / 32 * 32; }
  bool in_place() const { return in_place_.lists != nullptr; }
  // Rows in place are copied to staging slots once they are selected.
  bool stages() const { return in_place() && store_->shape().pool_slots > 0; }
  size_t num_descending() const {
    constexpr size_t kWhole = 1024;  // of what kernels read at once
    return spec().predictor == Predictor::kFixed ? (store_->shape().max_positions / kWhole + 1) * kWhole : 0;
  }
  // Units say in the lists themselves what they select; but what is kept is said at every step, as a row that sat one
  // out has lost it there.
  bool tells_at_once() const { return selects_units() && in_place() && !stages() && spec().reuse_interval == 1; }
  // Between the selection for a layer and the mass of what it selected lie those for layers ahead.
  size_t num_selections() const { return stages() ? spec().lookahead + 1 : 1; }
  uint32_t* SelectedIn(int layer) const {
    return arrays_.selected + layer % num_selections() * exchange_.lists_per_layer() * exchange_.max_budget;
  }
  // Rows in place that can be read there: what is appended need not come by the inbox.
  bool indexes_in_place() const { return in_place() && store_->row_pool() != nullptr; }
  uint32_t* InPlaceIndices(int layer) const {
    return in_place_.pool_indices + FirstSelection(layer) * exchange_.max_budget;
  }
  size_t FirstSelection(int layer) const { return static_cast<size_t>(layer) * exchange_.selections_per_layer(); }
  void EnqueueCounts(device::Stream stream, const PlanBucket& bucket, const device::InferenceInbox& peer);
  void Rotate(device::Stream stream, const PlanBucket& bucket, const float* queries, const float* bias,
              const float* norm_weight, float* out);

  const KvLayout& layout() const { return store_->shape().layout; }
  const SelectionSpec& spec() const { return plan_->spec(); }
  int NumLists(const PlanBucket& bucket) const { return bucket.num_rows * layout().num_kv_heads; }

  const device::DeviceTable* const table_;
  const DeviceKvStore* const store_;
  const DevicePlan* const plan_;
  const DeviceIndex index_;  // of the plan's sequences
  const Model model_;
  const device::ExchangeShape exchange_;
  const device::InferenceInbox in_place_;
  device::RopeParams rope_;
  std::unique_ptr<device::DeviceMemory> memory_;
  Arrays arrays_;
};

}  // namespace winnow
