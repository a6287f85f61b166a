#include "inference_rank/step/prefetch_commit.h"

#include "inference_rank/step/entry_views.h"

namespace winnow {

absl::StatusOr<uint32_t> CommitPrefetch(const KvLayout& layout, const KvShard& shard, const ReceivedFrame& frame,
                                        WorkingSet& working_set, SelectionTrace* trace) {
  const int layer = frame.header().layer_first;
  if (!shard.HasLayer(layer)) return absl::InvalidArgumentError(absl::StrCat("prefetch of layer ", layer));
  size_t offset = 0;
  uint32_t rows = 0;
  for (uint32_t i = 0; i < frame.header().row_count; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const DeltaEntryView view, ReadDeltaEntry(frame.payload(), layout.row_bytes(), &offset));
    const wire::DeltaEntry& entry = view.entry;
    if (!shard.HasHead(entry.kv_head) || !view.selected.empty() || !view.local.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("prefetch entry of kv head ", entry.kv_head, " with ",
                                                     entry.num_selected, " selected and ", entry.num_local,
                                                     " local rows"));
    }
    WINNOW_RETURN_IF_ERROR(working_set.CommitStreamed(layer, entry.kv_head, view.streamed, view.rows.data()));
    if (trace != nullptr) trace->OnStreamed(layout.list(layer, entry.kv_head), view.streamed, view.positions);
    rows += entry.num_streamed;
  }
  return rows;
}

}  // namespace winnow
