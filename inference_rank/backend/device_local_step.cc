#include "inference_rank/backend/device_local_step.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/device/arena.h"
#include "model/device/sample_row.h"
#include "transport/wire/wire.h"

namespace winnow {

DecodeSlotShape DeviceLocalStep::SlotShape(const Shape& shape) {
  return {.layout = shape.layout,
          .max_rows = shape.max_rows,
          .hidden_size = shape.hidden_size,
          .dense_tokens = shape.max_context_tokens,
          .max_budget = shape.selection.has_value() ? LocalSelection::MaxBudget(*shape.selection) : 0,
          .lists_per_kv_head = shape.selection.has_value() ? LocalSelection::ListsPerKvHead(*shape.selection) : 1,
          .staging_pages = StagingPages(shape)};
}

uint32_t DeviceLocalStep::StagingPages(const Shape& shape) {
  const uint32_t slots = shape.selection.has_value() ? LocalSelection::StagingSlots(*shape.selection) : 0;
  return (slots + kSlotPageTokens - 1) / kSlotPageTokens;
}

DeviceLayerOptions DeviceLocalStep::LayerOptions(const Shape& shape) {
  const uint32_t selected = shape.selection.has_value() ? LocalSelection::MaxListRows(*shape.selection) : 0;
  return {.max_decode_rows = shape.max_rows,
          .max_list_rows = std::max(shape.max_context_tokens, selected),
          .kv_dtype = shape.layout.dtype,
          .lists_per_kv_head = SlotShape(shape).lists_per_kv_head};
}

size_t DeviceLocalStep::DeviceBytes(const device::DeviceTable& table, const ModelConfig& config, const Shape& shape) {
  // Beside tables and copies: the graphs and their state, which are small.
  const size_t selection =
      shape.selection.has_value() ? LocalSelection::DeviceBytes(table, *shape.selection) + (size_t{256} << 20) : 0;
  const size_t masks = TokenMasks::WordsPerRow(shape.vocab_size) * sizeof(uint64_t) * shape.max_rows;
  const size_t sums = shape.num_gpus > 1 ? TensorParallelMemory::Bytes(config, shape.num_gpus, shape.max_rows) : 0;
  return DeviceLayers::ActivationBytes(table, config, LayerOptions(shape)) + DecodeSlots::BytesOver(SlotShape(shape)) +
         shape.max_rows * RowBytes(shape) + masks + selection + sums + (size_t{16} << 20);
}

DeviceLocalStep::DeviceLocalStep(device::Device& device, DeviceForward& forward, const Shape& shape)
    : device_(device),
      forward_(forward),
      shape_(shape),
      positions_(shape.max_rows, device::kNoPosition),
      index_budgets_(shape.max_rows) {}

absl::StatusOr<std::unique_ptr<DeviceLocalStep>> DeviceLocalStep::Create(device::Device& device, DeviceForward& forward,
                                                                         const device::DeviceMemory& slot_memory,
                                                                         const Shape& shape) {
  std::unique_ptr<DeviceLocalStep> step(new DeviceLocalStep(device, forward, shape));
  WINNOW_RETURN_IF_ERROR(step->Allocate(slot_memory));
  if (shape.num_gpus > 1) return step;
  WINNOW_RETURN_IF_ERROR(step->Join({}));
  WINNOW_RETURN_IF_ERROR(step->WarmUp());
  WINNOW_RETURN_IF_ERROR(step->Synchronize());
  return step;
}

absl::Status DeviceLocalStep::Allocate(const device::DeviceMemory& slot_memory) {
  float* const scales = shape_.layout.dtype == Dtype::kI8 ? forward_.int8_slots().scales() : nullptr;
  WINNOW_ASSIGN_OR_RETURN(slots_, DecodeSlots::CreateOver(device_, SlotShape(shape_), slot_memory.data(), scales));
  WINNOW_ASSIGN_OR_RETURN(row_copies_, device_.Allocate(shape_.max_rows * RowBytes(shape_)));
  const size_t rows = shape_.max_rows;
  WINNOW_ASSIGN_OR_RETURN(masks_, device_.Allocate(rows * mask_words() * sizeof(uint64_t)));
  const auto carve = [&](void* region) {
    device::Arena arena(region);
    for (Stage& stage : stages_) {
      stage.inputs = DecodeGraph::InputsAt(shape_.max_rows, arena.Take(DecodeGraph::InputBytes(shape_.max_rows)));
      stage.tokens = arena.TakeArray<uint32_t>(rows);
      stage.kv_rows = static_cast<std::byte*>(arena.Take(rows * RowBytes(shape_)));
      stage.logits = arena.TakeArray<float>(rows * shape_.vocab_size);
      stage.masks = arena.TakeArray<uint64_t>(rows * mask_words());
      if (!shape_.selection.has_value()) continue;
      stage.readback.region = static_cast<std::byte*>(arena.Take(LocalSelection::ReadbackBytes(*shape_.selection)));
    }
    return arena.used_bytes();
  };
  WINNOW_ASSIGN_OR_RETURN(pinned_, device_.AllocatePinned(carve(nullptr)));
  carve(pinned_->data());
  for (Stage& stage : stages_) {
    stage.done = device_.NewEvent();
    stage.positions.assign(rows, device::kNoPosition);
  }
  const DeviceLayers& prompts = forward_.layers();
  WINNOW_ASSIGN_OR_RETURN(layers_,
                          DeviceLayers::Create(prompts.table(), device_, prompts.weights(), LayerOptions(shape_)));
  if (shape_.selection.has_value()) {
    WINNOW_ASSIGN_OR_RETURN(selection_, LocalSelection::Create(layers_->table(), device_, layers_->weights(), *slots_,
                                                               shape_.num_slot_pages, *shape_.selection));
  }
  if (shape_.num_gpus == 1) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(sums_, TensorParallelMemory::Create(device_, *layers_, shape_.num_gpus, shape_.max_rows));
  return absl::OkStatus();
}

absl::Status DeviceLocalStep::Join(const TensorParallelGroup& group) {
  DecodeGraphOptions options;
  options.stream = group.num_ranks > 1 ? forward_.stream() : device_.NewStream();
  options.group = group;
  options.wait_timeout_us = wire::kPeerTimeoutUs;
  options.row_copies = row_copies_->data();
  options.token_log_steps = 1;
  options.draws_apart = true;
  if (selection_ != nullptr) {
    options.mode = DecodeMode::kColocated;
    options.inbox = selection_->inbox();
  }
  WINNOW_ASSIGN_OR_RETURN(graph_, DecodeGraph::Create(device_, *layers_, *slots_, options));
  if (selection_ != nullptr) selection_->JoinGraph(*graph_);
  WINNOW_RETURN_IF_ERROR(
      ForEachGraph([&](int num_rows, const DecodeVariant& variant) { return graph_->Prepare(num_rows, variant); }));
  return selection_ == nullptr ? absl::OkStatus() : selection_->PrepareGraphs();
}

absl::Status DeviceLocalStep::ForEachGraph(
    const std::function<absl::Status(int num_rows, const DecodeVariant& variant)>& work) {
  rows_at_ = {{.row = 0, .position = 0}};
  for (const int bucket : DecodeGraph::kBuckets) {
    num_rows_ = std::min(bucket, shape_.max_rows);
    WINNOW_RETURN_IF_ERROR(work(num_rows_, Variant()));
    if (shape_.index_top_k > 0) WINNOW_RETURN_IF_ERROR(work(num_rows_, VariantThatIndexes(true)));
    if (bucket >= shape_.max_rows) break;
  }
  return absl::OkStatus();
}

absl::Status DeviceLocalStep::WarmUp() {
  device_.Bind();
  return ForEachGraph([&](int num_rows, const DecodeVariant& variant) {
    const absl::Status launched = graph_->Step(num_rows, variant);
    if (launched.ok()) graph_->DrawTokens(num_rows, {});
    return launched;
  });
}

absl::Status DeviceLocalStep::Synchronize() {
  WINNOW_RETURN_IF_ERROR(device_.Synchronize(graph_->stream()));
  return graph_->WaitError();
}

absl::Status DeviceLocalStep::BeginSelections() {
  if (selection_ == nullptr) return absl::OkStatus();
  for (const auto& [row, position] : rows_at_) {
    if (!selection_->BeginsAt(row, position)) continue;
    WINNOW_RETURN_IF_ERROR(selection_->Begin(row, position, graph_->stream()));
    graph_->EnqueueWindow(row, selection_->WindowOf(row));
  }
  return absl::OkStatus();
}

DecodeVariant DeviceLocalStep::Variant() {
  if (selection_ == nullptr) {
    return VariantThatIndexes(std::any_of(rows_at_.begin(), rows_at_.end(), [&](const LocalSelection::RowAt& at) {
      return index_budgets_[at.row] > 0 && at.position >= index_budgets_[at.row];
    }));
  }
  return selection_->VariantOf(rows_at_, std::min(DecodeGraph::BucketFor(num_rows_), shape_.max_rows));
}

DeviceLocalStep::~DeviceLocalStep() {
  if (graph_ != nullptr) (void)device_.Synchronize(graph_->stream());
}

absl::Status DeviceLocalStep::Serves(const SelectionSpec& spec) const {
  if (IsDense(spec)) return absl::OkStatus();
  if (SelectsFromAll(spec) && shape_.index_top_k > 0) return ServesIndexed(spec);
  if (!shape_.selection.has_value()) return absl::FailedPreconditionError("rows are selected by the cache ranks");
  return LocalSelection::Serves(layers_->table(), *shape_.selection, spec);
}

uint32_t DeviceLocalStep::IndexOf(const SelectionSpec& spec) const {
  return selection_ == nullptr ? 0 : LocalSelection::IndexOf(*shape_.selection, spec);
}

// What the scorer leaves open (CheckIndexer in common/selection/validate.cc).
absl::Status DeviceLocalStep::ServesIndexed(const SelectionSpec& spec) const {
  const auto refuse = [](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat("not selected in place: ", AbslSv(what)));
  };
  if (spec.budget_tokens > shape_.index_top_k) return refuse("more rows than the model's indexer chooses (budget)");
  if (spec.reuse_interval > 1) return refuse("selections that are kept (reuse_interval)");
  if (spec.dense_below_tokens > 0) return refuse("positions that the indexer leaves dense (dense_below_tokens)");
  if (spec.transfer == Transfer::kFull) return refuse("rows that are sent anew (transfer)");
  return absl::OkStatus();
}

absl::Status DeviceLocalStep::SetRow(int row, const StepSequence& sequence) {
  const device::Stream stream = graph_->stream();
  device_.Bind();
  const SelectionSpec& spec = *sequence.spec;
  index_budgets_[row] = SelectsFromAll(spec) ? spec.budget_tokens : 0;
  if (shape_.index_top_k > 0) graph_->EnqueueIndexBudget(row, index_budgets_[row]);
  if (!IsDense(spec) && !SelectsFromAll(spec)) WINNOW_RETURN_IF_ERROR(selection_->Sit(row, sequence, stream));
  graph_->EnqueueWindow(row, {});
  slots_->SetRow(row, WithStaging(sequence), stream, !sequence.staging.empty());
  return absl::OkStatus();
}

// Tables of equal length: what a list has no staging pages for repeats the last of its pages.
std::vector<uint32_t> DeviceLocalStep::WithStaging(const StepSequence& sequence) const {
  const size_t lists = shape_.layout.num_lists(), own = sequence.pages.size() / lists,
               staging = sequence.staging.size() / lists, per_list = slots_->shape().pages_per_list();
  std::vector<uint32_t> pages;
  pages.reserve(lists * per_list);
  for (size_t list = 0; list < lists; ++list) {
    const auto of_list = sequence.pages.subspan(list * own, own),
               stage = sequence.staging.subspan(list * staging, staging);
    pages.insert(pages.end(), of_list.begin(), of_list.end());
    pages.insert(pages.end(), stage.begin(), stage.begin() + static_cast<ptrdiff_t>(std::min(staging, per_list - own)));
    pages.resize((list + 1) * per_list, pages.back());
  }
  return pages;
}

std::vector<float> DeviceLocalStep::PastQueries(int row, uint32_t end) {
  if (selection_ == nullptr) return {};
  std::vector<float> queries = selection_->PastQueries(row, end, graph_->stream());
  const absl::Status status = queries.empty() ? absl::OkStatus() : device_.Synchronize(graph_->stream());
  if (status.ok()) return queries;
  forward_.NoteFailure(status);
  return {};
}

void DeviceLocalStep::ClearRow(int row) {
  index_budgets_[row] = 0;
  if (selection_ != nullptr) selection_->Leave(row, graph_->stream());
  device_.Bind();
  forward_.HoldMovesBehind(graph_->stream());
}

StepSelection DeviceLocalStep::selection(int row) const {
  if (selection_ == nullptr) return {};
  const std::optional<LocalSelection::RowCounts> counts =
      selection_->TakeReadback(completed_->readback, row, completed_->positions[row], captured_masses_);
  if (!counts.has_value()) return {};
  return {.captured_masses = captured_masses_, .selected_rows = counts->selected, .fetched_rows = counts->fetched};
}

void DeviceLocalStep::Plan(std::span<const StepRow> rows) {
  Stage& stage = stages_[num_launched_ % stages_.size()];
  const DecodeGraph::Inputs& inputs = stage.inputs;
  std::fill_n(inputs.token_ids, shape_.max_rows, 0u);
  std::fill_n(inputs.positions, shape_.max_rows, device::kNoPosition);
  std::fill_n(inputs.draws, shape_.max_rows, device::SampleRow{});
  changed_.clear();
  wants_logits_.clear();
  rows_at_.clear();
  num_rows_ = 0;
  num_planned_ = rows.size();
  for (const StepRow& row : rows) {
    WINNOW_CHECK(row.row >= 0 && row.row < shape_.max_rows && row.position < shape_.max_context_tokens);
    WINNOW_CHECK(row.token_id.has_value() || positions_[row.row] == row.position);
    num_rows_ = std::max(num_rows_, row.row + 1);
    inputs.positions[row.row] = row.position;
    rows_at_.push_back({.row = row.row, .position = row.position});
    if (!row.draw.has_value() || row.wants_logits) wants_logits_.push_back(row.row);
    if (!row.token_id.has_value()) continue;
    inputs.token_ids[row.row] = *row.token_id;
    inputs.draws[row.row] = SampleRowBeforeStep(row.draw.value_or(TokenDraw()));
    changed_.push_back(row.row);
  }
  for (int row = 0; row < shape_.max_rows; ++row) {
    const bool sits_out = inputs.positions[row] == device::kNoPosition;
    if (sits_out && positions_[row] != device::kNoPosition) changed_.push_back(row);
    stage.positions[row] = inputs.positions[row];
    positions_[row] = sits_out ? device::kNoPosition : inputs.positions[row] + 1;
  }
}

absl::Status DeviceLocalStep::Launch() {
  WINNOW_RETURN_IF_ERROR(Prepare());
  return LaunchPrepared();
}

absl::Status DeviceLocalStep::Prepare() {
  WINNOW_CHECK(num_rows_ > 0 && num_launched_ - num_completed_ < stages_.size());
  device_.Bind();
  forward_.FlushMoves(graph_->stream());
  forward_.NoteGraph(static_cast<int>(num_planned_));
  for (const int row : changed_) graph_->EnqueueRow(row, stages_[num_launched_ % stages_.size()].inputs);
  absl::Status status = BeginSelections();
  variant_ = Variant();
  if (status.ok()) status = graph_->Prepare(num_rows_, variant_);
  if (!status.ok()) forward_.NoteFailure(status);
  return status;
}

absl::Status DeviceLocalStep::LaunchPrepared() {
  Stage& stage = stages_[num_launched_ % stages_.size()];
  const device::Stream stream = graph_->stream();
  device_.Bind();
  absl::Status status = graph_->Step(num_rows_, variant_);
  if (selection_ != nullptr) selection_->EnqueueReadback(stage.readback, stream);
  device_.CopyAsync(stage.kv_rows, row_copies_->data(), num_rows_ * RowBytes(shape_), stream);
  for (const int row : wants_logits_) {
    const size_t first = row * static_cast<size_t>(shape_.vocab_size);
    device_.CopyAsync(stage.logits + first, layers_->logits() + first, shape_.vocab_size * sizeof(float), stream);
  }
  ++num_launched_;
  if (status.ok()) status = device_.CheckLaunches();
  if (!status.ok()) forward_.NoteFailure(status);
  return status;
}

std::span<uint64_t> DeviceLocalStep::token_mask(int row) {
  const auto words = static_cast<size_t>(mask_words());
  return {launched().masks + row * words, words};
}

absl::Status DeviceLocalStep::Draw(std::span<const int> masked_rows) {
  Stage& stage = launched();
  const device::Stream stream = graph_->stream();
  device_.Bind();
  TokenMasks masks{.words = static_cast<const uint64_t*>(masks_->data())};
  for (const int row : masked_rows) {
    const std::span<const uint64_t> mask = token_mask(row);
    device_.CopyAsync(static_cast<uint64_t*>(masks_->data()) + row * mask.size(), mask.data(), mask.size_bytes(),
                      stream);
    masks.rows |= uint64_t{1} << row;
  }
  graph_->DrawTokens(num_rows_, masks);
  device_.CopyAsync(stage.tokens, graph_->next_tokens(), num_rows_ * sizeof(uint32_t), stream);
  stage.done->Record(stream);
  absl::Status status = device_.CheckLaunches();
  if (!status.ok()) forward_.NoteFailure(status);
  return status;
}

// An error is told by Complete.
bool DeviceLocalStep::HasEnded() {
  WINNOW_CHECK(num_completed_ < num_launched_);
  return stages_[num_completed_ % stages_.size()].done->HasPassed().value_or(true);
}

absl::Status DeviceLocalStep::Complete() {
  WINNOW_CHECK(num_completed_ < num_launched_);
  const Stage& stage = stages_[num_completed_++ % stages_.size()];
  completed_ = &stage;
  absl::Status status = stage.done->Wait();
  if (status.ok()) status = graph_->WaitError();
  if (!status.ok()) forward_.NoteFailure(status);
  return status;
}

}  // namespace winnow
