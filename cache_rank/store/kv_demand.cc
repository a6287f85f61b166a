#include "cache_rank/store/kv_demand.h"

#include "cache_rank/store/block_list.h"
#include "kernels/params/keys.h"

namespace winnow {
namespace {

size_t RoundUp64(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

absl::Status CheckIndex(const KvLayout& layout, const IndexLayout& index) {
  if (index.page_tokens > 0 && 2 * layout.head_dim > kMaxScoredHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", layout.head_dim, ": pages are indexed up to ", kMaxScoredHeadDim / 2));
  }
  if (index.key_dtype.has_value() && IndexedDim(layout, index) < 4) {
    return absl::InvalidArgumentError(absl::StrCat("head_dim is ", IndexedDim(layout, index), ": ",
                                                   DtypeName(*index.key_dtype), " keys need at least 4"));
  }
  return absl::OkStatus();
}

}  // namespace

IndexParts KeyParts(const KvLayout& layout, const IndexLayout& index) {
  // Keys of int8 are scored in their rows, but where these lie in a slower tier.
  if (!index.scores_keys && !(layout.dtype == Dtype::kI8 && index.page_tokens > 0)) return {};
  return {.tile_bytes = RoundUp64(IndexTileBytes(IndexedDim(layout, index), index.key_dtype.value_or(layout.dtype)))};
}

IndexParts PageParts(const KvLayout& layout, const IndexLayout& index) {
  return {.rows_bytes = RoundUp64(IndexTileBytes(2 * layout.head_dim, index.page_dtype().value_or(layout.dtype)))};
}

KvDemand DemandOf(const KvLayout& layout, const IndexLayout& index, const KvRetention& retention, uint32_t positions,
                  uint32_t shared) {
  const auto blocks = [&](uint32_t units, uint32_t shared_units) {
    return BlockList::BlocksFor(units) - shared_units / kBlockTokens;
  };
  const size_t rows = blocks(positions, shared);
  const size_t page_lists = index.page_tokens == 0 ? 0 : index.cuboid ? 2 : 1;
  const size_t pages = page_lists * blocks(CompletePages(index, positions), CompletePages(index, shared));
  KvDemand demand;
  for (size_t list = 0; list < layout.num_lists(); ++list) {
    if (retention.Streams(list)) {
      demand.blocks += retention.MostBlocks(positions);
      continue;
    }
    demand.blocks += rows + pages;
    demand.index_bytes += rows * KeyParts(layout, index).bytes() + pages * PageParts(layout, index).bytes();
  }
  return demand;
}

absl::Status CheckCanBeKept(const KvBlockPool& pool, const KvLayout& layout, const IndexLayout& index,
                            const KvRetention& retention, uint32_t positions) {
  WINNOW_RETURN_IF_ERROR(CheckIndex(layout, index));
  const KvDemand alone = DemandOf(layout, index, retention, positions);
  if (alone.blocks > pool.total()) {
    return absl::OutOfRangeError(absl::StrCat(
        positions, " positions in ", layout.num_layers, " layers of ", layout.num_kv_heads, " kv heads take ",
        alone.blocks, " blocks of ", pool.block_bytes(), " bytes, and the cache rank has ", pool.total(),
        " in all. Ask for fewer tokens (max_tokens), or raise --cache-memory (--memory of winnow cache-rank)"));
  }
  if (pool.tiers() == nullptr) return absl::OkStatus();
  const size_t layer_bytes = layout.num_kv_heads * layout.block_bytes();
  const size_t capacity = pool.tiers()->fast().capacity_bytes();
  if (alone.index_bytes + layer_bytes <= capacity) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("the index of ", positions, " positions takes ", alone.index_bytes,
                                            " bytes of the fast tier, and a block of each kv head of a layer ",
                                            layer_bytes, ": more than its ", capacity,
                                            ". Raise --fast-memory, or select by pages or with key_copy=int8 or int4"));
}

}  // namespace winnow
