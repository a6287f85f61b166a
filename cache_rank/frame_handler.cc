#include "cache_rank/frame_handler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

constexpr size_t kMaxSeatRequests = 256;  // a lane has 64 seats, and each is asked for by one sequence at a time

absl::Status PayloadSize(const ReceivedFrame& frame, size_t expected) {
  if (frame.payload().size() >= expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("frame type ", static_cast<int>(frame.header().type), " has ",
                                                 frame.payload().size(), " bytes of payload, not ", expected));
}

KvShard ShardOf(const wire::PlanRow& row) {
  return {.first_kv_head = row.first_kv_head,
          .num_kv_heads = row.num_kv_heads,
          .first_layer = row.first_layer,
          .num_layers = row.num_layers};
}

}  // namespace

void FrameHandler::Handle(PeerLink& link, const ReceivedFrame& frame) {
  if (!link.failure.ok()) return;
  metrics_->frames_received.Add(1);
  absl::Status status;
  switch (frame.header().type) {
    case wire::FrameType::kStepPlan:
      status = HandleStepPlan(link, frame);
      break;
    case wire::FrameType::kSeat:
      status = HandleSeat(link, frame);
      break;
    case wire::FrameType::kLayer:
      status = HandleLayer(link, frame);
      break;
    case wire::FrameType::kAppendRange:
      status = HandleAppendRange(link, frame);
      break;
    case wire::FrameType::kLanded:
      status = HandleLanded(link, frame);
      break;
    case wire::FrameType::kPromptQueries:
      status = HandlePromptQueries(link, frame);
      break;
    case wire::FrameType::kTransferFailed:
    case wire::FrameType::kFenced:
      break;  // the peer detaches or re-attaches by itself
    default:
      status =
          absl::InvalidArgumentError(absl::StrCat("unexpected frame type ", static_cast<int>(frame.header().type)));
      break;
  }
  if (status.ok()) return;
  metrics_->frames_malformed.Add(1);
  link.Fail(status);
}

CachedSequence* FrameHandler::Holder(PeerLink& link, uint64_t sequence_id, uint32_t attach_epoch) {
  if (CachedSequence* sequence = store_->FindAttached(sequence_id, attach_epoch, link.id)) return sequence;
  metrics_->stale_epoch_rejected.Add(1);
  const CachedSequence* current = store_->Find(sequence_id);
  // A straggler from before the peer's own re-attach: telling it that it was fenced would make it drop what it holds.
  if (current != nullptr && current->channel == link.id) return nullptr;
  constexpr size_t kMaxRemembered = 4096;
  if (link.fenced.size() >= kMaxRemembered) link.fenced.clear();
  if (link.fenced.emplace(sequence_id, attach_epoch).second) {
    streamer_->SendFenced(link, sequence_id, current == nullptr ? 0 : current->attach_epoch);
  }
  return nullptr;
}

absl::Status FrameHandler::HandleStepPlan(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  WINNOW_RETURN_IF_ERROR(PayloadSize(frame, header.row_count * sizeof(wire::PlanRow)));
  if ((header.flags & wire::kPlanOnLane) != 0) return HandleLanePlan(link, frame);
  if (header.plan == 0 || link.FindPlan(header.plan) != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("plan ", header.plan, " was opened before"));
  }
  metrics_->plans.Add(1);
  OpenPlan& plan = link.plans[link.next_plan];
  link.next_plan = (link.next_plan + 1) % PeerLink::kOpenPlans;
  plan.plan = header.plan;
  plan.rows.clear();
  for (uint32_t i = 0; i < header.row_count; ++i) {
    wire::PlanRow row;
    std::memcpy(&row, frame.payload().data() + i * sizeof row, sizeof row);
    const KvShard shard = ShardOf(row);
    WINNOW_RETURN_IF_ERROR(CheckShard(layout_, shard));
    plan.rows.push_back({row.sequence_id, row.attach_epoch, row.position, shard});
    CachedSequence* sequence = Holder(link, row.sequence_id, row.attach_epoch);
    if (sequence == nullptr) continue;
    if (link.HasLanded(sequence->id)) TakeLanded(link, /*wait=*/true);  // a step reads rows
    if (sequence->seat.plan == header.plan) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", row.sequence_id, " is in plan ", header.plan, " twice"));
    }
    if (!Seat(link, *sequence, header.plan, i, row)) selector_->Refuse(link, header.plan, *sequence, 0);
  }
  selector_->OnPlan(link, plan);
  return absl::OkStatus();
}

bool FrameHandler::Seat(PeerLink&, CachedSequence& sequence, uint64_t plan, uint32_t row_index,
                        const wire::PlanRow& row) {
  if (row.position != sequence.kv.watermark() || row.position >= sequence.kv.max_positions()) return false;
  if (row.pool_slots != sequence.total_pool_slots || ShardOf(row) != sequence.shard) return false;
  const bool everything = (row.flags & wire::kPlanAttendsEverything) != 0;
  bool sparse = false, selects = false;
  for (size_t list = 0; list < sequence.num_lists(); ++list) {
    if (everything && !AttendsEverything(sequence.spec, list, row.position, sequence.prompt_tokens)) return false;
    sparse |= sequence.IsSparse(list, row.position);
    selects |= NeedsSelection(sequence.spec, list, row.position, sequence.prompt_tokens);
  }
  sequence.journal.Record(row.position, row.token_id);
  sequence.seat = {.plan = plan, .row = row_index, .position = row.position, .sparse = sparse, .selects = selects};
  return true;
}

// Whatever is wrong with a row concerns its sequence alone: the plan runs without it, as the peer has begun it.
absl::Status FrameHandler::HandleLanePlan(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (link.lane == nullptr) return absl::InvalidArgumentError("a plan on a lane that there is not");
  metrics_->plans.Add(1);
  metrics_->lane_plans.Add(1);
  lane_rows_.clear();
  for (uint32_t i = 0; i < header.row_count; ++i) {
    wire::PlanRow row;
    std::memcpy(&row, frame.payload().data() + i * sizeof row, sizeof row);
    CachedSequence* sequence = Holder(link, row.sequence_id, row.attach_epoch);
    if (sequence == nullptr) continue;
    const DeviceLane::Row on_lane{
        .sequence_id = row.sequence_id, .position = row.position, .seat = static_cast<int>(row.flags)};
    if (!link.lane->Sits(on_lane) || row.position >= sequence->kv.max_positions()) {
      selector_->Refuse(link, header.plan, *sequence, 0);
      continue;
    }
    sequence->journal.Record(row.position, row.token_id);
    lane_rows_.push_back(on_lane);
  }
  TakeLaneRows(link, /*wait=*/false);
  const absl::Status launched = link.lane->Launch(lane_rows_);
  if (!launched.ok()) link.Fail(launched);
  return absl::OkStatus();
}

absl::Status FrameHandler::HandleSeat(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  if (Holder(link, header.sequence_id, header.attach_epoch) == nullptr) return absl::OkStatus();
  if (link.seat_requests.size() >= kMaxSeatRequests) return absl::ResourceExhaustedError("too many wait for seats");
  const auto* pages = reinterpret_cast<const uint32_t*>(frame.payload().data());
  link.seat_requests.push_back({.sequence_id = header.sequence_id,
                                .attach_epoch = header.attach_epoch,
                                .position = header.apply_position,
                                .seat = header.row_count,
                                .pages = {pages, pages + frame.payload().size() / sizeof(uint32_t)}});
  return absl::OkStatus();
}

bool FrameHandler::RunSeats(PeerLink& link) {
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

void FrameHandler::TakeLaneRows(PeerLink& link, bool wait) {
  if (link.lane == nullptr || !link.lane->has_plans()) return;
  const KvLayout layout = LayoutOf(layout_, link.lane->shard());
  const size_t layer_bytes = layout.num_kv_heads * layout.row_bytes();
  link.lane->TakeRows(wait, [&](const DeviceLane::Row& row, const std::byte* kv, std::span<const float> masses,
                                const DeviceLane::RowCounts& counts) {
    // Whatever has become of the sequence.
    metrics_->selection_lookups.Add(counts.lookups);
    metrics_->selection_hits.Add(counts.lookups - counts.misses);
    metrics_->streamed_rows.Add(counts.sent);
    metrics_->streamed_bytes.Add(counts.sent * layout_.row_bytes());
    CachedSequence* sequence = store_->Find(row.sequence_id);
    if (sequence == nullptr || sequence->channel != link.id || sequence->shard != link.lane->shard()) return;
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      // Of an earlier attachment through this link.
      if (!sequence->kv.Append(layer, row.position, 1, kv + layer * layer_bytes).ok()) return;
    }
    metrics_->appended_rows.Add(layout.num_lists());
    for (size_t list = 0; list < masses.size(); ++list) {
      if (std::isnan(masses[list])) continue;
      metrics_->ObserveCapturedMass(list / layout.num_kv_heads, masses[list], /*is_bound=*/false);
    }
    streamer_->SendWatermark(link, 0, *sequence);
  });
  streamer_->Pump(link);
}

absl::Status FrameHandler::HandleLayer(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const OpenPlan* plan = link.FindPlan(header.plan);
  if (plan == nullptr) return absl::OkStatus();  // of a plan that newer ones pushed out: its rows are stale
  const int layer = header.layer_first;
  if (header.row_count != plan->rows.size() || layer >= layout_.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " with ", header.row_count, " rows in a plan of ",
                                                   plan->rows.size(), " rows and ", layout_.num_layers, " layers"));
  }
  const size_t rows = plan->rows.size();
  const TimelineSpan span(metrics_->timeline, Span::kAppend, static_cast<uint16_t>(layer), header.plan,
                          static_cast<uint32_t>(rows));
  const int target = header.prediction_layer;
  if ((header.flags & (wire::kSectionPrediction | wire::kSectionHidden)) != 0 && target >= layout_.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("prediction for layer ", target, " of ", layout_.num_layers));
  }
  if ((header.flags & wire::kSectionHidden) != 0 && hidden_size_ == 0) {
    return absl::InvalidArgumentError("residuals, and this cache rank projects no queries");
  }
  const auto row_bytes = [&](const KvShard& shard) { return shard.num_kv_heads * layout_.row_bytes(); };
  const auto query_bytes = [&](const KvShard& shard) {
    return static_cast<size_t>(shard.num_kv_heads) * layout_.group_size() * layout_.head_dim * sizeof(float);
  };
  const auto hidden_bytes = [&](const KvShard&) { return hidden_size_ * sizeof(float); };
  size_t end = 0;
  FindSection(frame, *plan, wire::kSectionAppend, layer, row_bytes, &end, &appended_);
  FindSection(frame, *plan, wire::kSectionQuery, layer, query_bytes, &end, &queries_);
  FindSection(frame, *plan, wire::kSectionPrediction, target, query_bytes, &end, &predictions_);
  FindSection(frame, *plan, wire::kSectionHidden, target, hidden_bytes, &end, &hidden_);
  WINNOW_RETURN_IF_ERROR(PayloadSize(frame, end));

  for (size_t i = 0; i < rows; ++i) {
    const OpenPlan::Row& row = plan->rows[i];
    CachedSequence* sequence = Holder(link, row.sequence_id, row.attach_epoch);
    if (sequence == nullptr || sequence->seat.plan != header.plan || !row.shard.HasLayer(layer)) continue;
    const int local = layer - row.shard.first_layer;
    if (appended_[i] != nullptr) AppendRow(link, *sequence, local, row.position, appended_[i]);
    if (sequence->seat.plan != header.plan) continue;
    if (queries_[i] != nullptr) {
      TakeQuery(link, *sequence, local, row.position, reinterpret_cast<const float*>(queries_[i]));
    } else if (appended_[i] != nullptr && NeedsQuery(*sequence, local)) {
      selector_->Refuse(link, header.plan, *sequence, local);
    }
  }
  // After all rows' queries: the peer waits for what those decide first, and work of one kind runs in one batch.
  for (size_t i = 0; i < rows; ++i) {
    const OpenPlan::Row& row = plan->rows[i];
    CachedSequence* sequence = store_->FindAttached(row.sequence_id, row.attach_epoch, link.id);
    if (sequence == nullptr || sequence->seat.plan != header.plan) continue;
    if (queries_[i] != nullptr) selector_->OnQuery(link, *sequence, layer - row.shard.first_layer, row.position);
    TakeTarget(link, header, *sequence, i, row.position);
  }
  for (size_t i = 0; i < rows; ++i) {
    const OpenPlan::Row& row = plan->rows[i];
    if (appended_[i] == nullptr || layer != row.shard.last_layer()) continue;
    const CachedSequence* sequence = store_->FindAttached(row.sequence_id, row.attach_epoch, link.id);
    if (sequence != nullptr && sequence->seat.plan == header.plan)
      streamer_->SendWatermark(link, header.plan, *sequence);
  }
  return absl::OkStatus();
}

template <typename BytesOf>
void FrameHandler::FindSection(const ReceivedFrame& frame, const OpenPlan& plan, uint32_t flag, int layer_of_model,
                               BytesOf bytes_of, size_t* end, std::vector<const std::byte*>* parts) {
  parts->assign(plan.rows.size(), nullptr);
  if ((frame.header().flags & flag) == 0) return;
  *end = wire::AlignUp(*end, wire::kRowAlignment);
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const KvShard& shard = plan.rows[i].shard;
    if (!shard.HasLayer(layer_of_model)) continue;
    (*parts)[i] = frame.payload().data() + *end;
    *end += bytes_of(shard);
  }
}

void FrameHandler::TakeTarget(PeerLink& link, const wire::FrameHeader& header, CachedSequence& sequence, size_t row,
                              uint32_t position) {
  const SelectionSpec& spec = sequence.spec;
  if (spec.predictor != Predictor::kDepth || !sequence.seat.selects) return;
  const int target = header.layer_first + static_cast<int>(spec.lookahead);
  if (!sequence.shard.HasLayer(target)) return;
  const int local = target - sequence.shard.first_layer;
  const bool is_for_it = header.prediction_layer == target;
  const bool projects = spec.projection == Projection::kCacheRank;
  if (projects && hidden_[row] != nullptr && is_for_it) {
    TakeHidden(link, sequence, local, position, reinterpret_cast<const float*>(hidden_[row]));
  } else if (!projects && predictions_[row] != nullptr && is_for_it) {
    TakePrediction(link, sequence, local, position, reinterpret_cast<const float*>(predictions_[row]));
  } else if ((header.flags & wire::kSectionAppend) != 0 && !sequence.layers[local].HasTarget(position)) {
    selector_->Refuse(link, header.plan, sequence, local);
  }
}

void FrameHandler::AppendRow(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position,
                             const std::byte* rows) {
  if (!sequence.kv.Append(layer, position, 1, rows).ok())
    return selector_->Refuse(link, sequence.seat.plan, sequence, layer);
  metrics_->appended_rows.Add(sequence.layout.num_kv_heads);
}

bool FrameHandler::NeedsQuery(const CachedSequence& sequence, int layer) {
  return (sequence.seat.selects && sequence.SelectsWithOwnQuery(layer)) ||
         (sequence.seat.sparse && WaitsForVerdict(sequence.spec));
}

void FrameHandler::TakeQuery(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position,
                             const float* query) {
  if (IsDense(sequence.spec) || sequence.spec.predictor == Predictor::kFixed) return;
  LayerSelection& selection = sequence.layers[layer];
  const bool own = sequence.SelectsWithOwnQuery(layer);
  const bool prefetches = sequence.spec.prefetch == Prefetch::kTemporal;
  if (own && sequence.seat.selects) {
    Rotate(sequence, query, position, selection.target.data());
    selection.target_position = position;
    selector_->OnTarget(link, sequence, layer, position);
  }
  // Between anchors the real query judges a selection that it did not make.
  const bool judges = sequence.seat.sparse && WaitsForVerdict(sequence.spec) && !(own && sequence.seat.selects);
  if (own && !judges && !prefetches) return;
  const QueryRing::Slot slot = selection.queries.Push(position);
  std::copy_n(query, selection.target.size(), slot.pre);
  Rotate(sequence, query, position, slot.rotated);
  if (judges) selector_->OnVerdictQuery(link, sequence, layer, position);
  if (prefetches && sequence.seat.sparse) prefetcher_->OnQuery(link, sequence, layer, position);
}

void FrameHandler::TakePrediction(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position,
                                  const float* query) {
  LayerSelection& selection = sequence.layers[layer];
  Rotate(sequence, query, position, selection.target.data());
  selection.target_position = position;
  selector_->OnTarget(link, sequence, layer, position);
}

void FrameHandler::TakeHidden(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position,
                              const float* hidden) {
  LayerSelection& selection = sequence.layers[layer];
  selection.hidden.assign(hidden, hidden + hidden_size_);
  selection.hidden_position = position;
  selector_->OnTarget(link, sequence, layer, position);
}

void FrameHandler::Rotate(const CachedSequence& sequence, const float* query, uint32_t position, float* rotated) const {
  kernels_->rotate({.q_pre_rope = query,
                    .num_rows = 1,
                    .num_heads = sequence.layout.num_query_heads,
                    .head_dim = layout_.head_dim,
                    .positions = &position,
                    .rope_inv_freq = rope_.inv_freq.data(),
                    .rope_attention_factor = rope_.attention_factor,
                    .q = rotated});
}

absl::Status FrameHandler::HandleAppendRange(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  CachedSequence* sequence = Holder(link, header.sequence_id, header.attach_epoch);
  if (sequence == nullptr) return absl::OkStatus();
  const KvLayout& layout = sequence->layout;
  const int layer = header.layer_first - sequence->shard.first_layer;
  if (layer < 0 || layer >= layout.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("rows of layer ", header.layer_first));
  }
  WINNOW_RETURN_IF_ERROR(PayloadSize(frame, header.row_count * layout.num_kv_heads * layout.row_bytes()));
  if (link.HasLanded(sequence->id)) TakeLanded(link, /*wait=*/true);
  const std::byte* const rows = frame.payload().data();
  if (!AppendRange(link, *sequence, layer, header.apply_position, header.row_count, rows)) return absl::OkStatus();
  if (lanes_ != nullptr && link.lane != nullptr && sequence->shard == link.lane->shard()) {
    lanes_->OnRows(*sequence, layer, header.apply_position, header.row_count, rows);
  }
  return absl::OkStatus();
}

bool FrameHandler::AppendRange(PeerLink& link, CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                               const std::byte* rows) {
  const TimelineSpan span(metrics_->timeline, Span::kAppend, static_cast<uint16_t>(layer), 0, 1);
  const uint32_t watermark = sequence.kv.watermark();
  if (!sequence.kv.Append(layer, first, count, rows, executor_).ok()) {
    selector_->Refuse(link, 0, sequence, layer);
    return false;
  }
  metrics_->appended_rows.Add(uint64_t{count} * sequence.layout.num_kv_heads);
  const uint32_t end = sequence.kv.rows(layer);
  if (end == sequence.prompt_tokens && end > 0) selector_->OnQuery(link, sequence, layer, end - 1);
  if (sequence.kv.watermark() > watermark) {
    if (sequence.kv.watermark() == sequence.prompt_tokens) store_->KeepPrefix(sequence);
    streamer_->SendWatermark(link, 0, sequence);
    streamer_->Pump(link);
  }
  return true;
}

absl::Status FrameHandler::HandleLanded(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  const int layer = header.layer_first;
  if (link.lane == nullptr) return absl::InvalidArgumentError("rows on a lane that there is not");
  if (layer >= layout_.num_layers) return absl::InvalidArgumentError(absl::StrCat("rows of layer ", layer));
  const CachedSequence* sequence = Holder(link, header.sequence_id, header.attach_epoch);
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

void FrameHandler::TakeLanded(PeerLink& link, bool wait) {
  while (!link.landed.empty()) {
    const absl::StatusOr<const std::byte*> rows = link.lane->OldestLanded(wait);
    if (!rows.ok()) return link.Fail(rows.status());
    if (*rows == nullptr) return;
    const LandedRows landed = link.landed.front();
    link.landed.pop_front();
    CachedSequence* sequence = store_->FindAttached(landed.sequence_id, landed.attach_epoch, link.id);
    if (sequence != nullptr) AppendRange(link, *sequence, landed.layer, landed.first, landed.count, *rows);
    link.lane->PopLanded();
    streamer_->SendLandingFree(link, landed.push);
    streamer_->Pump(link);
    if (!wait) return;
  }
}

bool FrameHandler::MirrorPrefix(PeerLink& link) {
  if (link.to_mirror.empty()) return false;
  const CachedSequence* sequence = store_->Find(link.to_mirror.front());
  const bool is_here = sequence != nullptr && sequence->channel == link.id;
  // Rows that land from then on continue the mirror.
  if (!is_here || (lanes_->Advance(*sequence) && link.landed.empty())) link.to_mirror.pop_front();
  return !link.to_mirror.empty();
}

absl::Status FrameHandler::HandlePromptQueries(PeerLink& link, const ReceivedFrame& frame) {
  const wire::FrameHeader& header = frame.header();
  CachedSequence* sequence = Holder(link, header.sequence_id, header.attach_epoch);
  if (sequence == nullptr || sequence->spec.predictor == Predictor::kDense) return absl::OkStatus();
  const KvLayout& layout = sequence->layout;
  const int layer = header.layer_first - sequence->shard.first_layer;
  if (layer < 0 || layer >= layout.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("queries of layer ", header.layer_first));
  }
  const size_t query_floats = static_cast<size_t>(layout.num_query_heads) * layout.head_dim;
  WINNOW_RETURN_IF_ERROR(PayloadSize(frame, header.row_count * query_floats * sizeof(float)));
  const auto* queries = reinterpret_cast<const float*>(frame.payload().data());
  QueryRing& ring = sequence->layers[layer].queries;
  for (uint32_t i = 0; i < header.row_count; ++i) {
    const uint32_t position = header.apply_position + i;
    const QueryRing::Slot slot = ring.Push(position);
    std::copy_n(queries + i * query_floats, query_floats, slot.pre);
    Rotate(*sequence, slot.pre, position, slot.rotated);
  }
  if (ring.end() == sequence->prompt_tokens && ring.end() > 0)
    selector_->OnQuery(link, *sequence, layer, ring.end() - 1);
  return absl::OkStatus();
}

}  // namespace winnow
