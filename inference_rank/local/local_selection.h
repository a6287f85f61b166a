#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "cache_rank/select/device/colocated_selection.h"
#include "cache_rank/select/device/device_plan.h"
#include "cache_rank/select/device/device_selection.h"
#include "cache_rank/store/device/device_kv_store.h"
#include "common/selection/selection_spec.h"
#include "inference_rank/step/step_client.h"
#include "model/device/decode_graph.h"
#include "model/weights/device_weights.h"

namespace winnow {

// Selections of a rank's own sequences, on the GPU that computes them: the index of the keys in its slots, and what the
// steps of its batch select with. Rows of one specification, but for their budgets, are selected together ("kind");
// rows of several kinds take part in one step, each with its own.
//
// Memory is taken for the index of the specification that the rank was started with: its 8-bit keys and its page
// bounds, of every slot; with dense attention there is none. Which index lies there is a sequence's to say, by its
// specification (IndexIn): whatever selects by keys as they are, by that index, or by bounds of pages that find room in
// its place can be served. Engine thread.
class LocalSelection {
 public:
  static constexpr int kMaxKinds = 4;  // at a time

  struct Shape {
    KvLayout layout;  // bf16, or int8: keys are scored in their rows, and have no index but page bounds
    int max_rows = 0;
    int hidden_size = 0;
    uint32_t max_context_tokens = 0;
    SelectionSpec selection;  // what the index is for
    // As ModelConfig has them. Layers with a sliding window attend to that, and nothing is selected there.
    std::vector<uint32_t> windows = {};
    bool projects_heads_alone = true;  // queries are a projection of a normed residual, each head for itself
    bool stages = false;  // slots may lie in host memory: selected rows are copied to staging slots (SlotPlacement)

    bool has_window(int layer) const { return !windows.empty() && windows[static_cast<size_t>(layer)] > 0; }
  };
  // Staging slots of a list, at most; 0: none.
  static uint32_t StagingSlots(const Shape& shape);
  static uint32_t MaxBudget(const Shape& shape);  // of a list
  static int ListsPerKvHead(const Shape& shape);  // one, or one for each query head, of all that is selected
  // Rows of a list that a selection and what surrounds it take, at most.
  static uint32_t MaxListRows(const Shape& shape);
  // Device memory of the index of a row of one list, rounded up, and of all else.
  static size_t IndexBytesPerRow(const Shape& shape);
  static size_t DeviceBytes(const device::DeviceTable& table, const Shape& shape);
  // OK, or what of the specification is not served in place.
  static absl::Status Serves(const device::DeviceTable& table, const Shape& shape, const SelectionSpec& wanted);

  // As StepClient::IndexOf, of what is served.
  static uint32_t IndexOf(const Shape& shape, const SelectionSpec& wanted);

  // `slots` are those of the batch, over num_slot_pages pages of slots. All arguments outlive it.
  static absl::StatusOr<std::unique_ptr<LocalSelection>> Create(const device::DeviceTable& table,
                                                                device::Device& device, const DeviceWeights& weights,
                                                                const DecodeSlots& slots, uint32_t num_slot_pages,
                                                                const Shape& shape);

  // Where the residuals and queries of a step go.
  const device::CacheInbox& inbox() const { return inbox_; }
  // Of the graph whose steps these selections are a part of. Before anything else.
  void JoinGraph(DecodeGraph& graph) { graph_ = &graph; }

  // A sequence takes a row. RESOURCE_EXHAUSTED while there are kMaxKinds others. Enqueued; `sequence` is read before
  // this returns.
  absl::Status Sit(int row, const StepSequence& sequence, device::Stream stream);
  // As StepClient has them, once the stream has come so far.
  std::vector<float> PastQueries(int row, uint32_t end, device::Stream stream) const;
  void Leave(int row, device::Stream stream);
  // Whether the row's selections begin with this position: it is not one of those that the specification leaves dense,
  // and nothing has been selected for the row before.
  bool BeginsAt(int row, uint32_t position) const;
  // The sequence's rows below `position` are in its pages: those that are not yet are indexed, and its next step
  // selects. Enqueued.
  absl::Status Begin(int row, uint32_t position, device::Stream stream);
  // Once it has begun: what surrounds its selections.
  device::RowWindow WindowOf(int row) const;

  // What the step of these rows is captured for: (row, position), those of dense sequences as well.
  struct RowAt {
    int row = 0;
    uint32_t position = 0;
  };
  DecodeVariant VariantOf(std::span<const RowAt> rows, int bucket_rows);
  // Prepares all graphs of the specification that the rank was started with.
  absl::Status PrepareGraphs();

  // What the host reads of a step that measured captured mass.
  static size_t ReadbackBytes(const Shape& shape);
  struct Readback {
    std::byte* region = nullptr;            // pinned, ReadbackBytes
    std::array<bool, kMaxKinds> of_kind{};  // which kinds were measured
  };
  // Behind the step whose variant was asked for last.
  void EnqueueReadback(Readback& readback, device::Stream stream);
  // Of a row that took part in that step at `position`: masses by list, NaN where not measured, to `masses`. Returns
  // how many rows its lists selected and how many of them were not staged; nullopt where nothing was measured.
  struct RowCounts {
    uint64_t selected = 0, fetched = 0;
  };
  std::optional<RowCounts> TakeReadback(const Readback& readback, int row, uint32_t position,
                                        std::vector<float>& masses) const;

 private:
  // Sequences that are selected for alike.
  struct Kind {
    SelectionSpec spec;  // without budgets
    int index = 0;
    int num_rows = 0;
    std::unique_ptr<DevicePlan> plan;
    std::unique_ptr<DeviceSelection> selection;
    std::unique_ptr<ColocatedSelection> colocated;
  };
  struct Row {
    Kind* kind = nullptr;  // null: dense, or nobody's
    bool selects = false;  // its keys are in the index; not while the row is dense
    SelectionSpec spec;
    uint32_t indexed_positions = 0;
    uint32_t prompt_tokens = 0;
    uint32_t staging_slots = 0;  // of each list
  };
  // Several kinds in one step, beside each other: what one of them launches for a layer is too little to fill the GPU.
  class Together final : public ColocatedCache {
   public:
    explicit Together(device::Device& device);
    void Set(std::vector<ColocatedSelection*> kinds) { kinds_ = std::move(kinds); }
    void BeginPlan(device::Stream stream) override;
    void OnHidden(device::Stream stream, int layer) override;
    void OnRows(int layer) override;
    void EndPlan() override;

   private:
    // Of the kinds behind the first, which goes in the step's stream.
    struct Side {
      device::Stream stream = nullptr;
      std::unique_ptr<device::Event> done;
    };
    void Fork();
    std::vector<ColocatedSelection*> kinds_;
    std::array<Side, kMaxKinds - 1> sides_;
    std::unique_ptr<device::Event> fork_;
    device::Stream stream_ = nullptr;  // the step's
  };

  LocalSelection(const device::DeviceTable& table, device::Device& device, const DeviceWeights& weights,
                 const DecodeSlots& slots, const Shape& shape);
  static DeviceKvShape StoreShape(const Shape& shape, uint32_t num_slot_pages);
  static device::ExchangeShape Exchange(const Shape& shape);
  // What rows that are selected together have in common: the specification as it is served, without budgets.
  static SelectionSpec KindSpec(const Shape& shape, const SelectionSpec& spec);
  absl::StatusOr<Kind*> KindOf(const SelectionSpec& spec);
  // Its blocks, with that index, and its past queries, as the row's sequence in the store.
  absl::Status Open(int row, const StepSequence& sequence, const DeviceIndex& index, device::Stream stream);
  DecodeVariant Variant(int bucket_rows);
  // Captured mass is that of lists that kv heads have, and select at every position.
  bool Measures(const Kind& kind) const { return !kind.plan->holds_lists() && ListsPerKvHead(shape_) == 1; }
  DevicePlan::Staging StagingOf(int row) const;
  // Counts of a kind that the host reads: what is selected, and where rows are staged what is missing.
  size_t NumCounts() const { return NumCounts(shape_); }
  static size_t NumCounts(const Shape& shape);

  const device::DeviceTable& table_;
  device::Device& device_;
  const DecodeSlots& slots_;
  const DeviceSelection::Model model_;
  const Shape shape_;
  const device::InferenceInbox peer_;
  DecodeGraph* graph_ = nullptr;
  std::unique_ptr<device::DeviceMemory> inbox_memory_;
  device::CacheInbox inbox_;
  std::unique_ptr<DeviceKvStore> store_;
  std::array<std::unique_ptr<Kind>, kMaxKinds> kinds_;
  std::vector<Row> rows_;  // [max_rows]
  Together together_;
  // What the rows of the step at hand need.
  struct Needs {
    std::array<bool, kMaxKinds> kinds{};
    std::array<uint32_t, kMaxKinds> least_position{};  // of the kind's rows
    uint32_t greatest_position = 0;
    bool measures = false;  // captured mass, of some row
    bool has_dense = false;
  } needs_;
};

}  // namespace winnow
