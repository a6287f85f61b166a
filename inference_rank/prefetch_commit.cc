#include "inference_rank/prefetch_commit.h"

#include <cstring>

#include "inference_rank/payload_reader.h"

namespace winnow {

absl::StatusOr<uint32_t> CommitPrefetch(const KvLayout& layout, const KvShard& shard, const ReceivedFrame& frame,
                                        WorkingSet& working_set) {
  const int layer = frame.header().layer_first;
  if (!shard.HasLayer(layer)) return absl::InvalidArgumentError(absl::StrCat("prefetch of layer ", layer));
  size_t offset = 0;
  uint32_t rows = 0;
  for (uint32_t i = 0; i < frame.header().row_count; ++i) {
    PayloadReader reader(frame.payload(), offset);
    WINNOW_ASSIGN_OR_RETURN(auto entries, reader.Array<wire::DeltaEntry>(1, alignof(uint32_t)));
    wire::DeltaEntry entry;
    std::memcpy(&entry, entries.data(), sizeof entry);
    if (!shard.HasHead(entry.kv_head) || entry.num_selected != 0 || entry.num_local != 0) {
      return absl::InvalidArgumentError(absl::StrCat("prefetch entry of kv head ", entry.kv_head, " with ",
                                                     entry.num_selected, " selected and ", entry.num_local,
                                                     " local rows"));
    }
    WINNOW_ASSIGN_OR_RETURN(auto indices, reader.Array<uint32_t>(entry.num_streamed, alignof(uint32_t)));
    WINNOW_ASSIGN_OR_RETURN(auto bytes,
                            reader.Array<std::byte>(entry.num_streamed * layout.row_bytes(), wire::kRowAlignment));
    WINNOW_RETURN_IF_ERROR(working_set.CommitStreamed(layer, entry.kv_head, indices, bytes.data()));
    offset = reader.offset();
    rows += entry.num_streamed;
  }
  return rows;
}

}  // namespace winnow
