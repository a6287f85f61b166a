#include "cache_rank/store/device/device_kv_shape.h"

#include <algorithm>
#include <cmath>

#include "cache_rank/select/predictor/from_past.h"
#include "common/base/gibibytes.h"
#include "common/base/status.h"
#include "common/selection/attended_set.h"
#include "common/selection/page_groups.h"
#include "common/selection/spec_traits.h"

namespace winnow {
namespace {

size_t BlockRowBytes(const DeviceKvShape& shape) {
  return shape.layout.block_bytes();
}

// Of the copied keys, without their scales.
size_t BlockKeyBytes(const DeviceKvShape& shape) {
  return shape.key_copy ? kBlockTokens * shape.layout.head_dim * DtypeBytes(Dtype::kF8) : 0;
}

size_t BlockKeyCopyBytes(const DeviceKvShape& shape) {
  return BlockKeyBytes(shape) + (shape.key_copy ? kBlockTokens * sizeof(float) : 0);
}

size_t BlockBoundBytes(const DeviceKvShape& shape) {
  if (shape.page_tokens == 0) return 0;
  return static_cast<size_t>(device::PageBlockBytes(static_cast<int>(shape.page_tokens), shape.layout.head_dim));
}

// Of all sequences, and of the groups behind them that kernels read along (PageStore::group_bounds).
size_t GroupBoundBytes(const DeviceKvShape& shape) {
  if (!shape.page_groups) return 0;
  const size_t groups =
      shape.max_sequences * shape.layout.num_lists() * shape.blocks_per_list() / device::GroupBlocks(shape.page_tokens);
  return (groups + kGroupPages - 1) * 2 * shape.layout.head_dim * DtypeBytes(Dtype::kBf16);
}

}  // namespace

std::optional<DeviceIndex> IndexIn(const DeviceKvShape& shape, const SelectionSpec& spec) {
  const DeviceIndex own = shape.own_index();
  if (shape.rows != RowTier::kInPlace) return own;
  const DeviceIndex wanted{.key_copy = spec.key_copy != KeyCopy::kNone && shape.layout.dtype != Dtype::kI8,
                           .page_tokens = spec.scorer == Scorer::kToken ? 0 : spec.page_tokens,
                           .cuboids = spec.scorer == Scorer::kPageCuboid,
                           .page_groups = LeavesOutGroups(spec, shape.max_positions)};
  if (wanted.empty()) return wanted;
  const bool has_pages =
      wanted.page_tokens == 0 || (wanted.page_tokens == own.page_tokens && wanted.cuboids == own.cuboids);
  if (has_pages && own.key_copy >= wanted.key_copy && own.page_groups >= wanted.page_groups) return own;
  if (wanted.key_copy || wanted.page_groups) return std::nullopt;
  const auto bytes =
      static_cast<size_t>(device::PageBlockBytes(static_cast<int>(wanted.page_tokens), shape.layout.head_dim));
  return bytes <= OtherBoundsBytes(shape) ? std::optional(wanted) : std::nullopt;
}

size_t OtherBoundsBytes(const DeviceKvShape& shape) {
  return shape.key_copy ? BlockKeyBytes(shape) : BlockBoundBytes(shape);
}

bool LeavesOutGroups(const SelectionSpec& spec, uint32_t max_positions) {
  return spec.scorer == Scorer::kTwoStage && PageGroupsOf(spec, /*budget=*/0, 0, max_positions).leaves_out();
}

bool ScoresKeys(const SelectionSpec& spec) {
  return !SelectsWholePages(spec) || spec.policy == Policy::kMass;
}

absl::Status CheckDeviceSpec(const SelectionSpec& spec, RowTier rows) {
  const bool whole_pages = SelectsWholePages(spec);
  const bool in_place = rows == RowTier::kInPlace;
  const auto refuse = [](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat("a cache rank on a GPU cannot serve ", AbslSv(what)));
  };
  if (IsDense(spec)) return refuse("predictor dense");
  if (spec.predictor == Predictor::kFixed && !in_place) return refuse("predictor fixed");
  if (spec.predictor == Predictor::kFixed && spec.scorer != Scorer::kToken)
    return refuse("a scorer of predictor fixed");
  if (spec.prefetch != Prefetch::kNone) return refuse("prefetch");
  if (spec.scorer == Scorer::kHierarchical && spec.physical_page_tokens > 64) return refuse("such physical pages");
  if (spec.scorer != Scorer::kToken && spec.page_tokens > kBlockTokens) return refuse("pages of more than a block");
  if (whole_pages && spec.policy == Policy::kMass) {
    if (spec.key_copy != KeyCopy::kNone) return refuse("policy mass of whole pages by 8-bit keys");
    if (rows == RowTier::kPinnedHost) return refuse("policy mass of whole pages with rows in DRAM");
    if (spec.list_per == ListPer::kQueryHead) return refuse("policy mass of a list for each query head");
  }
  if (spec.stop_rule == StopRule::kBound) return refuse("stop_rule bound");
  if (spec.key_copy == KeyCopy::kInt4) return refuse("key_copy int4");
  const bool units_in_place = whole_pages && in_place;
  if (spec.list_per == ListPer::kQueryHead && !units_in_place) return refuse("list_per query-head");
  if (spec.reuse_interval != 1 && !units_in_place) return refuse("reuse_interval above 1");
  if (spec.dense_below_tokens > 0 && !in_place) return refuse("dense_below_tokens");
  if (spec.transfer == Transfer::kFull) return refuse("transfer full");
  if (WaitsForVerification(spec)) return refuse("min_captured_mass and correction");
  if (!units_in_place && HasStreamingHeads(spec)) return refuse("streaming heads");
  return absl::OkStatus();
}

DeviceKvShape DeviceKvShapeFor(const SelectionSpec& spec, const KvLayout& layout, uint32_t max_sequences,
                               uint32_t max_positions, uint64_t total_tokens, RowTier rows) {
  DeviceKvShape shape{.layout = layout,
                      .max_sequences = max_sequences,
                      .max_positions = max_positions,
                      // A sequence's last block may be begun only.
                      .num_blocks = (total_tokens / kBlockTokens + max_sequences) * layout.num_lists(),
                      // Sinks and a ring of the newest rows, of which up to some blocks are not on the cache rank yet.
                      .slots_beside = spec.sink_tokens + spec.recent_tokens + 4 * kBlockTokens,
                      .key_copy = spec.key_copy != KeyCopy::kNone,
                      .page_tokens = spec.scorer == Scorer::kToken ? 0 : spec.page_tokens,
                      .cuboids = spec.scorer == Scorer::kPageCuboid,
                      .page_groups = LeavesOutGroups(spec, max_positions),
                      .scores_keys = ScoresKeys(spec),
                      .rows = rows};
  if (rows == RowTier::kInPlace) shape.slots_beside = 0;
  for (size_t list = 0; list < layout.num_lists() && rows != RowTier::kInPlace; ++list) {
    shape.pool_slots = std::max(shape.pool_slots, PoolSlots(spec, list, max_positions, layout.group_size()));
  }
  if (PredictsFromPast(spec.predictor)) shape.ring_queries = RingQueries(spec);
  return shape;
}

DeviceKvBytes BytesOf(const DeviceKvShape& shape) {
  const size_t lists = shape.max_sequences * shape.layout.num_lists();
  const size_t query_floats = static_cast<size_t>(shape.layout.num_query_heads) * shape.layout.head_dim;
  const bool holds_rows = shape.rows == RowTier::kDevice || shape.rows == RowTier::kPinnedHost;
  return {.rows = holds_rows ? (shape.num_blocks - shape.dram_blocks) * BlockRowBytes(shape) : 0,
          .dram_rows = shape.dram_blocks * BlockRowBytes(shape),
          .key_copy = shape.num_blocks * BlockKeyCopyBytes(shape),
          .bounds = shape.num_blocks * BlockBoundBytes(shape),
          .group_bounds = GroupBoundBytes(shape),
          .tables = lists * (shape.blocks_per_list() + shape.peer_pages()) * sizeof(uint32_t) +
                    lists * sizeof(device::SelectionList),
          .residency = lists * 2 * shape.pool_slots * sizeof(uint32_t),
          .past_queries = size_t{shape.max_sequences} * shape.layout.num_layers * shape.ring_queries * query_floats *
                          sizeof(float)};
}

void FitBlocks(size_t device_bytes, size_t host_bytes, DeviceKvShape* shape) {
  shape->num_blocks = shape->dram_blocks = 0;
  const size_t fixed = BytesOf(*shape).index(), left = device_bytes - std::min(device_bytes, fixed);
  const size_t rows = BlockRowBytes(*shape), index = BlockKeyCopyBytes(*shape) + BlockBoundBytes(*shape);
  // Each has its index in the GPU's memory, and those in DRAM nothing else.
  shape->dram_blocks = host_bytes / rows;
  if (index > 0) shape->dram_blocks = std::min<uint64_t>(shape->dram_blocks, left / index);
  shape->num_blocks = shape->dram_blocks + (left - shape->dram_blocks * index) / (rows + index);
}

absl::Status CheckDeviceMemory(const DeviceKvShape& shape, size_t free_device_bytes) {
  const DeviceKvBytes bytes = BytesOf(shape);
  const bool rows_on_device = shape.rows == RowTier::kDevice;
  const size_t wanted = bytes.index() + (rows_on_device ? bytes.rows : 0);
  if (wanted <= free_device_bytes) return absl::OkStatus();
  const size_t fixed = bytes.group_bounds + bytes.tables + bytes.residency + bytes.past_queries;
  const size_t per_block =
      (rows_on_device ? BlockRowBytes(shape) : 0) + BlockKeyCopyBytes(shape) + BlockBoundBytes(shape);
  const uint64_t blocks = free_device_bytes > fixed && per_block > 0 ? (free_device_bytes - fixed) / per_block : 0;
  return absl::ResourceExhaustedError(absl::StrCat(
      "the KV of ", shape.num_blocks / shape.layout.num_lists() * kBlockTokens, " tokens of ", shape.max_sequences,
      " sequences takes ", Gibibytes(wanted), " of the GPU's memory and ", Gibibytes(free_device_bytes),
      " are free: ", rows_on_device ? "rows " + Gibibytes(bytes.rows) + ", " : "", "8-bit keys ",
      Gibibytes(bytes.key_copy), ", page bounds ", Gibibytes(bytes.bounds + bytes.group_bounds), ", tables ",
      Gibibytes(bytes.tables), ", images of the pools ", Gibibytes(bytes.residency), ", past queries ",
      Gibibytes(bytes.past_queries), "; ", blocks / shape.layout.num_lists() * kBlockTokens, " tokens would fit",
      rows_on_device && shape.key_copy ? ", or more with rows in DRAM" : ""));
}

}  // namespace winnow
