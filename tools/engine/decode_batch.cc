#include "tools/engine/decode_batch.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "tools/engine/measurement.h"

namespace winnow {
namespace {

constexpr int kGroupSteps = 8;  // timed as one, so that launching hides behind the step before
constexpr int kWarmUpGroups = 2;
constexpr size_t kFillRows = 1 << 20;

std::string Gb(size_t bytes) {
  return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
}

GpuCacheSideOptions CacheOptions(const EngineSetting& setting, const DecodeCase& of, int rank) {
  return {.spec = of.spec,
          .config = setting.config,
          .shard = {rank, setting.num_ranks},
          .num_sequences = of.batch,
          .context_tokens = setting.context_tokens,
          .max_steps = DecodeBatch::kMaxSteps,
          .max_rows = of.batch,
          .rows = of.rows(),
          .dram_sequences = of.dram_sequences,
          .kv = of.kv,
          .weights = setting.weights,
          .weight_seed = setting.seed,
          .kv_seed = setting.seed + 1};
}

DecodeSlotShape SlotShape(const EngineSetting& setting, const DecodeCase& of) {
  return of.SlotShape(setting.shard(), setting.context_tokens + DecodeBatch::kMaxSteps);
}

}  // namespace

DecodeBatch::Bytes DecodeBatch::BytesOf(const device::DeviceTable& table, const EngineSetting& setting,
                                        const DecodeCase& of) {
  Bytes bytes{.here = DecodeSlots::Bytes(SlotShape(setting, of))};
  bytes.parts = absl::StrCat("slots ", Gb(bytes.here));
  if (!Selects(of.placement)) return bytes;
  const GpuCacheSideOptions options = CacheOptions(setting, of, 0);
  DeviceKvShape shape = GpuCacheSide::StoreShape(options);
  if (shape.rows == RowTier::kInPlace) shape.num_blocks = SlotShape(setting, of).num_slots() / kBlockTokens;
  const DeviceKvBytes store = winnow::BytesOf(shape);
  const size_t queries = GpuCacheSide::WeightBytes(table, options);
  absl::StrAppend(&bytes.parts, ", rows ", Gb(store.rows), ", their index ", Gb(store.index()), ", query projections ",
                  Gb(queries));
  size_t& index_is_at = of.placement == KvPlacement::kDisaggregated ? bytes.beside : bytes.here;
  index_is_at += store.index() + queries;
  (shape.rows == RowTier::kPinnedHost ? bytes.host : index_is_at) += store.rows;
  bytes.host += store.dram_rows;
  return bytes;
}

absl::StatusOr<std::unique_ptr<DecodeBatch>> DecodeBatch::Create(const device::DeviceTable& table,
                                                                 std::span<EngineRank> ranks,
                                                                 const EngineSetting& setting, const DecodeCase& of) {
  std::unique_ptr<DecodeBatch> batch(new DecodeBatch(table, ranks, setting, of));
  TensorParallelGroup group{.num_ranks = setting.num_ranks};
  const DecodeSlotShape shape = SlotShape(setting, of);
  const DeviceLayerOptions options{.max_decode_rows = of.batch,
                                   .max_list_rows = shape.max_list_rows(),
                                   .kv_dtype = of.kv,
                                   .lists_per_kv_head = shape.lists_per_kv_head};
  for (size_t r = 0; r < ranks.size(); ++r) {
    Side& side = batch->sides_[r];
    EngineRank& rank = ranks[r];
    WINNOW_ASSIGN_OR_RETURN(side.layers, DeviceLayers::Create(table, *rank.device, *rank.weights, options));
    WINNOW_ASSIGN_OR_RETURN(side.slots, DecodeSlots::Create(*rank.device, shape, setting.seed));
    WINNOW_RETURN_IF_ERROR(batch->FillSlots(*rank.device, *side.slots));
    if (setting.num_ranks == 1) continue;
    WINNOW_ASSIGN_OR_RETURN(
        side.memory, TensorParallelMemory::Create(*rank.device, *side.layers, setting.num_ranks, shape.max_rows));
    group.boxes[r] = side.memory->box();
  }
  for (size_t r = 0; r < ranks.size(); ++r) WINNOW_RETURN_IF_ERROR(batch->CreateSide(r, group));
  return batch;
}

absl::Status DecodeBatch::CreateSide(size_t r, TensorParallelGroup& group) {
  Side& side = sides_[r];
  EngineRank& rank = ranks_[r];
  group.rank = static_cast<int>(r);
  DecodeGraphOptions options{.mode = ModeOf(of_.placement), .group = group};
  if (Selects(of_.placement)) {
    device::Device& beside = of_.placement == KvPlacement::kDisaggregated ? *rank.cache_device : *rank.device;
    WINNOW_ASSIGN_OR_RETURN(side.cache, GpuCacheSide::Create(table_, beside, *side.slots,
                                                             CacheOptions(setting_, of_, static_cast<int>(r))));
    options.inbox = side.cache->inbox();
    options.hidden_layers = side.cache->hidden_layers();
    options.shares_gpu = std::any_of(ranks_.begin(), ranks_.end(), [&](const EngineRank& other) {
      return other.cache_device != nullptr && other.cache_device->ordinal() == rank.device->ordinal();
    });
    options.cache = &side.cache->colocated();
  }
  WINNOW_ASSIGN_OR_RETURN(side.graph, DecodeGraph::Create(*rank.device, *side.layers, *side.slots, options));
  WINNOW_RETURN_IF_ERROR(SetRows(*side.graph));
  return side.graph->Prepare(of_.batch);
}

// Random rows in all slots, but where those of the cache's sequences follow.
absl::Status DecodeBatch::FillSlots(device::Device& device, DecodeSlots& slots) {
  const DecodeSlotShape& shape = slots.shape();
  if (of_.placement == KvPlacement::kColocated) return absl::OkStatus();
  const device::Stream stream = device.NewStream();
  const size_t row_elements = shape.layout.row.elements(shape.layout.head_dim);
  std::unique_ptr<device::DeviceMemory> staging;
  if (shape.layout.dtype != Dtype::kBf16) {
    WINNOW_ASSIGN_OR_RETURN(staging, device.Allocate(kFillRows * row_elements * DtypeBytes(Dtype::kBf16)));
  }
  for (size_t first = 0; first < shape.num_slots(); first += kFillRows) {
    const size_t rows = std::min(kFillRows, shape.num_slots() - first);
    auto* const to = static_cast<std::byte*>(slots.slot_pool()) + first * shape.row_bytes();
    void* const bf16 = staging == nullptr ? to : staging->data();
    table_.elementwise->fill_normal(stream, bf16, rows * row_elements, setting_.seed + 2 + first, 1.0f);
    if (staging == nullptr) continue;
    table_.attention->quantize_rows(stream, bf16, static_cast<int>(rows), shape.layout.head_dim, shape.layout.dtype, to,
                                    slots.scales() + 2 * first);
  }
  WINNOW_RETURN_IF_ERROR(device.Synchronize(stream));
  if (of_.placement != KvPlacement::kFixed) return absl::OkStatus();
  return slots.SelectRange(shape.sinks, shape.max_budget, setting_.seed);
}

absl::Status DecodeBatch::SetRows(DecodeGraph& graph) {
  std::vector<std::optional<DecodeRow>> rows;
  for (int i = 0; i < of_.batch; ++i) {
    // Tokens that are drawn, not the largest: what generates text does that, and no row falls into a loop.
    rows.push_back(
        DecodeRow{.token_id = static_cast<uint32_t>(1000 + i),
                  .position = setting_.context_tokens,
                  .sampling = {.temperature = 1, .sample_index = static_cast<uint32_t>(i), .seed = setting_.seed},
                  .prompt_tokens = setting_.context_tokens});
  }
  return graph.SetRows(rows);
}

absl::Status DecodeBatch::Synchronize() const {
  for (const EngineRank& rank : ranks_) {
    WINNOW_RETURN_IF_ERROR(rank.device->SynchronizeAll());
    if (rank.cache_device != nullptr) WINNOW_RETURN_IF_ERROR(rank.cache_device->SynchronizeAll());
  }
  return absl::OkStatus();
}

absl::Status DecodeBatch::Step() {
  const DecodeMode mode = ModeOf(of_.placement);
  for (Side& side : sides_) {
    if (mode == DecodeMode::kDisaggregated) WINNOW_RETURN_IF_ERROR(side.cache->LaunchPlan());
    if (mode == DecodeMode::kColocated) WINNOW_RETURN_IF_ERROR(side.cache->colocated().CountPlan());
    WINNOW_RETURN_IF_ERROR(side.graph->Step(of_.batch));
  }
  return absl::OkStatus();
}

absl::Status DecodeBatch::CheckWaits() const {
  for (const Side& side : sides_) {
    WINNOW_RETURN_IF_ERROR(side.graph->WaitError());
    if (side.cache != nullptr) WINNOW_RETURN_IF_ERROR(side.cache->WaitError());
  }
  return absl::OkStatus();
}

absl::StatusOr<double> DecodeBatch::TimeSteps() {
  std::vector<double> times;
  for (int group = 0; group < kTimedSteps / kGroupSteps; ++group) {
    absl::Status status;
    WINNOW_ASSIGN_OR_RETURN(const double us, ranks_[0].device->TimeUs(sides_[0].graph->stream(), [&](device::Stream) {
      for (int i = 0; i < kGroupSteps && status.ok(); ++i) status = Step();
    }));
    WINNOW_RETURN_IF_ERROR(status);
    WINNOW_RETURN_IF_ERROR(Synchronize());
    if (group >= kWarmUpGroups) times.push_back(us / kGroupSteps);
  }
  WINNOW_RETURN_IF_ERROR(CheckWaits());
  return Median(std::move(times));
}

absl::Status DecodeBatch::SetQueryStrength(double strength) {
  for (size_t r = 0; r < sides_.size(); ++r) {
    const std::vector<float> bias = QueryBias(setting_.shard(), strength, setting_.seed + r);
    WINNOW_RETURN_IF_ERROR(ranks_[r].weights->SetQueryBias(*ranks_[r].device, sides_[r].graph->stream(), bias));
    WINNOW_RETURN_IF_ERROR(sides_[r].cache->SetQueryBias(bias));
  }
  return absl::OkStatus();
}

absl::StatusOr<SelectedLists> DecodeBatch::Selections() {
  const DecodeSlots& slots = *sides_[0].slots;
  const DecodeSlotShape& shape = slots.shape();
  WINNOW_RETURN_IF_ERROR(Synchronize());
  SelectedLists selected{.stride = shape.max_budget};
  selected.entries.resize(shape.num_selections() * shape.max_budget);
  std::vector<device::AttentionList> lists(shape.num_selections());
  device::Device& device = *ranks_[0].device;
  const device::Stream stream = sides_[0].graph->stream();
  device.CopyAsync(selected.entries.data(), slots.inbox().pool_indices, selected.entries.size() * sizeof(uint32_t),
                   stream);
  device.CopyAsync(lists.data(), slots.inbox().lists, lists.size() * sizeof(lists[0]), stream);
  WINNOW_RETURN_IF_ERROR(device.Synchronize(stream));
  WINNOW_RETURN_IF_ERROR(CheckWaits());
  for (const device::AttentionList& list : lists) selected.counts.push_back(list.selected_count);
  return selected;
}

uint32_t DecodeBatch::SelectedLimit() const {
  const DecodeSlotShape& shape = sides_[0].slots->shape();
  return shape.holds_everything() ? shape.dense_tokens : shape.pool_slots;
}

absl::StatusOr<uint64_t> DecodeBatch::TouchedExperts() {
  uint64_t touched = 0;
  if (sides_[0].layers->touched_experts() == nullptr) return touched;
  const device::Stream stream = sides_[0].graph->stream();
  ranks_[0].device->CopyAsync(&touched, sides_[0].layers->touched_experts(), sizeof(touched), stream);
  WINNOW_RETURN_IF_ERROR(ranks_[0].device->Synchronize(stream));
  return touched;
}

absl::StatusOr<uint64_t> DecodeBatch::PushedRows() {
  uint64_t rows = 0;
  for (Side& side : sides_) {
    WINNOW_ASSIGN_OR_RETURN(const uint64_t pushed, side.cache->PushedRows());
    rows += pushed;
  }
  return rows;
}

absl::StatusOr<double> DecodeBatch::TimeParts(DecodeParts parts) {
  constexpr int kLaunches = 3, kRepeats = 5;
  DecodeGraph& graph = *sides_[0].graph;
  WINNOW_RETURN_IF_ERROR(SetRows(graph));
  WINNOW_ASSIGN_OR_RETURN(const auto captured, graph.Capture(of_.batch, parts));
  std::vector<double> times;
  for (int i = 0; i < kRepeats + 1; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const double us, ranks_[0].device->TimeUs(graph.stream(), [&](device::Stream stream) {
      for (int k = 0; k < kLaunches; ++k) captured->Launch(stream);
    }));
    if (i > 0) times.push_back(us / kLaunches);
  }
  return Median(std::move(times));
}

}  // namespace winnow
