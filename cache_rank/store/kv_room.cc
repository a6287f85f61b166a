#include "cache_rank/store/kv_room.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cache_rank/store/row_tiers.h"
#include "cache_rank/store/state_snapshots.h"

namespace winnow {

uint64_t KvRoom::sequences() const {
  if (demand.blocks == 0) return 0;
  const uint64_t by_blocks = total_blocks / demand.blocks;
  return demand.index_bytes == 0 ? by_blocks : std::min<uint64_t>(by_blocks, fast_bytes / demand.index_bytes);
}

std::string KvRoom::ToString() const {
  const std::string index = fast_bytes == SIZE_MAX ? std::string()
                                                   : absl::StrCat(" and ", demand.index_bytes, " bytes of index, of ",
                                                                  fast_bytes, " in the fast tier");
  return absl::StrCat(demand.blocks, " blocks of ", block_bytes, " bytes each, of ", total_blocks, index);
}

absl::StatusOr<KvRoom> RoomFor(const KvLayout& layout, const SelectionSpec& spec, uint32_t positions,
                               size_t memory_bytes, size_t fast_memory_bytes, uint64_t state_bytes) {
  WINNOW_RETURN_IF_ERROR(CheckPoolMemory(memory_bytes, layout, layout.num_kv_heads));
  KvRoom room;
  room.block_bytes = BlockBytes(layout);
  room.total_blocks = std::min<size_t>(memory_bytes / room.block_bytes, UINT32_MAX);
  room.fast_bytes = SIZE_MAX;
  room.demand = DemandOf(layout, IndexLayoutFor(spec, layout.dtype), KvRetention::Of(spec, layout), positions);
  room.demand.blocks += StateSnapshots::BlocksFor(state_bytes, room.block_bytes);
  if (fast_memory_bytes == 0) return room;
  RowTiers::Options tiers;
  tiers.fast.memory_bytes = fast_memory_bytes;
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<RowTiers> made, RowTiers::Create(tiers, layout, nullptr, nullptr));
  room.fast_bytes = made->fast().capacity_bytes();
  return room;
}

}  // namespace winnow
