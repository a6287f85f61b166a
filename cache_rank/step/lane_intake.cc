#include "cache_rank/step/lane_intake.h"

#include <cmath>
#include <span>

#include "cache_rank/step/plan_rows.h"
#include "common/base/kv_layout.h"
#include "transport/wire/wire.h"

namespace winnow {
namespace {

constexpr size_t kMaxSeatRequests = 256;  // a lane has 64 seats, and each is asked for by one sequence at a time

// Rows of a plan fill arrays by seat: each has one of its own, of those that there are.
absl::Status CheckSeats(std::span<const wire::PlanRow> rows, int num_seats) {
  std::vector<bool> taken(num_seats);
  for (const wire::PlanRow& row : rows) {
    const uint32_t seat = row.flags;
    if (seat >= taken.size()) {
      return absl::InvalidArgumentError(absl::StrCat("a row in seat ", seat, " of a lane with ", num_seats, " seats"));
    }
    if (taken[seat]) return absl::InvalidArgumentError(absl::StrCat("two rows of a plan in seat ", seat));
    taken[seat] = true;
  }
  return absl::OkStatus();
}

}  // namespace

// A row that cannot be served concerns its sequence alone: the plan runs without it, as the peer has begun it.
absl::Status LaneIntake::HandlePlan(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (link.lane == nullptr) return absl::InvalidArgumentError("a plan on a lane that there is not");
  WINNOW_RETURN_IF_ERROR(ReadPlanRows(frame, &plan_rows_));
  WINNOW_RETURN_IF_ERROR(CheckSeats(plan_rows_, link.lane->num_seats()));
  // Before it is asked who sits: plans that have ended may be the last to hold what a seat refers to.
  TakeRows(link, /*wait=*/false);
  metrics_->plans.Add(1);
  metrics_->lane_plans.Add(1);
  rows_.clear();
  for (const wire::PlanRow& row : plan_rows_) {
    CachedSequence* sequence = fence_->Holder(link, row.sequence_id, row.attach_epoch);
    if (sequence == nullptr) continue;
    const DeviceLane::Row on_lane{.sequence_id = row.sequence_id,
                                  .attach_epoch = row.attach_epoch,
                                  .position = row.position,
                                  .seat = static_cast<int>(row.flags)};
    if (!link.lane->Sits(on_lane) || row.position >= sequence->kv.max_positions()) {
      selector_->Refuse(link, header.plan, *sequence, 0);
      continue;
    }
    sequence->journal.Record(row.position, row.token_id);
    rows_.push_back(on_lane);
  }
  const absl::Status launched = link.lane->Launch(header.apply_position, rows_);
  if (absl::IsInvalidArgument(launched)) return launched;
  link.Fail(launched);
  return absl::OkStatus();
}

absl::Status LaneIntake::HandleSeat(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (link.lane != nullptr && header.row_count >= static_cast<uint32_t>(link.lane->num_seats())) {
    return absl::InvalidArgumentError(
        absl::StrCat("seat ", header.row_count, " of a lane with ", link.lane->num_seats(), " seats is asked for"));
  }
  if (fence_->Holder(link, header.sequence_id, header.attach_epoch) == nullptr) return absl::OkStatus();
  if (link.seat_requests.size() >= kMaxSeatRequests) return absl::ResourceExhaustedError("too many wait for seats");
  const auto* pages = reinterpret_cast<const uint32_t*>(frame.payload().data());
  link.seat_requests.push_back({.sequence_id = header.sequence_id,
                                .attach_epoch = header.attach_epoch,
                                .position = header.apply_position,
                                .seat = header.row_count,
                                .pages = {pages, pages + frame.payload().size() / sizeof(uint32_t)}});
  return absl::OkStatus();
}

bool LaneIntake::RunSeats(PeerLink& link) {
  if (link.seat_requests.empty()) return false;
  SeatRequest& request = link.seat_requests.front();
  if (link.HasLanded(request.sequence_id)) return true;
  CachedSequence* sequence = store_->FindAttached(request.sequence_id, request.attach_epoch, link.id);
  if (sequence != nullptr) {
    absl::Status seated = absl::FailedPreconditionError("there is no lane");
    if (link.lane != nullptr && sequence->kv.watermark() == request.position) {
      if (!lanes_->Advance(*sequence)) return true;
      seated = link.lane->Seat(static_cast<int>(request.seat), *sequence, request.pages);
    }
    (seated.ok() ? metrics_->lane_seats : metrics_->lane_seats_refused).Add(1);
    streamer_->SendSeated(link, sequence->id, sequence->attach_epoch, request.seat, seated.ok());
    streamer_->Pump(link);
  }
  link.seat_requests.pop_front();
  return true;
}

void LaneIntake::TakeRows(PeerLink& link, bool wait) {
  if (link.lane == nullptr || !link.lane->has_plans()) return;
  const KvLayout layout = LayoutOf(layout_, link.lane->shard());
  link.lane->TakeRows(wait, [&](const DeviceLane::Row& row, const std::byte* kv, std::span<const float> masses,
                                const DeviceLane::RowCounts& counts) {
    // Whatever has become of the sequence.
    metrics_->selection_lookups.Add(counts.lookups);
    metrics_->selection_hits.Add(counts.lookups - counts.misses);
    metrics_->streamed_rows.Add(counts.sent);
    metrics_->streamed_bytes.Add(counts.sent * layout_.row_bytes());
    // One that was attached anew or released since goes on from the rows that were there then.
    CachedSequence* sequence = store_->FindAttached(row.sequence_id, row.attach_epoch, link.id);
    if (sequence == nullptr || sequence->shard != link.lane->shard()) return;
    // Nothing may be decoded behind a row that is missing.
    if (!sequence->kv.AppendOfLayers(row.position, kv, *executor_).ok()) {
      link.lane->Unseat(sequence->id);
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

absl::Status LaneIntake::HandleLanded(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const int layer = header.layer_first;
  if (link.lane == nullptr) return absl::InvalidArgumentError("rows on a lane that there is not");
  if (layer >= layout_.num_layers) return absl::InvalidArgumentError(absl::StrCat("rows of layer ", layer));
  const CachedSequence* sequence = fence_->Holder(link, header.sequence_id, header.attach_epoch);
  if (sequence != nullptr && sequence->shard != link.lane->shard()) {
    return absl::InvalidArgumentError("rows of other kv heads on a lane");
  }
  WINNOW_RETURN_IF_ERROR(link.lane->Land(header.plan, sequence, layer, header.apply_position, header.row_count));
  link.landed.push_back({.push = header.plan,
                         .sequence_id = sequence == nullptr ? 0 : header.sequence_id,
                         .attach_epoch = header.attach_epoch,
                         .first = header.apply_position,
                         .count = header.row_count,
                         .layer = layer});
  return absl::OkStatus();
}

void LaneIntake::TakeLanded(PeerLink& link, bool wait) {
  while (!link.landed.empty()) {
    const absl::StatusOr<const std::byte*> rows = link.lane->OldestLanded(wait);
    if (!rows.ok()) return link.Fail(rows.status());
    if (*rows == nullptr) return;
    const LandedRows landed = link.landed.front();
    link.landed.pop_front();
    CachedSequence* sequence = store_->FindAttached(landed.sequence_id, landed.attach_epoch, link.id);
    if (sequence != nullptr) prompts_->Append(link, *sequence, landed.layer, landed.first, landed.count, *rows);
    link.lane->PopLanded();
    streamer_->SendLandingFree(link, landed.push);
    streamer_->Pump(link);
    if (!wait) return;
  }
}

bool LaneIntake::MirrorPrefix(PeerLink& link) {
  if (link.to_mirror.empty()) return false;
  const CachedSequence* sequence = store_->Find(link.to_mirror.front());
  const bool is_here = sequence != nullptr && sequence->channel == link.id;
  // Rows that land from then on continue the mirror.
  if (!is_here || (lanes_->Advance(*sequence) && link.landed.empty())) link.to_mirror.pop_front();
  return !link.to_mirror.empty();
}

void LaneIntake::OnPromptRows(PeerLink& link, const CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                              const std::byte* rows) {
  if (lanes_ == nullptr || link.lane == nullptr || sequence.shard != link.lane->shard()) return;
  lanes_->OnRows(sequence, layer, first, count, rows);
}

}  // namespace winnow
