#include "cache_rank/step/step_rows_intake.h"

#include <cstring>

#include "cache_rank/step/frame_checks.h"
#include "common/base/kv_shard.h"
#include "common/selection/selection_spec.h"
#include "transport/wire/wire.h"

namespace winnow {

absl::Status StepRowsIntake::Take(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const TimelineSpan span(metrics_->timeline, Span::kAppend, kNoLayer, 0, header.row_count);
  const size_t entry_bytes = size_t{header.row_count} * sizeof(wire::StepRowEntry);
  WINNOW_RETURN_IF_ERROR(CheckPayload(frame, entry_bytes));
  size_t end = wire::AlignUp(entry_bytes, wire::kRowAlignment);
  for (uint32_t i = 0; i < header.row_count; ++i) {
    wire::StepRowEntry entry;
    std::memcpy(&entry, frame.payload().data() + i * sizeof entry, sizeof entry);
    const KvShard shard{.first_kv_head = entry.first_kv_head,
                        .num_kv_heads = entry.num_kv_heads,
                        .first_layer = entry.first_layer,
                        .num_layers = entry.num_layers};
    WINNOW_RETURN_IF_ERROR(CheckShard(layout_, shard));
    const size_t first = end;
    end += shard.num_lists() * layout_.row_bytes();
    WINNOW_RETURN_IF_ERROR(CheckPayload(frame, end));
    TakeEntry(link, entry, shard, frame.payload().data() + first);
  }
  metrics_->plans.Add(1);
  streamer_->Pump(link);
  return absl::OkStatus();
}

void StepRowsIntake::TakeEntry(InferenceLink& link, const wire::StepRowEntry& entry, const KvShard& shard,
                               const std::byte* rows) {
  CachedSequence* sequence = fence_->Holder(link, entry.sequence_id, entry.attach_epoch);
  if (sequence == nullptr) return;
  peer_links_->TakeStagedOf(link, sequence->id);  // rows of the prompt come before these
  // Where a sequence needs more than rows to go on here or elsewhere, it goes back to where that is (RestartPosition).
  const bool fits = sequence->shard == shard && !WaitsForVerification(sequence->spec);
  if (!fits || !sequence->kv.AppendOfLayers(entry.position, rows, *executor_).ok()) {
    selector_->Refuse(link, 0, *sequence, 0);
    return;
  }
  sequence->journal.Record(entry.position, entry.token_id);
  metrics_->appended_rows.Add(shard.num_lists());
  streamer_->SendWatermark(link, 0, *sequence);
}

}  // namespace winnow
