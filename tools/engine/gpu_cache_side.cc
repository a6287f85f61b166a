#include "tools/engine/gpu_cache_side.h"

#include <algorithm>

#include "cache_rank/select/device/select_params.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/model/rope.h"

namespace winnow {
namespace {

constexpr uint32_t kFillTokens = 4096;  // appended at once

DeviceWeightOptions QueryWeightOptions(const GpuCacheSideOptions& options) {
  return {.dtype = options.weights, .shard = options.shard, .parts = WeightParts::kQueryProjections};
}

// Rows of int8 in place are the store's as they are; others come as they are computed.
Dtype StoredDtype(const GpuCacheSideOptions& options) {
  return options.rows == RowTier::kInPlace && options.kv == Dtype::kI8 ? Dtype::kI8 : Dtype::kBf16;
}

}  // namespace

size_t GpuCacheSide::WeightBytes(const device::DeviceTable& table, const GpuCacheSideOptions& options) {
  if (options.spec.predictor != Predictor::kDepth) return 0;
  return DeviceWeightBytes(table, options.config, QueryWeightOptions(options));
}

DeviceKvShape GpuCacheSide::StoreShape(const GpuCacheSideOptions& options) {
  const uint32_t tokens = options.context_tokens + options.max_steps;
  DeviceKvShape shape =
      DeviceKvShapeFor(options.spec, ShardConfig(options.config, options.shard).kv_layout(StoredDtype(options)),
                       options.num_sequences, tokens, uint64_t{tokens} * options.num_sequences, options.rows);
  shape.dram_blocks = options.dram_sequences * shape.BlocksOf(tokens);
  return shape;
}

GpuCacheSide::GpuCacheSide(const device::DeviceTable& table, device::Device& device, const GpuCacheSideOptions& options)
    : table_(table), device_(device), options_(options), stream_(device.NewStream(true)) {}

absl::StatusOr<std::unique_ptr<GpuCacheSide>> GpuCacheSide::Create(const device::DeviceTable& table,
                                                                   device::Device& device, const DecodeSlots& slots,
                                                                   const GpuCacheSideOptions& options) {
  std::unique_ptr<GpuCacheSide> side(new GpuCacheSide(table, device, options));
  DeviceKvShape shape = StoreShape(options);
  const bool in_place = options.rows == RowTier::kInPlace;
  if (in_place) shape.num_blocks = slots.shape().num_slots() / kBlockTokens;
  device::ExchangeShape exchange = slots.shape().exchange();
  exchange.layout.dtype = shape.layout.dtype;  // rows come as they are computed, whatever slots hold
  const bool readable = slots.shape().layout.dtype == shape.layout.dtype;
  WINNOW_RETURN_IF_ERROR(CheckDeviceMemory(shape, device.info().free_bytes));
  WINNOW_ASSIGN_OR_RETURN(side->inbox_memory_, device.Allocate(CacheInboxBytes(exchange)));
  side->inbox_ = CacheInboxAt(exchange, side->inbox_memory_->data());
  side->peer_ = slots.inbox();
  device.FillAsync(side->inbox_memory_->data(), 0, side->inbox_memory_->bytes(), side->stream_);
  if (options.spec.predictor == Predictor::kDepth) {
    WINNOW_ASSIGN_OR_RETURN(side->weights_,
                            DeviceWeights::Synthesize(table, device, options.config, options.weight_seed,
                                                      /*query_bias=*/true, QueryWeightOptions(options)));
  }
  WINNOW_ASSIGN_OR_RETURN(
      side->store_, DeviceKvStore::Create(&table, &device, shape, in_place && readable ? slots.slot_pool() : nullptr,
                                          slots.scales()));
  WINNOW_ASSIGN_OR_RETURN(side->plan_,
                          DevicePlan::Create(&table, &device, side->store_.get(), options.spec, options.max_rows));
  const RopeTable rope = RopeOfHeads(options.config, options.config.rope);
  const DeviceSelection::Model model{.rope = {rope.inv_freq, rope.attention_factor},
                                     .attention_scale = AttentionScale(options.config),
                                     .queries = side->weights_.get()};
  WINNOW_ASSIGN_OR_RETURN(
      side->selection_, DeviceSelection::Create(&table, &device, side->store_.get(), side->plan_.get(), model, exchange,
                                                in_place ? &side->peer_ : nullptr));
  WINNOW_ASSIGN_OR_RETURN(side->graph_, SelectGraph::Create(&table, &device, side->store_.get(), side->plan_.get(),
                                                            side->selection_.get(), side->inbox_, side->peer_, {}));
  const PlanBucket bucket{.num_rows = options.max_rows,
                          .max_keys = shape.max_positions,
                          .none_below = NoneBelow(options.spec, options.context_tokens)};
  side->colocated_ = std::make_unique<ColocatedSelection>(device, *side->plan_, *side->selection_, bucket, side->inbox_,
                                                          side->peer_, options.config.num_layers);
  WINNOW_RETURN_IF_ERROR(side->FillSequences(slots));
  return side;
}

absl::Status GpuCacheSide::FillSequences(const DecodeSlots& slots) {
  for (int row = 0; row < options_.num_sequences; ++row) WINNOW_RETURN_IF_ERROR(FillSequence(slots, row));
  plan_->Upload(stream_);
  return device_.Synchronize(stream_);
}

absl::Status GpuCacheSide::FillSequence(const DecodeSlots& slots, int row) {
  const KvLayout& layout = store_->shape().layout;
  const uint32_t context = options_.context_tokens;
  const bool in_place = options_.rows == RowTier::kInPlace;
  WINNOW_ASSIGN_OR_RETURN(const uint32_t sequence,
                          in_place ? OpenInPlace(slots, row) : store_->Open(context + options_.max_steps, stream_));
  const size_t row_elements = 2 * static_cast<size_t>(layout.head_dim) * layout.num_kv_heads;
  WINNOW_ASSIGN_OR_RETURN(const auto rows, device_.Allocate(kFillTokens * row_elements * DtypeBytes(Dtype::kBf16)));
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (uint32_t first = 0; first < context; first += kFillTokens) {
      const uint32_t count = std::min(kFillTokens, context - first);
      const uint64_t number = (uint64_t{sequence} * layout.num_layers + layer) * context + first;
      table_.elementwise->fill_normal(stream_, rows->data(), count * row_elements, options_.kv_seed + number, 1.0f);
      if (in_place && slots.shape().layout.dtype != Dtype::kBf16) {
        WINNOW_RETURN_IF_ERROR(QuantizeIntoSlots(slots, row, layer, first, count, rows->data()));
      }
      const bool lie_there = layout.dtype == Dtype::kI8;
      WINNOW_RETURN_IF_ERROR(
          store_->AppendRange(sequence, layer, first, count, lie_there ? nullptr : rows->data(), stream_));
    }
  }
  if (const uint32_t past = std::min(store_->shape().ring_queries, context); past > 0) {
    const size_t bytes = size_t{past} * layout.num_query_heads * layout.head_dim * sizeof(float);
    WINNOW_ASSIGN_OR_RETURN(const auto queries, device_.Allocate(bytes));
    device_.FillAsync(queries->data(), 0, bytes, stream_);
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      WINNOW_RETURN_IF_ERROR(
          store_->LoadPastQueries(sequence, layer, context, past, static_cast<const float*>(queries->data()), stream_));
    }
    WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
  }
  if (in_place) {
    plan_->SetRow(row, sequence, context, {}, context);
    return device_.Synchronize(stream_);
  }
  // The pages of each list up to its pool's end.
  std::vector<uint32_t> pages;
  const uint32_t per_list = slots.shape().pages_per_list(), to_pool_end = slots.shape().ring_base() / kSlotPageTokens;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const auto first = slots.host_pages().begin() + static_cast<int64_t>(slots.list(layer, row, head) * per_list);
      pages.insert(pages.end(), first, first + to_pool_end);
    }
  }
  WINNOW_RETURN_IF_ERROR(store_->SetPeerPages(sequence, pages, stream_));
  const std::vector<uint32_t> pool_bases(layout.num_lists(), slots.shape().pool_base());
  plan_->SetRow(row, sequence, context, {.slot_pool = slots.slot_pool(), .pool_bases = pool_bases}, context);
  return device_.Synchronize(stream_);
}

absl::Status GpuCacheSide::QuantizeIntoSlots(const DecodeSlots& slots, int row, int layer, uint32_t first,
                                             uint32_t count, const void* rows) {
  const KvLayout& layout = slots.shape().layout;
  const uint32_t per_list = slots.shape().pages_per_list();
  std::vector<uint32_t> numbers;
  for (int head = 0; head < layout.num_kv_heads; ++head) {
    const size_t pages = slots.list(layer, row, head) * per_list;
    for (uint32_t position = first; position < first + count; ++position) {
      numbers.push_back(slots.host_pages()[pages + position / kSlotPageTokens] * kSlotPageTokens +
                        position % kSlotPageTokens);
    }
  }
  const size_t num_rows = numbers.size(), row_bytes = slots.shape().row_bytes();
  if (quantized_ == nullptr) {
    const size_t most = static_cast<size_t>(kFillTokens) * layout.num_kv_heads;
    WINNOW_ASSIGN_OR_RETURN(quantized_, device_.Allocate(most * (row_bytes + 2 * sizeof(float) + sizeof(uint32_t))));
  }
  auto* const to = static_cast<std::byte*>(quantized_->data());
  auto* const scales = reinterpret_cast<float*>(to + num_rows * row_bytes);
  auto* const on_device = reinterpret_cast<uint32_t*>(scales + 2 * num_rows);
  device_.CopyAsync(on_device, numbers.data(), num_rows * sizeof(uint32_t), stream_);
  table_.attention->quantize_rows(stream_, rows, static_cast<int>(num_rows), layout.head_dim, layout.dtype, to, scales);
  table_.step->scatter_rows(stream_, {.rows = to,
                                      .scales = scales,
                                      .slots = on_device,
                                      .num_rows = static_cast<int>(num_rows),
                                      .row_bytes = row_bytes,
                                      .slot_pool = slots.slot_pool(),
                                      .slot_scales = slots.scales()});
  return device_.CheckLaunches();
}

absl::StatusOr<uint32_t> GpuCacheSide::OpenInPlace(const DecodeSlots& slots, int row) {
  const KvLayout& layout = store_->shape().layout;
  const uint32_t positions = options_.context_tokens + options_.max_steps;
  const auto per_list = static_cast<int64_t>(store_->shape().BlocksOf(positions) / layout.num_lists());
  std::vector<uint32_t> blocks;
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const std::vector<uint32_t> of_list = slots.BlocksOf(slots.list(layer, row, head));
      blocks.insert(blocks.end(), of_list.begin(), of_list.begin() + per_list);
    }
  }
  WINNOW_RETURN_IF_ERROR(
      store_->OpenAt(static_cast<uint32_t>(row), positions, blocks, store_->shape().own_index(), stream_));
  return static_cast<uint32_t>(row);
}

absl::Status GpuCacheSide::SetQueryBias(const std::vector<float>& bias) {
  return weights_ == nullptr ? absl::OkStatus() : weights_->SetQueryBias(device_, stream_, bias);
}

absl::Status GpuCacheSide::LaunchPlan() {
  return graph_->Launch(stream_);
}

absl::Status GpuCacheSide::WaitError() const {
  if (graph_->error() == 0) return absl::OkStatus();
  return absl::DeadlineExceededError("the inference rank's GPU sent nothing in time");
}

absl::StatusOr<uint64_t> GpuCacheSide::PushedRows() {
  uint64_t rows = 0;
  device_.CopyAsync(&rows, selection_->pushed_rows(), sizeof(rows), stream_);
  WINNOW_RETURN_IF_ERROR(device_.Synchronize(stream_));
  return rows;
}

absl::StatusOr<double> GpuCacheSide::TimeActions(SelectAction::Kind kind) {
  WINNOW_ASSIGN_OR_RETURN(const auto graph, device_.Capture(stream_, [&](device::Stream stream) {
    for (const SelectAction& action : colocated_->order()) {
      if (action.kind == kind) colocated_->Enqueue(stream, action);
    }
  }));
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    WINNOW_ASSIGN_OR_RETURN(times.emplace_back(),
                            device_.TimeUs(stream_, [&](device::Stream stream) { graph->Launch(stream); }));
  }
  std::nth_element(times.begin(), times.begin() + 3, times.end());
  return times[3];
}

}  // namespace winnow
