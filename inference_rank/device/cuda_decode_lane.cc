#include "inference_rank/device/cuda_decode_lane.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/selection/attended_set.h"
#include "common/transport/wire.h"
#include "kernels/cuda/arena.h"
#include "kernels/cuda/predict.h"

namespace winnow {
namespace {

DecodeSlotShape SlotShape(const DecodeLaneShape& lane, const ModelConfig& config) {
  const SelectionSpec& spec = lane.spec;
  DecodeSlotShape shape{.layout = config.kv_layout(Dtype::kBf16),
                        .max_rows = lane.max_rows,
                        .hidden_size = config.hidden_size,
                        .sinks = spec.sink_tokens,
                        .recent_tokens = spec.recent_tokens,
                        .ring_tokens = wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens),
                        .as_working_set = true};
  shape.max_budget = GreatestHeadBudget(spec, shape.layout.num_lists());
  for (size_t list = 0; list < shape.layout.num_lists(); ++list) {
    shape.pool_slots = std::max(shape.pool_slots, PoolSlots(spec, list, lane.max_positions, shape.layout.group_size()));
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

absl::StatusOr<DecodeLaneShape> CudaDecodeLane::Complete(DecodeLaneShape shape, const ModelConfig& config) {
  if (IsDense(shape.spec) || shape.spec.predictor == Predictor::kFixed) {
    return absl::FailedPreconditionError("a lane serves the predictors exact, depth, last and temporal");
  }
  if (shape.spec.scorer != Scorer::kToken) return absl::FailedPreconditionError("a lane serves the scorer token");
  const DecodeSlotShape slots = SlotShape(shape, config);
  if (slots.pool_slots < slots.max_budget) {
    return absl::FailedPreconditionError("the budget covers the whole context");
  }
  shape.hidden_size = config.hidden_size;
  shape.pages_per_list = slots.pages_per_list();
  return shape;
}

size_t CudaDecodeLane::DeviceBytes(const DecodeLaneShape& shape, const ModelConfig& config, int num_gpus) {
  const size_t sums = num_gpus > 1 ? TensorParallelMemory::Bytes(config, num_gpus, shape.max_rows) : 0;
  // Beside inbox and tables: the graph's state, which is small.
  return DecodeSlots::BytesOver(SlotShape(shape, config)) + sums + (size_t{16} << 20);
}

uint32_t CudaDecodeLane::MaxListRows(const DecodeLaneShape& shape, const ModelConfig& config) {
  return SlotShape(shape, config).max_list_rows();
}

CudaDecodeLane::CudaDecodeLane(cuda::Device& device, CudaForward& forward, const DecodeLaneShape& shape,
                               RunOnGpus run_on_gpus)
    : device_(device),
      forward_(forward),
      shape_(shape),
      exchange_(SlotShape(shape, forward.layers().config()).exchange()),
      run_on_gpus_(std::move(run_on_gpus)),
      seats_(shape.max_rows) {}

absl::StatusOr<std::unique_ptr<CudaDecodeLane>> CudaDecodeLane::Create(cuda::Device& device, CudaForward& forward,
                                                                       const cuda::DeviceMemory& slot_memory,
                                                                       const DecodeLaneShape& shape,
                                                                       RunOnGpus run_on_gpus) {
  std::unique_ptr<CudaDecodeLane> lane(new CudaDecodeLane(device, forward, shape, std::move(run_on_gpus)));
  WINNOW_RETURN_IF_ERROR(lane->Allocate(slot_memory));
  return lane;
}

absl::Status CudaDecodeLane::Allocate(const cuda::DeviceMemory& slot_memory) {
  WINNOW_ASSIGN_OR_RETURN(
      slots_, DecodeSlots::CreateOver(device_, SlotShape(shape_, forward_.layers().config()), slot_memory.data()));
  const auto carve = [&](void* region) {
    cuda::Arena arena(region);
    host_.token_ids = arena.TakeArray<uint32_t>(shape_.max_rows);
    host_.positions = arena.TakeArray<uint32_t>(shape_.max_rows);
    host_.draws = arena.TakeArray<cuda::SampleRow>(shape_.max_rows);
    host_.tokens_out = arena.TakeArray<uint32_t>(shape_.max_rows);
    host_.digests = arena.TakeArray<cuda::RowDigest>(3 * exchange_.lists_per_layer());
    host_.masses = arena.TakeArray<cuda::MeasuredMass>(exchange_.masses_per_plan());
    host_.counts = arena.TakeArray<uint32_t>(2 * exchange_.layout.num_layers * exchange_.counts_per_layer());
    return arena.used_bytes();
  };
  WINNOW_ASSIGN_OR_RETURN(pinned_, device_.AllocatePinned(carve(nullptr)));
  carve(pinned_->data());
  if (const WeightShard shard = forward_.layers().weights().shard(); shard.count > 1) {
    WINNOW_ASSIGN_OR_RETURN(sums_,
                            TensorParallelMemory::Create(device_, forward_.layers(), shard.count, shape_.max_rows));
  }
  const cuda::DeviceMemory* exposed[] = {&slot_memory, &slots_->inbox_memory()};
  WINNOW_ASSIGN_OR_RETURN(link_, cuda::PeerLink::Create(device_, exposed));
  return absl::OkStatus();
}

CudaDecodeLane::~CudaDecodeLane() {
  if (link_ != nullptr) link_->Abort(absl::CancelledError("the lane was closed"));
  if (graph_ != nullptr) (void)device_.Synchronize(graph_->stream());
}

absl::Status CudaDecodeLane::Connect(std::string_view peer_address) {
  WINNOW_RETURN_IF_ERROR(link_->Connect(peer_address));
  if (link_->num_regions() != 2 || link_->region_bytes(0) < CacheInboxBytes(exchange_) ||
      link_->region_bytes(1) < cuda::LandingBytes(exchange_.layout)) {
    return absl::FailedPreconditionError("the cache rank's lane is of another shape");
  }
  return absl::OkStatus();
}

absl::Status CudaDecodeLane::Join(std::span<DecodeLane* const> lanes) {
  const WeightShard shard = forward_.layers().weights().shard();
  WINNOW_CHECK(graph_ == nullptr);
  if (lanes.size() != static_cast<size_t>(shard.count) || lanes[shard.index] != this) {
    return absl::FailedPreconditionError("the lanes are not one for each GPU in their order");
  }
  DecodeGraphOptions options;
  if (shard.count > 1) {
    options.group = {.rank = shard.index, .num_ranks = shard.count};
    for (int i = 0; i < shard.count; ++i) {
      options.group.boxes[i] =
          static_cast<CudaDecodeLane*>(lanes[i])->sums_->box();  // lanes of one rank are of one kind
    }
  }
  options.mode = DecodeMode::kDisaggregated;
  options.inbox = CacheInboxAt(exchange_, link_->region(0));
  options.hidden_layers = HiddenLayers(shape_.spec, exchange_.layout.num_layers);
  options.token_log_steps = 1;
  options.wait_timeout_us = wire::kLaneTimeoutUs;
  options.abort_word = link_->abort_word();
  options.error_word = link_->error_word();
  options.digests_rows = true;
  WINNOW_ASSIGN_OR_RETURN(graph_, DecodeGraph::Create(device_, forward_.layers(), *slots_, options));
  return absl::OkStatus();
}

void CudaDecodeLane::Seat(int seat, std::span<const uint32_t> pages) {
  seats_[seat] = {.pages = {pages.begin(), pages.end()}, .was_decoded = false};
}

void CudaDecodeLane::FillRows(std::span<const Row> rows) {
  std::fill_n(host_.token_ids, shape_.max_rows, 0u);
  std::fill_n(host_.positions, shape_.max_rows, cuda::kNoPosition);
  std::fill_n(host_.draws, shape_.max_rows, cuda::SampleRow{});
  seats_of_rows_.clear();
  follows_.clear();
  for (const Row& row : rows) {
    seats_of_rows_.push_back(row.seat);
    follows_.push_back(seats_[row.seat].was_decoded);
    host_.token_ids[row.seat] = row.token_id;
    host_.positions[row.seat] = row.position;
    const TokenDraw draw = row.draw.value_or(TokenDraw());
    host_.draws[row.seat] = {.temperature = draw.temperature,
                             .top_p = draw.top_p,
                             .top_k = draw.top_k,
                             .min_p = draw.min_p,
                             .sample_index = draw.sample_index,
                             .token_index = draw.token_index - 1,  // the step's beginning adds one
                             .seed = draw.seed};
  }
  for (size_t seat = 0; seat < seats_.size(); ++seat) {
    SeatState& state = seats_[seat];
    const bool decodes = host_.positions[seat] != cuda::kNoPosition;
    if (decodes && !state.was_decoded) slots_->SetRow(static_cast<int>(seat), state.pages, graph_->stream());
    state.was_decoded = decodes;
  }
}

void CudaDecodeLane::EnqueueMasses(std::span<const Row> rows, cuda::Stream stream) {
  if (std::none_of(rows.begin(), rows.end(), [](const Row& row) { return row.takes_mass; })) return;
  const size_t count = exchange_.masses_per_plan();
  device_.CopyAsync(host_.masses, slots_->inbox().masses + (steps_ - 1) % 2 * count, count * sizeof(cuda::MeasuredMass),
                    stream);
}

void CudaDecodeLane::TakeMasses(std::span<const Row> rows) {
  const size_t heads = exchange_.layout.num_kv_heads;
  masses_of_rows_.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<float>& masses = masses_of_rows_[i];
    masses.clear();
    if (!rows[i].takes_mass || !follows_[i]) continue;
    for (size_t list = 0; list < exchange_.layout.num_lists(); ++list) {
      const cuda::MeasuredMass& entry =
          host_.masses[(list / heads * shape_.max_rows + rows[i].seat) * heads + list % heads];
      masses.push_back(entry.plan == steps_ - 1 ? entry.mass : std::numeric_limits<float>::quiet_NaN());
    }
  }
}

void CudaDecodeLane::TakeCounts() {
  const size_t heads = exchange_.layout.num_kv_heads, per_layer = exchange_.counts_per_layer();
  const uint32_t* const pushed = host_.counts + exchange_.layout.num_layers * per_layer;
  counts_of_rows_.clear();
  for (const int seat : seats_of_rows_) {
    for (size_t list = 0; list < exchange_.layout.num_lists(); ++list) {
      const size_t entry = list / heads * per_layer + seat * heads + list % heads;
      counts_of_rows_.push_back({.selected = host_.counts[entry], .pushed = pushed[entry]});
    }
  }
}

absl::Status CudaDecodeLane::CompareDigests() {
  const size_t lists = exchange_.lists_per_layer(), heads = exchange_.layout.num_kv_heads;
  const cuda::RowDigest* const theirs = host_.digests + (steps_ - 1) % 2 * lists;
  absl::Status status;
  for (size_t row = 0; row < seats_of_rows_.size() && !own_digests_.empty(); ++row) {
    if (!follows_[row]) continue;
    for (size_t list = seats_of_rows_[row] * heads; list < (seats_of_rows_[row] + 1) * heads; ++list) {
      const cuda::RowDigest &own = own_digests_[list], &their = theirs[list];
      if (own.plan != steps_ - 1 || their.plan != own.plan || own.digest == their.digest) continue;
      status = absl::DataLossError(absl::StrCat("rows of layer ", own.plan % exchange_.layout.num_layers, ", kv head ",
                                                list % heads, " are not those that the cache rank holds"));
    }
  }
  own_digests_.assign(host_.digests + 2 * lists, host_.digests + 3 * lists);
  return status;
}

void CudaDecodeLane::RunTogether(const std::function<void(int)>& work) {
  if (run_on_gpus_ != nullptr) return run_on_gpus_(work);
  work(0);
}

absl::Status CudaDecodeLane::Prepare(std::span<const Row> rows) {
  WINNOW_CHECK(graph_ != nullptr && !rows.empty());
  const auto last =
      std::max_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.seat < b.seat; });
  return graph_->Prepare(last->seat + 1);
}

absl::Status CudaDecodeLane::Decode(std::span<const Row> rows) {
  WINNOW_CHECK(graph_ != nullptr && !rows.empty());
  WINNOW_RETURN_IF_ERROR(link_->status());
  const cuda::Stream stream = graph_->stream();
  forward_.FlushMoves(stream);
  FillRows(rows);
  graph_->EnqueueRows(host_.token_ids, host_.positions, host_.draws);
  const int num_rows = *std::max_element(seats_of_rows_.begin(), seats_of_rows_.end()) + 1;
  absl::Status status = graph_->Step(num_rows);
  ++steps_;
  device_.CopyAsync(host_.tokens_out, graph_->next_tokens(), num_rows * sizeof(uint32_t), stream);
  EnqueueMasses(rows, stream);
  device_.CopyAsync(host_.digests, slots_->inbox().digests, 3 * exchange_.lists_per_layer() * sizeof(cuda::RowDigest),
                    stream);
  device_.CopyAsync(host_.counts, slots_->inbox().counts,
                    2 * exchange_.layout.num_layers * exchange_.counts_per_layer() * sizeof(uint32_t), stream);
  const size_t vocab = forward_.layers().config().vocab_size;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].draw.has_value()) continue;
    device_.CopyAsync(forward_.host_logits() + i * vocab, forward_.layers().logits() + rows[i].seat * vocab,
                      vocab * sizeof(float), stream);
  }
  if (const absl::Status done = device_.Synchronize(stream); status.ok()) status = done;
  if (!status.ok()) {
    forward_.NoteFailure(status);
    return status;
  }
  WINNOW_RETURN_IF_ERROR(link_->status());
  WINNOW_RETURN_IF_ERROR(graph_->WaitError());
  TakeMasses(rows);
  TakeCounts();
  return CompareDigests();
}

std::span<float> CudaDecodeLane::logits(size_t row) {
  const size_t vocab = forward_.layers().config().vocab_size;
  return {forward_.host_logits() + row * vocab, vocab};
}

}  // namespace winnow
