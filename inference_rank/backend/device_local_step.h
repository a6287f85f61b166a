#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inference_rank/backend/device_forward.h"
#include "inference_rank/local/local_selection.h"
#include "inference_rank/step/step_client.h"
#include "model/device/decode_graph.h"
#include "model/device/decode_slots.h"

namespace winnow {

// Steps of sequences whose rows all lie in the slots of one GPU, attended to whole, as LocalSelection selects them or
// as the model's own indexer does: a step is one graph (DecodeGraph) over the slots of the rank's working sets. Steps
// have a stream and activations of their own, so that they go on beside prompts. They wait for the rows that were moved
// to slots before them, and rows that are moved wait for the steps in which a sequence took part that has left: its
// slots may be theirs. The K and V of a step's rows are copied to pinned host memory behind it, for the cache ranks.
//
// Where the weights are a shard, these are one GPU's part of steps that all GPUs of the model take together
// (ShardedLocalStep): of the slots, rows and selections of its heads. They run on the stream of the forward pass, as
// prompts do: kernels that wait for the other GPUs must come in one order on all of them.
class DeviceLocalStep final : public StepClient {
 public:
  struct Shape {
    KvLayout layout;   // bf16 or int8; of a shard, of its heads
    int num_gpus = 1;  // that hold the model together
    int max_rows = 0;
    int hidden_size = 0;
    int vocab_size = 0;
    uint32_t max_context_tokens = 0;
    // Where rows are selected here: what the rank was started with, over so many pages of slots.
    std::optional<LocalSelection::Shape> selection = std::nullopt;
    // Where the model's own indexer chooses among rows here: so many of them, at most; 0: it does not.
    uint32_t index_top_k = 0;
    uint32_t num_slot_pages = 0;
  };
  // Device memory beside the forward pass and the index of the slots' keys.
  static size_t DeviceBytes(const device::DeviceTable& table, const ModelConfig& config, const Shape& shape);

  // `slot_memory` holds the slots of all working sets. The arguments outlive the steps. All graphs are captured and run
  // once, so that no step that serves has to; of a shard once it has joined the others.
  static absl::StatusOr<std::unique_ptr<DeviceLocalStep>> Create(device::Device& device, DeviceForward& forward,
                                                                 const device::DeviceMemory& slot_memory,
                                                                 const Shape& shape);
  ~DeviceLocalStep() override;

  int max_rows() const override { return shape_.max_rows; }
  uint32_t vocab_size() const override { return shape_.vocab_size; }
  uint32_t pages_per_list() const override { return slots_->shape().staging_base() / kSlotPageTokens; }
  absl::Status Serves(const SelectionSpec& spec) const override;
  uint32_t IndexOf(const SelectionSpec& spec) const override;
  absl::Status SetRow(int row, const StepSequence& sequence) override;
  std::vector<float> PastQueries(int row, uint32_t end) override;
  void ClearRow(int row) override;
  void Plan(std::span<const StepRow> rows) override;
  absl::Status Launch() override;
  std::span<uint64_t> token_mask(int row) override;
  absl::Status Draw(std::span<const int> masked_rows) override;
  bool HasEnded() override;
  absl::Status Complete() override;
  uint32_t drawn_token(int row) const override { return completed_->tokens[row]; }
  std::span<float> logits(int row) const override {
    return {completed_->logits + static_cast<size_t>(row) * shape_.vocab_size, static_cast<size_t>(shape_.vocab_size)};
  }
  const std::byte* kv_rows(int row) const override { return completed_->kv_rows + row * RowBytes(shape_); }
  StepSelection selection(int row) const override;

  size_t pinned_bytes() const { return pinned_->bytes(); }

  // Of shards, each of which goes through these before the next is called of any. What the others write to:
  const TensorParallelBox& box() const { return sums_->box(); }
  // Captures the graphs. With whole weights the group is of one.
  absl::Status Join(const TensorParallelGroup& group);
  // A step without sequences of each graph of dense rows, whose kernels are loaded by it. Enqueued.
  absl::Status WarmUp();
  absl::Status Synchronize();
  // Launch in two parts: what comes before the planned step, whose graph is captured if that has not been done, and the
  // step. An error is as Launch's.
  absl::Status Prepare();
  absl::Status LaunchPrepared();

 private:
  // What one of the steps under way has in pinned memory, and the end of its work on the GPU.
  struct Stage {
    DecodeGraph::Inputs inputs;    // of the rows whose state on the device changes
    uint32_t* tokens = nullptr;    // [max_rows] drawn
    std::byte* kv_rows = nullptr;  // [max_rows] x RowBytes
    float* logits = nullptr;       // [max_rows, vocab_size] of rows whose logits are wanted
    uint64_t* masks = nullptr;     // [max_rows][mask_words()] of rows that may not draw every token
    LocalSelection::Readback readback;
    std::vector<uint32_t> positions;  // [max_rows] that the step computes
    std::unique_ptr<device::Event> done;
  };

  DeviceLocalStep(device::Device& device, DeviceForward& forward, const Shape& shape);
  static size_t RowBytes(const Shape& shape) { return shape.layout.num_lists() * shape.layout.row_bytes(); }
  static uint32_t StagingPages(const Shape& shape);
  static DeviceLayerOptions LayerOptions(const Shape& shape);
  static DecodeSlotShape SlotShape(const Shape& shape);
  std::vector<uint32_t> WithStaging(const StepSequence& sequence) const;
  absl::Status Allocate(const device::DeviceMemory& slot_memory);
  // Does that for the graphs of every bucket of rows, up to the first error: those of rows that attend to everything
  // and, of a model with an indexer, of rows that it chooses for.
  absl::Status ForEachGraph(const std::function<absl::Status(int num_rows, const DecodeVariant& variant)>& work);
  // Of rows that are to be computed whose first position that is not dense this is.
  absl::Status BeginSelections();
  // Of the rows that rows_at_ names.
  DecodeVariant Variant();
  // Of a rank without LocalSelection.
  DecodeVariant VariantThatIndexes(bool indexes) const {
    return {.key = indexes ? 1u : 0u, .max_list_rows = shape_.max_context_tokens, .indexes = indexes};
  }
  absl::Status ServesIndexed(const SelectionSpec& spec) const;
  int mask_words() const { return TokenMasks::WordsPerRow(shape_.vocab_size); }
  Stage& launched() { return stages_[(num_launched_ - 1) % stages_.size()]; }  // last

  device::Device& device_;
  DeviceForward& forward_;
  const Shape shape_;
  std::unique_ptr<DeviceLayers> layers_;
  std::unique_ptr<DecodeSlots> slots_;
  std::unique_ptr<device::DeviceMemory> row_copies_;
  std::unique_ptr<device::DeviceMemory> masks_;  // [max_rows][mask_words()] of the step that is drawn
  std::unique_ptr<device::DeviceMemory> pinned_;
  std::unique_ptr<TensorParallelMemory> sums_;  // null: the weights are whole
  std::unique_ptr<DecodeGraph> graph_;
  std::unique_ptr<LocalSelection> selection_;    // null: nothing is selected here
  std::array<Stage, kMaxStepsUnderWay> stages_;  // in turn
  uint64_t num_launched_ = 0, num_completed_ = 0;
  const Stage* completed_ = nullptr;
  std::vector<uint32_t> positions_;      // [max_rows] that the rows compute next if nothing changes; none: they sit out
  std::vector<uint32_t> index_budgets_;  // [max_rows] that the model's indexer chooses for rows; 0: it does not
  // Of the step that was planned:
  size_t num_planned_ = 0;
  int num_rows_ = 0;  // up to the last of them
  std::vector<LocalSelection::RowAt> rows_at_;
  std::vector<int> changed_;  // rows whose state on the device is not what the step before has left
  std::vector<int> wants_logits_;
  DecodeVariant variant_;
  mutable std::vector<float> captured_masses_;  // of selection()
};

}  // namespace winnow
