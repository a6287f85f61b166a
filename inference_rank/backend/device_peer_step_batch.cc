#include "inference_rank/backend/device_peer_step_batch.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/selection/attended_set.h"
#include "common/selection/spec_traits.h"
#include "inference_rank/backend/device_peer_step_link.h"
#include "kernels/device/arena.h"
#include "kernels/device/params/predict.h"
#include "model/device/sample_row.h"
#include "transport/wire/wire.h"

namespace winnow {
namespace {

DecodeSlotShape SlotShape(const PeerStepShape& peer_link, const ModelConfig& config) {
  const SelectionSpec& spec = peer_link.spec;
  DecodeSlotShape shape{.layout = config.kv_layout(Dtype::kBf16),
                        .max_rows = peer_link.max_rows,
                        .hidden_size = config.hidden_size,
                        .sinks = spec.sink_tokens,
                        .recent_tokens = spec.recent_tokens,
                        .ring_tokens = wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens),
                        .as_working_set = true};
  shape.max_budget = GreatestHeadBudget(spec, shape.layout.num_lists());
  for (size_t list = 0; list < shape.layout.num_lists(); ++list) {
    shape.pool_slots =
        std::max(shape.pool_slots, PoolSlots(spec, list, peer_link.max_positions, shape.layout.group_size()));
  }
  return shape;
}

// Layers whose residual the cache rank wants: to project queries from, or to know that the step has begun.
int HiddenLayers(const SelectionSpec& spec, int num_layers) {
  switch (spec.predictor) {
    case Predictor::kDepth:
      return num_layers - static_cast<int>(spec.lookahead);
    case Predictor::kExact:
      return 0;
    default:
      return 1;
  }
}

}  // namespace

absl::StatusOr<PeerStepShape> DevicePeerStepBatch::Complete(PeerStepShape shape, const ModelConfig& config) {
  if (IsDense(shape.spec) || shape.spec.predictor == Predictor::kFixed) {
    return absl::FailedPreconditionError("a peer link serves the predictors exact, depth, last and temporal");
  }
  if (SelectsWholePages(shape.spec)) {
    return absl::FailedPreconditionError("a peer link serves the scorers token and two-stage");
  }
  const DecodeSlotShape slots = SlotShape(shape, config);
  if (slots.pool_slots < slots.max_budget) {
    return absl::FailedPreconditionError("the budget covers the whole context");
  }
  shape.hidden_size = config.hidden_size;
  shape.pages_per_list = slots.pages_per_list();
  return shape;
}

size_t DevicePeerStepBatch::DeviceBytes(const PeerStepShape& shape, const ModelConfig& config, int num_gpus) {
  const size_t sums = num_gpus > 1 ? TensorParallelMemory::Bytes(config, num_gpus, shape.max_rows) : 0;
  // Beside inbox and tables: the graph's state and the peer links' flags, which are small.
  return DecodeSlots::BytesOver(SlotShape(shape, config)) + sums + (size_t{16} << 20);
}

uint32_t DevicePeerStepBatch::MaxListRows(const PeerStepShape& shape, const ModelConfig& config) {
  return SlotShape(shape, config).max_list_rows();
}

DevicePeerStepBatch::DevicePeerStepBatch(device::Device& device, DeviceForward& forward,
                                         const device::DeviceMemory& slot_memory, const PeerStepShape& shape,
                                         RunOnGpus run_on_gpus)
    : device_(device),
      forward_(forward),
      slot_memory_(slot_memory),
      shape_(shape),
      exchange_(SlotShape(shape, forward.layers().config()).exchange()),
      run_on_gpus_(std::move(run_on_gpus)),
      stream_(device.NewStream()),
      batch_rows_(shape.max_rows) {}

absl::StatusOr<std::shared_ptr<DevicePeerStepBatch>> DevicePeerStepBatch::Create(
    device::Device& device, DeviceForward& forward, const device::DeviceMemory& slot_memory, const PeerStepShape& shape,
    RunOnGpus run_on_gpus) {
  std::shared_ptr<DevicePeerStepBatch> batch(
      new DevicePeerStepBatch(device, forward, slot_memory, shape, std::move(run_on_gpus)));
  WINNOW_RETURN_IF_ERROR(batch->Allocate());
  return batch;
}

absl::Status DevicePeerStepBatch::Allocate() {
  WINNOW_ASSIGN_OR_RETURN(
      slots_, DecodeSlots::CreateOver(device_, SlotShape(shape_, forward_.layers().config()), slot_memory_.data()));
  const auto carve = [&](void* region) {
    device::Arena arena(region);
    for (Stage& stage : stages_) {
      stage.inputs = DecodeGraph::InputsAt(shape_.max_rows, arena.Take(DecodeGraph::InputBytes(shape_.max_rows)));
      stage.tokens = arena.TakeArray<uint32_t>(shape_.max_rows);
      stage.digests = arena.TakeArray<device::RowDigest>(3 * exchange_.lists_per_layer());
      stage.masses = arena.TakeArray<device::MeasuredMass>(exchange_.masses_per_plan());
    }
    return arena.used_bytes();
  };
  WINNOW_ASSIGN_OR_RETURN(pinned_, device_.AllocatePinned(carve(nullptr)));
  carve(pinned_->data());
  for (Stage& stage : stages_) stage.done = device_.NewEvent();
  if (const WeightShard shard = forward_.layers().weights().shard(); shard.count > 1) {
    WINNOW_ASSIGN_OR_RETURN(sums_,
                            TensorParallelMemory::Create(device_, forward_.layers(), shard.count, shape_.max_rows));
  }
  return absl::OkStatus();
}

DevicePeerStepBatch::~DevicePeerStepBatch() {
  if (graph_ == nullptr) return;
  graph_->Abort();
  (void)device_.Synchronize(graph_->stream());
}

int DevicePeerStepBatch::TakePlace(DevicePeerStepLink* peer_link) {
  const auto free = std::find(peer_links_.begin(), peer_links_.end(), nullptr);
  if (free == peer_links_.end()) return -1;
  *free = peer_link;
  return static_cast<int>(free - peer_links_.begin());
}

void DevicePeerStepBatch::LeavePlace(int place) {
  if (graph_ != nullptr) (void)device_.Synchronize(graph_->stream());
  peer_links_[place] = nullptr;
  for (Stage& stage : stages_) {
    for (StageRow& row : stage.rows) {
      if (row.place == place) row.place = -1;
    }
  }
}

absl::Status DevicePeerStepBatch::Join(std::span<PeerStepBatch* const> batches) {
  const WeightShard shard = forward_.layers().weights().shard();
  WINNOW_CHECK(graph_ == nullptr);
  if (batches.size() != static_cast<size_t>(shard.count) || batches[shard.index] != this) {
    return absl::FailedPreconditionError("the peer links are not of one GPU each, in the GPUs' order");
  }
  DecodeGraphOptions options;
  if (shard.count > 1) {
    options.group = {.rank = shard.index, .num_ranks = shard.count};
    for (int i = 0; i < shard.count; ++i) {
      options.group.boxes[i] =
          static_cast<DevicePeerStepBatch*>(batches[i])->sums_->box();  // batches of one rank are of one kind
    }
  }
  options.mode = DecodeMode::kDisaggregated;
  options.hidden_layers = HiddenLayers(shape_.spec, exchange_.layout.num_layers);
  options.token_log_steps = 1;
  options.wait_timeout_us = wire::kPeerTimeoutUs;
  options.digests_rows = true;
  WINNOW_ASSIGN_OR_RETURN(graph_, DecodeGraph::Create(device_, forward_.layers(), *slots_, options));
  return absl::OkStatus();
}

void DevicePeerStepBatch::AssignRow(int batch_row, PeerStepLink& peer_link, std::span<const uint32_t> pages) {
  batch_rows_[batch_row] = {.place = static_cast<DevicePeerStepLink&>(peer_link).place(),
                            .pages = {pages.begin(), pages.end()},
                            .was_decoded = false};
}

void DevicePeerStepBatch::FillInputs(std::span<const Row> rows, Stage& stage) {
  const DecodeGraph::Inputs& inputs = stage.inputs;
  std::fill_n(inputs.token_ids, shape_.max_rows, 0u);
  std::fill_n(inputs.positions, shape_.max_rows, device::kNoPosition);
  std::fill_n(inputs.draws, shape_.max_rows, device::SampleRow{});
  std::fill_n(inputs.inboxes, shape_.max_rows, nullptr);
  std::fill_n(inputs.peers, device::kMaxExchangePeers, device::ExchangePeer{});
  stage.rows.clear();
  for (const Row& row : rows) {
    const RowState& state = batch_rows_[row.batch_row];
    stage.rows.push_back(
        {.batch_row = row.batch_row, .place = state.place, .follows = state.was_decoded, .takes_mass = row.takes_mass});
    const device::ExchangePeer peer = peer_links_[state.place]->peer();
    inputs.peers[state.place] = peer;
    inputs.inboxes[row.batch_row] = peer.inbox;
    inputs.token_ids[row.batch_row] = row.token_id.value_or(0);
    inputs.positions[row.batch_row] = row.position;
    inputs.draws[row.batch_row] = SampleRowBeforeStep(row.draw.value_or(TokenDraw()));
  }
}

// Tokens that the device has drawn itself stay as they are.
void DevicePeerStepBatch::EnqueueInputs(std::span<const Row> rows, const Stage& stage) {
  for (size_t batch_row = 0; batch_row < batch_rows_.size(); ++batch_row) {
    RowState& state = batch_rows_[batch_row];
    const bool decodes = stage.inputs.positions[batch_row] != device::kNoPosition;
    if (decodes && !state.was_decoded) slots_->SetRow(static_cast<int>(batch_row), state.pages, graph_->stream());
    state.was_decoded = decodes;
  }
  graph_->EnqueueInputs(stage.inputs);
  for (const Row& row : rows) {
    if (row.token_id.has_value()) graph_->EnqueueToken(row.batch_row, stage.inputs);
  }
}

void DevicePeerStepBatch::EnqueueOutputs(std::span<const Row> rows, int num_rows, const Stage& stage) {
  const device::Stream stream = graph_->stream();
  device_.CopyAsync(stage.tokens, graph_->next_tokens(), num_rows * sizeof(uint32_t), stream);
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.takes_mass; })) {
    const size_t count = exchange_.masses_per_plan();
    device_.CopyAsync(stage.masses, slots_->inbox().masses + (stage.step - 1) % 2 * count,
                      count * sizeof(device::MeasuredMass), stream);
  }
  device_.CopyAsync(stage.digests, slots_->inbox().digests, 3 * exchange_.lists_per_layer() * sizeof(device::RowDigest),
                    stream);
  for (size_t place = 0; place < peer_links_.size(); ++place) {
    if (stage.inputs.peers[place].inbox != nullptr) peer_links_[place]->EnqueueCounts(stage.step, stream);
  }
  const size_t vocab = forward_.layers().config().vocab_size;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].draw.has_value()) continue;
    device_.CopyAsync(forward_.host_logits() + i * vocab, forward_.layers().logits() + rows[i].batch_row * vocab,
                      vocab * sizeof(float), stream);
  }
}

void DevicePeerStepBatch::TakeMasses() {
  const size_t heads = exchange_.layout.num_kv_heads;
  masses_of_rows_.resize(completed_->rows.size());
  for (size_t i = 0; i < completed_->rows.size(); ++i) {
    const StageRow& row = completed_->rows[i];
    std::vector<float>& masses = masses_of_rows_[i];
    masses.clear();
    if (!row.takes_mass || !row.follows) continue;
    for (size_t list = 0; list < exchange_.layout.num_lists(); ++list) {
      const device::MeasuredMass& entry =
          completed_->masses[(list / heads * shape_.max_rows + row.batch_row) * heads + list % heads];
      masses.push_back(entry.plan == completed_->step - 1 ? entry.mass : std::numeric_limits<float>::quiet_NaN());
    }
  }
}

void DevicePeerStepBatch::TakeCounts() {
  const size_t heads = exchange_.layout.num_kv_heads, per_layer = exchange_.counts_per_layer();
  const size_t num_lists = exchange_.layout.num_lists();
  counts_of_rows_.assign(completed_->rows.size() * num_lists, {});
  for (size_t i = 0; i < completed_->rows.size(); ++i) {
    const StageRow& row = completed_->rows[i];
    if (row.place < 0) continue;
    const uint32_t* const selected = peer_links_[row.place]->counts(completed_->step);
    const uint32_t* const pushed = selected + exchange_.layout.num_layers * per_layer;
    for (size_t list = 0; list < num_lists; ++list) {
      const size_t entry = list / heads * per_layer + row.batch_row * heads + list % heads;
      counts_of_rows_[i * num_lists + list] = {.selected = selected[entry], .pushed = pushed[entry]};
    }
  }
}

void DevicePeerStepBatch::CompareDigests() {
  const size_t lists = exchange_.lists_per_layer(), heads = exchange_.layout.num_kv_heads;
  const uint32_t before = completed_->step - 1;
  const device::RowDigest* const theirs = completed_->digests + before % 2 * lists;
  for (const StageRow& row : completed_->rows) {
    if (own_digests_.empty() || !row.follows || row.place < 0) continue;
    for (size_t list = row.batch_row * heads; list < (row.batch_row + 1) * heads; ++list) {
      const device::RowDigest &own = own_digests_[list], &their = theirs[list];
      if (own.plan != before || their.plan != own.plan || own.digest == their.digest) continue;
      peer_links_[row.place]->Abort(
          absl::DataLossError(absl::StrCat("rows of layer ", own.plan % exchange_.layout.num_layers, ", kv head ",
                                           list % heads, " are not those that the cache rank holds")));
    }
  }
  own_digests_.assign(completed_->digests + 2 * lists, completed_->digests + 3 * lists);
}

void DevicePeerStepBatch::RunTogether(const std::function<void(int)>& work) {
  if (run_on_gpus_ != nullptr) return run_on_gpus_(work);
  work(0);
}

absl::Status DevicePeerStepBatch::Prepare(std::span<const Row> rows) {
  WINNOW_CHECK(graph_ != nullptr && !rows.empty());
  const auto last =
      std::max_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.batch_row < b.batch_row; });
  return graph_->Prepare(last->batch_row + 1);
}

absl::Status DevicePeerStepBatch::Launch(std::span<const Row> rows) {
  WINNOW_CHECK(graph_ != nullptr && !rows.empty() && launched_ - num_completed_ < stages_.size());
  const device::Stream stream = graph_->stream();
  Stage& stage = StageOf(++launched_);
  stage.step = launched_;
  forward_.FlushMoves(stream);
  FillInputs(rows, stage);
  EnqueueInputs(rows, stage);
  int num_rows = 0;
  for (const Row& row : rows) num_rows = std::max(num_rows, row.batch_row + 1);
  absl::Status status = graph_->Step(num_rows);
  EnqueueOutputs(rows, num_rows, stage);
  stage.done->Record(stream);
  if (status.ok()) status = device_.CheckLaunches();
  if (!status.ok()) forward_.NoteFailure(status);
  return status;
}

absl::Status DevicePeerStepBatch::Complete() {
  WINNOW_CHECK(num_completed_ != launched_);
  completed_ = &StageOf(++num_completed_);
  if (absl::Status status = completed_->done->Wait(); !status.ok()) {
    forward_.NoteFailure(status);
    return status;
  }
  WINNOW_RETURN_IF_ERROR(graph_->WaitError());
  TakeMasses();
  TakeCounts();
  CompareDigests();
  return absl::OkStatus();
}

void DevicePeerStepBatch::Abort(const absl::Status& why) {
  if (graph_ != nullptr) graph_->Abort();
  for (DevicePeerStepLink* peer_link : peer_links_) {
    if (peer_link != nullptr) peer_link->Abort(why);
  }
}

std::span<float> DevicePeerStepBatch::logits(size_t row) {
  const size_t vocab = forward_.layers().config().vocab_size;
  return {forward_.host_logits() + row * vocab, vocab};
}

}  // namespace winnow
