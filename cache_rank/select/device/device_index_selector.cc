#include "cache_rank/select/device/device_index_selector.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cache_rank/select/device/select_params.h"
#include "common/base/status.h"
#include "common/selection/attended_set.h"

namespace winnow {
namespace {

constexpr uint32_t kPageTokens = 16;
constexpr uint32_t kChunkTokens = 1024;  // indexed at once
constexpr uint32_t kLeastKeys = 4096;    // of a launch: fewer grids are met

// True for specifications that one launch can serve together.
bool SelectAlike(const SelectionSpec& a, const SelectionSpec& b) {
  return a.scorer == b.scorer && a.policy == b.policy && a.epsilon == b.epsilon &&
         a.candidate_factor == b.candidate_factor && a.min_candidate_tokens == b.min_candidate_tokens &&
         a.score_all_below_tokens == b.score_all_below_tokens && a.group_candidate_tokens == b.group_candidate_tokens &&
         a.group_aggregation == b.group_aggregation && a.budget_tokens == b.budget_tokens;
}

// Index bytes of a block: fp8 keys, their scales, bounds of two pages.
size_t IndexBlockBytes(const KvLayout& layout) {
  return kBlockTokens * (layout.head_dim + sizeof(float)) + kBlockTokens / kPageTokens * 4 * layout.head_dim;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceIndexSelector>> DeviceIndexSelector::Create(const device::DeviceTable* table,
                                                                                 std::unique_ptr<device::Device> device,
                                                                                 const KvLayout& layout,
                                                                                 const SelectionModel& model,
                                                                                 const Options& options) {
  const int dim = layout.head_dim;
  if (layout.row != RowLayout()) {
    return absl::FailedPreconditionError("a GPU selects among rows of a key and a value, and not of latent attention");
  }
  if (layout.dtype != Dtype::kBf16) return absl::FailedPreconditionError("a GPU selects among rows of bf16 alone");
  if (dim != 64 && dim != 96 && dim != 128 && dim != 256) {
    return absl::FailedPreconditionError(absl::StrCat("a GPU selects with head_dim 64, 96, 128 or 256, not ", dim));
  }
  if (layout.group_size() > 8) {
    return absl::FailedPreconditionError(
        absl::StrCat("a GPU selects for at most 8 query heads to a kv head, not ", layout.group_size()));
  }
  std::unique_ptr<DeviceIndexSelector> selector(
      new DeviceIndexSelector(table, std::move(device), layout, model, options));
  WINNOW_RETURN_IF_ERROR(selector->Allocate());
  return selector;
}

DeviceIndexSelector::DeviceIndexSelector(const device::DeviceTable* table, std::unique_ptr<device::Device> device,
                                         const KvLayout& layout, const SelectionModel& model, const Options& options)
    : table_(table),
      device_(std::move(device)),
      layout_(layout),
      model_(model),
      options_(options),
      stream_(device_->NewStream(true)) {}

void DeviceIndexSelector::Carve(device::Arena& arena, Exchange& exchange) {
  exchange.rows = arena.TakeArray<uint16_t>(num_lists() * 2 * layout_.head_dim);
  exchange.queries =
      arena.TakeArray<float>(static_cast<size_t>(options_.max_items) * layout_.num_query_heads * layout_.head_dim);
  exchange.lists = arena.TakeArray<device::SelectionList>(num_lists());
  exchange.positions = arena.TakeArray<uint32_t>(num_lists());
  exchange.counts = arena.TakeArray<uint32_t>(num_lists());
  exchange.selected = arena.TakeArray<uint32_t>(num_lists() * options_.max_budget);
}

absl::Status DeviceIndexSelector::Allocate() {
  device::Arena counting(nullptr);
  Carve(counting, host_);
  WINNOW_ASSIGN_OR_RETURN(host_memory_, device_->AllocatePinned(counting.used_bytes()));
  WINNOW_ASSIGN_OR_RETURN(device_memory_, device_->Allocate(counting.used_bytes()));
  device::Arena host(host_memory_->data()), device(device_memory_->data());
  Carve(host, host_);
  Carve(device, device_side_);
  const size_t chunk_bytes = kChunkTokens * layout_.num_kv_heads * layout_.row_bytes();
  WINNOW_ASSIGN_OR_RETURN(host_chunk_, device_->AllocatePinned(chunk_bytes));
  WINNOW_ASSIGN_OR_RETURN(device_chunk_, device_->Allocate(chunk_bytes));

  DeviceKvShape shape{.layout = layout_,
                      .max_sequences = options_.max_sequences,
                      .max_positions = options_.max_positions,
                      .key_copy = true,
                      .page_tokens = kPageTokens,
                      .rows = RowTier::kIndexOnly};
  // Pages may be scored or not: the greater scratch.
  SelectionSpec two_stage;
  two_stage.scorer = Scorer::kTwoStage;
  device::SelectParams greatest = SelectParams(two_stage, 0, options_.max_items, options_.max_positions);
  greatest.pages = {.bounds = device_memory_->data(), .page_tokens = static_cast<int>(kPageTokens)};
  greatest.max_budget = options_.max_budget;
  const size_t scratch_bytes = table_->selection->select_scratch_bytes(greatest);
  WINNOW_ASSIGN_OR_RETURN(scratch_, device_->Allocate(scratch_bytes));
  device_->FillAsync(scratch_->data(), 0, scratch_bytes, stream_);

  const size_t tables = BytesOf(shape).tables + (size_t{1} << 20);
  const size_t free_bytes = device_->info().free_bytes - std::min(device_->info().free_bytes, scratch_bytes + tables);
  const size_t wanted = options_.memory_bytes > 0 ? options_.memory_bytes : free_bytes / 10 * 9;
  shape.num_blocks = wanted / IndexBlockBytes(layout_);
  if (shape.num_blocks < layout_.num_lists()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the GPU has ", free_bytes, " bytes left for the index of keys, not enough for one sequence"));
  }
  WINNOW_ASSIGN_OR_RETURN(store_, DeviceKvStore::Create(table_, device_.get(), shape));
  return device_->Synchronize(stream_);
}

bool DeviceIndexSelector::Takes(const CachedSequence& sequence) {
  const SelectionSpec& spec = sequence.spec;
  if (sequence.layout != layout_) return false;  // a shard
  const bool is_indexed = spec.scorer == Scorer::kToken || spec.scorer == Scorer::kTwoStage ||
                          (spec.scorer == Scorer::kPageMinmax && spec.policy == Policy::kTopK);
  if (!is_indexed || !CheckDeviceSpec(spec).ok() || spec.key_copy != KeyCopy::kInt8 ||
      spec.budget_tokens > options_.max_budget || !spec.head_budgets.empty() ||
      (spec.scorer != Scorer::kToken && spec.page_tokens != kPageTokens) ||
      LeavesOutGroups(spec, sequence.kv.max_positions())) {
    return false;
  }
  IndexedSequence& indexed = indexed_[sequence.id];
  if (indexed.rows.empty()) {
    const absl::StatusOr<uint32_t> place = store_->Open(sequence.kv.max_positions(), stream_);
    if (!place.ok()) {
      indexed_.erase(sequence.id);
      return false;
    }
    indexed.sequence = *place;
    indexed.attach_epoch = sequence.attach_epoch;
    indexed.rows.assign(layout_.num_layers, 0);
  }
  if (indexed.attach_epoch != sequence.attach_epoch) {  // rows may have been dropped and come again
    indexed.attach_epoch = sequence.attach_epoch;
    indexed.rows.assign(layout_.num_layers, 0);
  }
  return true;
}

void DeviceIndexSelector::Forget(uint64_t sequence_id) {
  const auto found = indexed_.find(sequence_id);
  if (found == indexed_.end()) return;
  store_->Release(found->second.sequence);
  indexed_.erase(found);
}

void DeviceIndexSelector::Retain(const std::function<bool(uint64_t)>& stays) {
  std::vector<uint64_t> gone;
  for (const auto& [id, indexed] : indexed_) {
    if (!stays(id)) gone.push_back(id);
  }
  for (const uint64_t id : gone) Forget(id);
}

// All rows below `end` but the last: that one goes with the batch's.
absl::Status DeviceIndexSelector::IndexUpTo(IndexedSequence& indexed, const CachedSequence& sequence, int layer,
                                            uint32_t end) {
  const size_t row_bytes = layout_.row_bytes();
  for (uint32_t& first = indexed.rows[layer]; first < end;) {
    const uint32_t count = std::min(kChunkTokens, end - first);
    for (int head = 0; head < layout_.num_kv_heads; ++head) {
      sequence.kv.CopyRows(layer, head, first, count,
                           static_cast<std::byte*>(host_chunk_->data()) + head * count * row_bytes);
    }
    device_->CopyAsync(device_chunk_->data(), host_chunk_->data(), layout_.num_kv_heads * count * row_bytes, stream_);
    WINNOW_RETURN_IF_ERROR(store_->AppendRange(indexed.sequence, layer, first, count, device_chunk_->data(), stream_));
    WINNOW_RETURN_IF_ERROR(device_->Synchronize(stream_));  // the chunk is filled again
    first += count;
  }
  return absl::OkStatus();
}

void DeviceIndexSelector::FillItem(int layer, size_t index, const Item& item) {
  const CachedSequence& sequence = *item.sequence;
  const IndexedSequence& indexed = indexed_.at(sequence.id);
  const size_t heads = layout_.num_kv_heads, floats = static_cast<size_t>(layout_.num_query_heads) * layout_.head_dim;
  std::copy_n(item.queries, floats, host_.queries + index * floats);
  const uint32_t last = WindowStart(sequence.spec, item.position, sequence.prompt_tokens);
  for (size_t head = 0; head < heads; ++head) {
    const size_t entry = index * heads + head, list = layout_.list(layer, static_cast<int>(head));
    const bool is_sparse = sequence.IsSparse(list, item.position);
    host_.lists[entry] = {.first_block = store_->FirstBlock(indexed.sequence, list),
                          .num_keys = item.position,
                          .first = sequence.spec.sink_tokens,
                          .last = is_sparse ? last : sequence.spec.sink_tokens,
                          .budget = HeadBudget(sequence.spec, list),
                          .query = static_cast<uint32_t>(entry)};
    // The newest row, unless it is indexed already.
    const bool is_new = indexed.rows[layer] < item.position;
    host_.positions[entry] = is_new ? item.position - 1 : ~0u;
    if (is_new) {
      sequence.kv.CopyRows(layer, static_cast<int>(head), item.position - 1, 1,
                           reinterpret_cast<std::byte*>(host_.rows + entry * 2 * layout_.head_dim));
    }
  }
}

device::SelectParams DeviceIndexSelector::SelectParams(const SelectionSpec& spec, size_t first, size_t count,
                                                       uint32_t max_keys) const {
  const size_t entry = first * layout_.num_kv_heads;
  device::SelectParams params{.lists = device_side_.lists + entry,
                              .num_lists = static_cast<int>(count) * layout_.num_kv_heads,
                              .keys = {},
                              .pages = {},
                              .head_dim = layout_.head_dim,
                              .group = layout_.group_size(),
                              .queries = device_side_.queries,
                              .scale = model_.attention_scale,
                              .max_keys = max_keys,
                              .max_budget = spec.budget_tokens,
                              .selected = device_side_.selected + entry * options_.max_budget,
                              .counts = device_side_.counts + entry};
  if (scratch_ != nullptr) params.scratch = scratch_->data();
  if (store_ != nullptr) {
    params.blocks = store_->blocks();
    params.keys = store_->keys();
    params.pages = store_->pages();
  } else {
    params.keys.dtype = Dtype::kF8;
  }
  DescribeSelection(spec, params);
  return params;
}

absl::Status DeviceIndexSelector::Select(int layer, std::span<const Item> items) {
  absl::Status status = SelectOrFail(layer, items);
  if (!status.ok()) options_.on_failure(status);
  return status;
}

absl::Status DeviceIndexSelector::SelectOrFail(int layer, std::span<const Item> items) {
  if (items.size() > static_cast<size_t>(options_.max_items))
    return absl::InvalidArgumentError("a larger batch than planned");
  uint32_t longest = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    IndexedSequence& indexed = indexed_.at(items[i].sequence->id);
    if (items[i].position > 0) {
      WINNOW_RETURN_IF_ERROR(IndexUpTo(indexed, *items[i].sequence, layer, items[i].position - 1));
    }
    FillItem(layer, i, items[i]);
    indexed.rows[layer] = std::max(indexed.rows[layer], items[i].position);
    longest = std::max(longest, items[i].position);
  }
  const auto* begin = reinterpret_cast<const std::byte*>(host_.rows);
  const auto* end = reinterpret_cast<const std::byte*>(host_.counts);
  device_->CopyAsync(device_side_.rows, begin, static_cast<size_t>(end - begin), stream_);

  const int heads = layout_.num_kv_heads;
  device::AppendParams append = store_->append_params();
  append.rows = device_side_.rows;
  append.num_lists = static_cast<int>(items.size()) * heads;
  append.positions = device_side_.positions;
  append.lists = device_side_.lists;
  table_->cache->append(stream_, append);
  const uint32_t max_keys = std::min(std::max(std::bit_ceil(longest), kLeastKeys), options_.max_positions);
  for (size_t first = 0; first < items.size();) {
    const SelectionSpec& spec = items[first].sequence->spec;
    size_t count = 1;
    while (first + count < items.size() && SelectAlike(items[first + count].sequence->spec, spec)) ++count;
    device::SelectParams params = SelectParams(spec, first, count, max_keys);
    params.none_below =
        std::all_of(items.begin() + static_cast<int64_t>(first), items.begin() + static_cast<int64_t>(first + count),
                    [&](const Item& item) { return NoneBelow(spec, item.position); });
    (spec.scorer == Scorer::kPageMinmax ? table_->selection->select_pages : table_->selection->select)(stream_, params);
    // Rows of a launch lie as wide as its budget.
    const size_t lists = count * heads, entry = first * heads;
    device_->CopyAsync(host_.selected + entry * options_.max_budget, params.selected,
                       lists * spec.budget_tokens * sizeof(uint32_t), stream_);
    first += count;
  }
  device_->CopyAsync(host_.counts, device_side_.counts, items.size() * heads * sizeof(uint32_t), stream_);
  WINNOW_RETURN_IF_ERROR(device_->Synchronize(stream_));

  for (size_t first = 0; first < items.size();) {
    const SelectionSpec& spec = items[first].sequence->spec;
    size_t count = 1;
    while (first + count < items.size() && SelectAlike(items[first + count].sequence->spec, spec)) ++count;
    for (size_t entry = first * heads; entry < (first + count) * heads; ++entry) {
      const Item& item = items[entry / heads];
      const size_t head = entry % heads;
      if (!item.sequence->IsSparse(layout_.list(layer, static_cast<int>(head)), item.position)) continue;
      const uint32_t* selected =
          host_.selected + first * heads * options_.max_budget + (entry - first * heads) * spec.budget_tokens;
      item.layer->heads[head].selected.assign(selected, selected + std::min(host_.counts[entry], spec.budget_tokens));
    }
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace winnow
