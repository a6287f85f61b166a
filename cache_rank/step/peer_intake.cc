#include "cache_rank/step/peer_intake.h"

#include <cmath>
#include <span>
#include <utility>

#include "cache_rank/step/plan_rows.h"
#include "common/base/kv_layout.h"
#include "transport/wire/wire.h"

namespace winnow {
namespace {

constexpr size_t kMaxBatchRowRequests =
    256;  // a peer link has 64 batch rows, and each is asked for by one sequence at a time

// Rows of a plan fill arrays by batch row: each has one of its own, of those that there are.
absl::Status CheckBatchRows(std::span<const wire::PlanRow> rows, int num_batch_rows) {
  std::vector<bool> taken(num_batch_rows);
  for (const wire::PlanRow& row : rows) {
    const uint32_t batch_row = row.flags;
    if (batch_row >= taken.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a row in batch row ", batch_row, " of a peer link with ", num_batch_rows, " batch rows"));
    }
    if (taken[batch_row])
      return absl::InvalidArgumentError(absl::StrCat("two rows of a plan in batch row ", batch_row));
    taken[batch_row] = true;
  }
  return absl::OkStatus();
}

}  // namespace

// A row that cannot be served concerns its sequence alone: the plan runs without it, as the peer has begun it.
absl::Status PeerIntake::HandlePlan(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (link.peer_link == nullptr) return absl::InvalidArgumentError("a plan over a peer link that there is not");
  WINNOW_RETURN_IF_ERROR(ReadPlanRows(frame, &plan_rows_));
  WINNOW_RETURN_IF_ERROR(CheckBatchRows(plan_rows_, link.peer_link->num_batch_rows()));
  // Before it is asked who has a batch row: plans that have ended may be the last to hold what a batch row refers to.
  TakeRows(link, /*wait=*/false);
  metrics_->plans.Add(1);
  metrics_->peer_plans.Add(1);
  rows_.clear();
  for (const wire::PlanRow& row : plan_rows_) {
    CachedSequence* sequence = fence_->Holder(link, row.sequence_id, row.attach_epoch);
    if (sequence == nullptr) continue;
    const DevicePeerLink::Row on_peer_link{.sequence_id = row.sequence_id,
                                           .attach_epoch = row.attach_epoch,
                                           .position = row.position,
                                           .batch_row = static_cast<int>(row.flags),
                                           .plan = header.plan};
    if (!link.peer_link->HasRow(on_peer_link) || row.position >= sequence->kv.max_positions()) {
      selector_->Refuse(link, header.plan, *sequence, 0);
      continue;
    }
    if (row.position > 0) sequence->journal.Record(row.position - 1, row.token_id);
    rows_.push_back(on_peer_link);
  }
  const TimelineSpan span(metrics_->timeline, Span::kLaunchStep, kNoLayer, header.plan,
                          static_cast<uint32_t>(rows_.size()));
  absl::Status launched = link.peer_link->Launch(header.apply_position, rows_);
  if (absl::IsInvalidArgument(launched)) return launched;
  link.Fail(std::move(launched));
  return absl::OkStatus();
}

absl::Status PeerIntake::HandleBatchRow(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (link.peer_link != nullptr && header.row_count >= static_cast<uint32_t>(link.peer_link->num_batch_rows())) {
    return absl::InvalidArgumentError(absl::StrCat("batch row ", header.row_count, " of a peer link with ",
                                                   link.peer_link->num_batch_rows(), " batch rows is asked for"));
  }
  if (fence_->Holder(link, header.sequence_id, header.attach_epoch) == nullptr) return absl::OkStatus();
  if (link.batch_row_requests.size() >= kMaxBatchRowRequests)
    return absl::ResourceExhaustedError("too many wait for batch rows");
  const auto* pages = reinterpret_cast<const uint32_t*>(frame.payload().data());
  link.batch_row_requests.push_back({.sequence_id = header.sequence_id,
                                     .attach_epoch = header.attach_epoch,
                                     .position = header.apply_position,
                                     .batch_row = header.row_count,
                                     .pages = {pages, pages + frame.payload().size() / sizeof(uint32_t)}});
  return absl::OkStatus();
}

bool PeerIntake::RunBatchRowRequests(InferenceLink& link) {
  if (link.batch_row_requests.empty()) return false;
  BatchRowRequest& request = link.batch_row_requests.front();
  if (link.HasStaged(request.sequence_id)) return true;
  CachedSequence* sequence = store_->FindAttached(request.sequence_id, request.attach_epoch, link.id);
  if (sequence != nullptr) {
    absl::Status answered = absl::FailedPreconditionError("there is no peer link");
    if (link.peer_link != nullptr && sequence->kv.watermark() == request.position) {
      if (!peer_links_->Advance(*sequence)) return true;
      answered = link.peer_link->AssignRow(static_cast<int>(request.batch_row), *sequence, request.pages);
    }
    (answered.ok() ? metrics_->peer_batch_rows : metrics_->peer_batch_rows_refused).Add(1);
    streamer_->SendBatchRowAnswer(link, sequence->id, sequence->attach_epoch, request.batch_row, answered.ok());
    streamer_->Pump(link);
  }
  link.batch_row_requests.pop_front();
  return true;
}

void PeerIntake::TakeRows(InferenceLink& link, bool wait) {
  if (link.peer_link == nullptr || !link.peer_link->has_plans()) return;
  const KvLayout layout = LayoutOf(layout_, link.peer_link->shard());
  link.peer_link->TakeRows(wait, [&](const DevicePeerLink::Row& row, const std::byte* kv, std::span<const float> masses,
                                     const DevicePeerLink::RowCounts& counts) {
    const TimelineSpan span(metrics_->timeline, Span::kAppend, kNoLayer, row.plan, 1);
    // Whatever has become of the sequence.
    metrics_->selection_lookups.Add(counts.lookups);
    metrics_->selection_hits.Add(counts.lookups - counts.misses);
    metrics_->streamed_rows.Add(counts.sent);
    metrics_->streamed_bytes.Add(counts.sent * layout_.row_bytes());
    // One that was attached anew or released since goes on from the rows that were there then.
    CachedSequence* sequence = store_->FindAttached(row.sequence_id, row.attach_epoch, link.id);
    if (sequence == nullptr || sequence->shard != link.peer_link->shard()) return;
    // Nothing may be decoded behind a row that is missing.
    if (!sequence->kv.AppendOfLayers(row.position, kv, *executor_).ok()) {
      link.peer_link->ReleaseRow(sequence->id);
      return selector_->Refuse(link, 0, *sequence, 0);
    }
    metrics_->appended_rows.Add(layout.num_lists());
    for (size_t list = 0; list < masses.size(); ++list) {
      if (std::isnan(masses[list])) continue;
      const int layer = sequence->layer_of_model(static_cast<int>(list) / layout.num_kv_heads);
      metrics_->ObserveCapturedMass(layer, masses[list], /*is_bound=*/false);
    }
    streamer_->SendWatermark(link, 0, *sequence);
  });
  streamer_->Pump(link);
}

absl::Status PeerIntake::HandleStaged(InferenceLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const int layer = header.layer_first;
  if (link.peer_link == nullptr) return absl::InvalidArgumentError("rows over a peer link that there is not");
  if (layer >= layout_.num_layers) return absl::InvalidArgumentError(absl::StrCat("rows of layer ", layer));
  const CachedSequence* sequence = fence_->Holder(link, header.sequence_id, header.attach_epoch);
  if (sequence != nullptr && sequence->shard != link.peer_link->shard()) {
    return absl::InvalidArgumentError("rows of other kv heads over a peer link");
  }
  WINNOW_RETURN_IF_ERROR(link.peer_link->Stage(header.plan, sequence, layer, header.apply_position, header.row_count));
  link.staged.push_back({.push = header.plan,
                         .sequence_id = sequence == nullptr ? 0 : header.sequence_id,
                         .attach_epoch = header.attach_epoch,
                         .first = header.apply_position,
                         .count = header.row_count,
                         .layer = layer});
  return absl::OkStatus();
}

void PeerIntake::TakeStaged(InferenceLink& link, bool wait) {
  while (!link.staged.empty()) {
    const absl::StatusOr<const std::byte*> rows = link.peer_link->OldestStaged(wait);
    if (!rows.ok()) return link.Fail(rows.status());
    if (*rows == nullptr) return;
    const StagedRows staged = link.staged.front();
    link.staged.pop_front();
    CachedSequence* sequence = store_->FindAttached(staged.sequence_id, staged.attach_epoch, link.id);
    if (sequence != nullptr) prompts_->Append(link, *sequence, staged.layer, staged.first, staged.count, *rows);
    link.peer_link->PopStaged();
    streamer_->SendStagingFree(link, staged.push);
    streamer_->Pump(link);
    if (!wait) return;
  }
}

bool PeerIntake::CopyPrefix(InferenceLink& link) {
  if (link.to_copy.empty()) return false;
  const CachedSequence* sequence = store_->Find(link.to_copy.front());
  const bool is_here = sequence != nullptr && sequence->channel == link.id;
  // Rows that arrive from then on continue the copy.
  if (!is_here || (peer_links_->Advance(*sequence) && link.staged.empty())) link.to_copy.pop_front();
  return !link.to_copy.empty();
}

void PeerIntake::OnPromptRows(InferenceLink& link, const CachedSequence& sequence, int layer, uint32_t first,
                              uint32_t count, const std::byte* rows) {
  if (peer_links_ == nullptr || link.peer_link == nullptr || sequence.shard != link.peer_link->shard()) return;
  peer_links_->OnRows(sequence, layer, first, count, rows);
}

}  // namespace winnow
